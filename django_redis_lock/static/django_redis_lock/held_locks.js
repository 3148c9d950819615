/* Keeps a page of held locks up to date: clocks run, and every few seconds what has changed is put
 * in place of what it was before. Nodes that stay the same stay the same nodes, so ticked boxes,
 * the focus, the selection and the scroll stay as they are. In a hidden tab it does nothing. What
 * could not be read again stays as it was, marked as out of date.
 */
"use strict";
{
    const HEADER = "X-Held-Locks";
    const INTERVAL_HEADER = "X-Held-Locks-Every";
    const LOGIN_ENDED = 401;
    const STALE = "lock-stale";
    const TICK_MS = 1000;
    // A slow server is asked less often: after this many times its last answer's time.
    const PATIENCE = 4;
    // After so long the user is told that there is no answer yet.
    const OVERDUE_MS = 15000;

    /* Make one node like another. */

    function keyOf(node) {
        const ticket = node.nodeType === Node.ELEMENT_NODE && node.querySelector("[data-ticket]");
        return node.nodeName === "TR" && ticket ? ticket.dataset.ticket : null;
    }

    function kindOf(node) {
        const isElement = node.nodeType === Node.ELEMENT_NODE;
        const mark = isElement && node.nodeName !== "TR" ? node.id || node.classList[0] || "" : "";
        return `${node.nodeName} ${mark}`;
    }

    function findLike(child, next) {
        let found = next;
        while (found && (keyOf(found) !== null || kindOf(found) !== kindOf(child))) {
            found = found.nextSibling;
        }
        return found;
    }

    function morph(node, wanted) {
        if (node.nodeType !== Node.ELEMENT_NODE) {
            if (node.nodeValue !== wanted.nodeValue) {
                node.nodeValue = wanted.nodeValue;
            }
            return;
        }
        if (node.classList.contains("action-counter")) {
            return; // the selection sets it
        }
        for (const { name } of Array.from(node.attributes)) {
            if (!wanted.hasAttribute(name)) {
                node.removeAttribute(name);
            }
        }
        for (const { name, value } of Array.from(wanted.attributes)) {
            if (node.getAttribute(name) !== value) {
                node.setAttribute(name, value);
            }
        }
        morphChildren(node, wanted);
    }

    /* Rows are matched by their tickets, other nodes by kind and order. */
    function morphChildren(parent, wanted) {
        const rows = new Map(Array.from(parent.children, (row) => [keyOf(row), row]));
        const kept = new Set(Array.from(wanted.children, keyOf));
        let next = parent.firstChild;

        function drop() {
            const gone = next;
            next = next.nextSibling;
            gone.remove();
        }

        for (const child of Array.from(wanted.childNodes)) {
            const key = keyOf(child);
            while (next && keyOf(next) !== null && !kept.has(keyOf(next))) {
                drop(); // remove it, so that the rows below need not move
            }
            let found = key === null ? findLike(child, next) : rows.get(key);
            if (found) {
                while (key === null && next !== found) {
                    drop();
                }
                morph(found, child);
            } else {
                found = document.importNode(child, true);
            }
            if (found === next) {
                next = next.nextSibling;
            } else {
                parent.insertBefore(found, next);
            }
        }
        while (next) {
            drop();
        }
    }

    /* Durations in the page's language. */

    function write(patterns, seconds) {
        let left = Math.max(0, seconds);
        const parts = {};
        for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
            parts[unit] = Math.floor(left / size);
            left %= size;
        }
        const largest = ["d", "h", "min"].find((unit) => parts[unit]) || "s";
        return patterns[largest].replace(/\{(\w+)\}/g, (_, unit) => parts[unit]);
    }

    /* The boxes of the list: all at once, a range with Shift, and how many there are. Django's own
     * script for this knows only the boxes that the page came with. */

    class Selection {
        constructor(area) {
            this.area = area;
            this.last = null;
            this.shift = false;
            area.addEventListener("click", (event) => {
                this.shift = event.shiftKey;
            }, true);
            area.addEventListener("change", (event) => this.changed(event.target));
            window.addEventListener("pageshow", () => this.show());
        }

        get boxes() {
            return Array.from(this.area.querySelectorAll("input.action-select"));
        }

        changed(box) {
            if (box.id === "action-toggle") {
                this.boxes.forEach((other) => {
                    other.checked = box.checked;
                });
            } else if (box.classList.contains("action-select")) {
                this.range(box);
                this.last = box;
            }
            this.show();
        }

        range(box) {
            const boxes = this.boxes;
            const ends = [boxes.indexOf(box), boxes.indexOf(this.last)].sort((a, b) => a - b);
            if (this.shift && ends[0] >= 0) {
                boxes.slice(ends[0], ends[1] + 1).forEach((other) => {
                    other.checked = box.checked;
                });
            }
        }

        show() {
            const boxes = this.boxes;
            const ticked = boxes.filter((box) => box.checked).length;
            boxes.forEach((box) => box.closest("tr").classList.toggle("selected", box.checked));
            const toggle = document.getElementById("action-toggle");
            if (toggle) {
                toggle.checked = ticked > 0 && ticked === boxes.length;
            }
            const counter = this.area.querySelector("span.action-counter");
            if (counter && window.ngettext) {
                const text = window.ngettext(
                    "%(sel)s of %(cnt)s selected", "%(sel)s of %(cnt)s selected", ticked);
                const shown = window.interpolate(text, { sel: ticked, cnt: boxes.length }, true);
                if (counter.textContent !== shown) {
                    counter.textContent = shown;
                }
            }
        }
    }

    /* Copy the command, or select it where the browser forbids that. */

    async function copy(button) {
        if (!button.classList.contains("lock-copy")) {
            return;
        }
        const command = button.parentElement.querySelector("code");
        try {
            await navigator.clipboard.writeText(command.textContent);
            button.textContent = button.dataset.copied;
        } catch {
            window.getSelection().selectAllChildren(command);
        }
    }

    /* Keep what can't be read again. */

    /* Write a sentence that names a time. */
    function fill(sentence, time) {
        sentence.textContent = sentence.dataset.text.replace("{time}", time);
        sentence.hidden = false;
    }

    function aliasOf(row) {
        const name = row.querySelector("[data-using]");
        return name && name.dataset.using;
    }

    class Memory {
        constructor(area) {
            this.area = area;
            this.silent = new Map(this.problemsIn(area).map((problem) => [problem.dataset.using, null]));
        }

        problemsIn(part) {
            return Array.from(part.querySelectorAll(".lock-problem"));
        }

        get lookedAt() {
            const looked = this.area.querySelector(".lock-looked");
            return looked ? looked.textContent : "";
        }

        /* Keep the rows of backends that are unavailable by now. */
        keepIn(wanted) {
            const problems = this.problemsIn(wanted);
            const silent = new Map();
            for (const problem of problems) {
                const using = problem.dataset.using;
                const time = this.silent.has(using) ? this.silent.get(using) : this.lookedAt;
                silent.set(using, time);
                if (time !== null) {
                    fill(problem.querySelector(".lock-as-of"), time);
                }
            }
            this.silent = silent;
            if (problems.length) {
                this.keepRows(wanted);
                this.keepFacts(wanted);
            }
        }

        keepFacts(wanted) {
            const unknown = wanted.querySelector("#lock-known[data-unknown]");
            const known = this.area.querySelector("#lock-known:not([data-unknown])");
            if (unknown && known) {
                const kept = known.cloneNode(true);
                kept.classList.add(STALE);
                unknown.replaceWith(kept);
            }
        }

        keepRows(wanted) {
            const rows = Array.from(this.area.querySelectorAll("#result_list tbody tr"));
            if (!rows.some((row) => this.silent.has(aliasOf(row)))) {
                return;
            }
            this.keepTable(wanted);
            const body = wanted.querySelector("#result_list tbody");
            const there = new Map(Array.from(body.rows, (row) => [keyOf(row), row]));
            let next = null; // each keeps its successor
            for (const row of rows.reverse()) {
                if (this.silent.has(aliasOf(row))) {
                    const kept = row.cloneNode(true);
                    kept.classList.add(STALE);
                    body.insertBefore(kept, next);
                    next = kept;
                } else {
                    next = there.get(keyOf(row)) || next;
                }
            }
        }

        /* If no backend has answered, there is neither a table nor actions. */
        keepTable(wanted) {
            if (!wanted.querySelector("#result_list")) {
                const total = wanted.querySelector(".lock-total");
                const table = this.area.querySelector(".results").cloneNode(true);
                table.querySelector("tbody").replaceChildren();
                total.after(table);
                const actions = this.area.querySelector(".actions");
                if (actions) {
                    total.before(actions.cloneNode(true));
                }
            }
        }
    }

    /* The page. */

    class LivePage {
        constructor(area, bar) {
            this.area = area;
            this.bar = bar;
            this.every = Number(area.dataset.every) * 1000;
            this.patterns = JSON.parse(area.dataset.durations);
            this.selection = new Selection(area);
            this.memory = new Memory(area);
            this.readAt = performance.now();
            this.paused = false;
            this.timer = null;
            this.request = null;
            document.addEventListener("visibilitychange", () => this.go());
            window.addEventListener("pageshow", (event) => event.persisted && this.go());
            if (this.every) {
                bar.hidden = false;
                bar.querySelector("button").addEventListener("click", () => this.toggle());
            }
            area.classList.add("lock-scripted");
            area.addEventListener("click", (event) => copy(event.target));
            this.selection.show();
            setInterval(() => document.hidden || this.tick(), TICK_MS);
            this.later(this.every);
        }

        toggle() {
            this.paused = !this.paused;
            const button = this.bar.querySelector("button");
            button.textContent = this.paused ? button.dataset.resume : button.dataset.pause;
            this.say(this.paused ? "paused" : "running");
            this.go();
        }

        say(state) {
            for (const text of this.bar.querySelectorAll("[data-state]")) {
                text.hidden = text.dataset.state !== state;
            }
        }

        /* Tell why the page is not up to date, if it is not. */
        tell(trouble) {
            for (const text of document.querySelectorAll(".lock-banner [data-trouble]")) {
                if (text.dataset.trouble === trouble) {
                    fill(text.querySelector("[data-text]"), this.memory.lookedAt);
                }
                text.hidden = text.dataset.trouble !== trouble;
            }
            this.area.classList.toggle(STALE, trouble !== null);
            this.tick();
        }

        /* Clocks of outdated rows show what they did when they were read. */
        tick() {
            const passed = (performance.now() - this.readAt) / 1000;
            for (const clock of this.area.querySelectorAll(".lock-clock")) {
                const seconds = Number(clock.dataset.seconds);
                const since = clock.closest(`.${STALE}`) ? 0 : passed;
                const shown = clock.dataset.direction === "down"
                    ? Math.ceil(seconds - since)
                    : Math.floor(seconds + since);
                const text = write(this.patterns, shown);
                if (clock.textContent !== text) {
                    clock.firstChild.nodeValue = text;
                }
            }
        }

        /* Refresh at once, unless the tab is hidden. */
        go() {
            clearTimeout(this.timer);
            this.timer = null;
            if (this.request) {
                this.request.abort();
                this.request = null;
            }
            if (this.every && !this.paused && !document.hidden) {
                this.refresh();
            }
        }

        later(delay) {
            if (this.every && !this.paused && !document.hidden) {
                this.timer = setTimeout(() => this.refresh(), delay);
            }
        }

        async refresh() {
            const request = this.request = new AbortController();
            const begun = performance.now();
            const overdue = setTimeout(() => this.tell("failed"), OVERDUE_MS);
            let rest = this.every;
            try {
                const response = await fetch(window.location.href, {
                    headers: { [HEADER]: "live" },
                    signal: request.signal,
                });
                rest = Number(response.headers.get(INTERVAL_HEADER)) * 1000 || rest;
                if (response.status === LOGIN_ENDED) {
                    this.request = null;
                    this.tell("ended"); // until the tab is visible again
                    return;
                }
                if (!response.ok || response.redirected) {
                    throw new Error(`the server answered ${response.status}`);
                }
                this.put(await response.text(), begun);
                this.tell(null);
            } catch (error) {
                if (request.signal.aborted) {
                    return;
                }
                this.tell("failed");
            } finally {
                clearTimeout(overdue);
            }
            this.request = null;
            const took = Math.min(performance.now() - begun, OVERDUE_MS);
            this.later(Math.max(rest, PATIENCE * took));
        }

        put(html, readAt) {
            const wanted = new DOMParser().parseFromString(html, "text/html").body;
            const focused = document.activeElement;
            this.memory.keepIn(wanted);
            morphChildren(this.area, wanted);
            this.readAt = readAt;
            this.selection.show();
            this.tick();
            if (focused !== document.activeElement && this.area.contains(focused)) {
                focused.focus({ preventScroll: true });
            }
        }
    }

    document.addEventListener("DOMContentLoaded", () => {
        const area = document.getElementById("held-locks");
        const bar = document.getElementById("held-locks-live");
        if (area && bar) {
            new LivePage(area, bar);
        }
    });
}
