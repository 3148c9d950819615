/* Updates the page of a flash sale and starts rushes. It does nothing in a hidden tab. */
"use strict";
{
    const LONGEST_QUEUE = 60;
    const page = document.getElementById("sale");
    const form = document.getElementById("rush");
    const button = form.querySelector("button");
    const verdict = document.getElementById("verdict");
    const figure = document.getElementById("chart");
    const chart = new window.SaleChart(figure.querySelector("svg"));
    let news = null;
    let shownResults = "";
    let said = false; // a refusal is shown until the next rush

    function write(field, text) {
        const node = page.querySelector(`[data-field="${field}"]`);
        if (node.textContent !== String(text)) {
            node.textContent = text;
        }
    }

    function mark(name, kind) {
        page.querySelector(`[data-figure="${name}"]`).dataset.kind = kind;
    }

    function tell(text, kind = "") {
        if (verdict.textContent !== text) {
            verdict.textContent = text;
        }
        verdict.dataset.kind = kind;
    }

    function judge({ rush, orders, stock }) {
        const { plan, answers } = rush;
        const units = plan.units;
        if (rush.running) {
            tell(`${plan.label}: ${plan.buyers} buyers want ${units} units.`);
        } else if (rush.oversold) {
            tell(`${plan.label}: oversold by ${rush.oversold}. There are ${orders} orders for ${units} ` +
                `units, and the shop still counts ${stock} in stock.`, "bad");
        } else if (stock !== units - orders) {
            tell(`${plan.label}: wrong. There are ${orders} orders for ${units} units, but the shop ` +
                `counts ${stock} in stock.`, "bad");
        } else {
            const out = answers.sold_out ? ` ${answers.sold_out} buyers were told that it is sold out.` : "";
            const late = rush.stalled === "refused" ? " The buyer that stalled was refused: its fence was outdated." : "";
            tell(`${plan.label}: sold what was there and no more, ${orders} orders for ${units} units.${late}${out}`,
                "good");
        }
    }

    function showQueue(count) {
        const queue = page.querySelector("[data-queue]");
        const wanted = Math.min(count, LONGEST_QUEUE);
        while (queue.childElementCount > wanted) {
            queue.lastElementChild.remove();
        }
        while (queue.childElementCount < wanted) {
            queue.append(document.createElement("i"));
        }
        write("queue", count);
    }

    function showResults(results) {
        const wanted = JSON.stringify(results);
        if (wanted === shownResults) {
            return;
        }
        shownResults = wanted;
        const rows = results.map((each) => {
            const row = document.createElement("tr");
            const head = document.createElement("th");
            head.scope = "row";
            head.textContent = each.plan.label;
            row.append(head);
            const figures = [each.plan.buyers, each.plan.units, each.orders, each.oversold, each.seconds.toFixed(1)];
            for (const [place, text] of figures.entries()) {
                const cell = document.createElement("td");
                cell.className = place === 3 && each.oversold ? "number bad" : "number";
                cell.textContent = text;
                row.append(cell);
            }
            return row;
        });
        if (rows.length) {
            document.getElementById("results").replaceChildren(...rows);
        }
    }

    function show(state) {
        for (const field of ["units", "orders", "oversold", "stock", "waiters"]) {
            write(field, state[field]);
        }
        const wrong = state.rush && !state.rush.running && state.stock !== state.units - state.orders;
        mark("orders", state.oversold ? "bad" : state.orders && state.orders === state.units ? "good" : "");
        mark("oversold", state.oversold ? "bad" : "");
        mark("stock", wrong ? "bad" : "");
        if (state.available) {
            write("holder", state.holder ? state.holder.who : "nobody");
        } else {
            write("holder", "the lock server is not available");
        }
        write("fence", state.holder && state.holder.fence ? state.holder.fence : "–");
        showQueue(state.waiters);
        const running = Boolean(state.rush && state.rush.running);
        button.disabled = running;
        button.textContent = running ? "The rush is on" : "Start the rush";
        if (state.rush) {
            said = said && !running;
            figure.hidden = false;
            chart.show(state.rush);
            showResults(state.results);
            if (!said) {
                judge(state);
            }
        }
    }

    function listen() {
        if (news) {
            news.close();
            news = null;
        }
        if (!document.hidden) {
            news = new EventSource(page.dataset.news);
            news.addEventListener("message", (event) => show(JSON.parse(event.data)));
        }
    }

    form.addEventListener("submit", async (event) => {
        event.preventDefault();
        button.disabled = true;
        try {
            const answer = await fetch(form.action, {
                method: "POST",
                body: new FormData(form),
                headers: { Accept: "application/json" },
            });
            said = !answer.ok;
            if (said) {
                const { detail } = await answer.json();
                tell(detail, "bad");
            }
        } catch {
            said = true;
            tell("The shop does not answer.", "bad");
        }
        button.disabled = false;
    });
    document.addEventListener("visibilitychange", listen);
    listen();
}
