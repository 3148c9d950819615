/* Draws orders and stock over a rush. The policy forbids inline styles, so it sets attributes. */
"use strict";
{
    const NAMESPACE = "http://www.w3.org/2000/svg";
    const HEIGHT = 300;
    const MARGIN = { top: 14, right: 12, bottom: 30, left: 44 };
    const TICKS = 5;

    function niceStep(largest, ticks) {
        const rough = Math.max(largest, 1e-3) / ticks;
        const power = 10 ** Math.floor(Math.log10(rough));
        return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
    }

    /* Returns the corners of the area above a height and below a line through the points. */
    function above(points, height) {
        const corners = [];
        points.forEach(([seconds, count], place) => {
            const [before, was] = points[place - 1] || [seconds, count];
            if ((was - height) * (count - height) < 0) {
                corners.push([before + ((height - was) / (count - was)) * (seconds - before), height]);
            }
            corners.push([seconds, Math.max(count, height)]);
        });
        return corners;
    }

    function make(name, attributes, text = "") {
        const node = document.createElementNS(NAMESPACE, name);
        for (const [key, value] of Object.entries(attributes)) {
            node.setAttribute(key, value);
        }
        node.textContent = text;
        return node;
    }

    class SaleChart {
        constructor(svg) {
            this.svg = svg;
            this.rush = null;
            new ResizeObserver(() => this.draw()).observe(svg);
        }

        show(rush) {
            this.rush = rush;
            this.draw();
        }

        draw() {
            const width = this.svg.clientWidth;
            if (!this.rush || !width) {
                return;
            }
            const { plan, samples } = this.rush;
            const points = [[0, 0, plan.units], ...samples];
            const end = Math.max(0.5, points[points.length - 1][0]);
            const highest = Math.max(plan.units, ...points.flatMap(([, orders, stock]) => [orders, stock]));
            const step = niceStep(highest * 1.05, TICKS);
            const top = Math.ceil((highest * 1.05) / step) * step;
            const right = width - MARGIN.right;
            const bottom = HEIGHT - MARGIN.bottom;
            const x = (seconds) => MARGIN.left + (seconds / end) * (right - MARGIN.left);
            const y = (count) => bottom - (count / top) * (bottom - MARGIN.top);
            const at = (seconds, count) => `${x(seconds).toFixed(1)},${y(count).toFixed(1)}`;

            const nodes = [];
            for (let count = 0; count <= top; count += step) {
                nodes.push(make("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(count), y2: y(count) }));
                nodes.push(make("text", { x: MARGIN.left - 8, y: y(count) + 4, "text-anchor": "end" }, count));
            }
            const second = niceStep(end, width < 500 ? 4 : 8);
            for (let seconds = 0; seconds <= end + 1e-9; seconds += second) {
                const anchor = seconds > end * 0.97 ? "end" : "middle";
                const text = `${Number(seconds.toFixed(2))} s`;
                nodes.push(make("text", { x: x(seconds), y: HEIGHT - 8, "text-anchor": anchor }, text));
            }

            const orders = points.map(([seconds, count]) => at(seconds, count));
            const over = above(points, plan.units).map(([seconds, count]) => at(seconds, count));
            const last = points[points.length - 1][0];
            nodes.push(make("polygon", { class: "under-orders", points: [...orders, at(last, 0), at(0, 0)].join(" ") }));
            if (points.some(([, count]) => count > plan.units)) {
                nodes.push(make("polygon", { class: "oversold", points: [...over, at(last, plan.units), at(0, plan.units)].join(" ") }));
            }
            nodes.push(make("line", { class: "units", x1: MARGIN.left, x2: right, y1: y(plan.units), y2: y(plan.units) }));
            nodes.push(make("polyline", { class: "stock", points: points.map(([seconds, , stock]) => at(seconds, stock)).join(" ") }));
            nodes.push(make("polyline", { class: "orders", points: orders.join(" ") }));

            this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
            this.svg.setAttribute("aria-label",
                `${this.rush.orders} orders for ${plan.units} units in ${this.rush.seconds.toFixed(1)} seconds`);
            this.svg.replaceChildren(...nodes);
        }
    }

    window.SaleChart = SaleChart;
}
