/* Keeps a page of held locks up to date: every few seconds the parts that change are read again and
 * replaced. It rests in a hidden tab, and while the reader has ticked or selected something.
 */
"use strict";
{
    const HEADER = "X-Held-Locks";
    // A slow server is asked less often: after this many times its last answer's time.
    const PATIENCE = 4;
    const TIMEOUT_MS = 15000;

    function start(area, note) {
        const every = Number(area.dataset.every) * 1000;
        const button = note.querySelector("button");
        let bound = document.getElementById("result_list"); // by Django's own script
        let timer = null;
        let paused = false;
        let asking = false;

        function isUsed() {
            const action = area.querySelector("select[name=action]");
            return area.querySelector("input.action-select:checked") || (action && action.value)
                || area.matches(":active") // a button that was replaced would get no click
                || (area.contains(getSelection().anchorNode) && !getSelection().isCollapsed);
        }

        function say(state) {
            for (const text of note.querySelectorAll("[data-state]")) {
                text.hidden = text.dataset.state !== state;
            }
            area.classList.toggle("lock-stale", state === "failed");
        }

        function put(html) {
            const focused = document.activeElement;
            const wanted = new DOMParser().parseFromString(html, "text/html");
            for (const part of wanted.querySelectorAll("[data-live]")) {
                const old = document.getElementById(part.id);
                old.hidden = part.hidden;
                if (old.innerHTML !== part.innerHTML) {
                    old.replaceChildren(...part.childNodes);
                }
            }
            if (!focused.isConnected) {
                const alike = Array.from(area.querySelectorAll(focused.localName));
                const same = alike.find((one) => one.isEqualNode(focused));
                same && same.focus({ preventScroll: true });
            }
        }

        async function refresh() {
            clearTimeout(timer);
            if (paused || document.hidden || asking) {
                return;
            }
            const begun = performance.now();
            asking = true;
            try {
                if (!isUsed()) {
                    const response = await fetch(location.href, {
                        headers: { [HEADER]: "live" }, signal: AbortSignal.timeout(TIMEOUT_MS),
                    });
                    if (response.redirected) {
                        location.reload(); // to the login
                        return;
                    }
                    if (!response.ok) {
                        throw new Error(`the server answered ${response.status}`);
                    }
                    const html = await response.text();
                    if (!isUsed() && !paused) {
                        put(html);
                    }
                }
                say(paused ? "paused" : isUsed() ? "resting" : "running");
            } catch {
                say(paused ? "paused" : "failed");
            }
            asking = false;
            timer = setTimeout(refresh, Math.max(every, PATIENCE * (performance.now() - begun)));
        }

        // Django's script knows only the table that the page came with.
        area.addEventListener("click", (event) => {
            const table = document.getElementById("result_list");
            if (event.target.matches("input.action-select, #action-toggle") && table !== bound) {
                bound = table;
                window.Actions(area.querySelectorAll("input.action-select"));
            }
        }, true);
        if (every) {
            note.hidden = false;
            button.addEventListener("click", () => {
                paused = !paused;
                const label = button.textContent;
                button.textContent = button.dataset.other;
                button.dataset.other = label;
                say(paused ? "paused" : "running");
                refresh();
            });
            document.addEventListener("visibilitychange", refresh);
            timer = setTimeout(refresh, every);
        }
    }

    document.addEventListener("DOMContentLoaded", () => {
        if (matchMedia("(max-width: 600px)").matches) {
            for (const filter of document.querySelectorAll("#changelist-filter details")) {
                filter.open = filter.querySelector("li.selected:not(:first-child)") !== null;
            }
        }
        const area = document.getElementById("held-locks");
        if (area) {
            start(area, document.getElementById("held-locks-live"));
        }
    });
}
