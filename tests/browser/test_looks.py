"""How the pages look: dark, narrow, from right to left, and under axe-core."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from django_redis_lock import lock, locks, semaphore
from tests.browser.window import Visit, choose_release, row
from tests.tools import Background, eventually, waiters
from tests.tools.admin import LIST, hold_as, page_of

OURS = {
    "include": [["#content"]],
    "exclude": [
        *([part] for part in ("thead .sortoptions", ".actions", "#toolbar", "#changelist-filter"))
    ],
}
"""The rest is Django's: its form of actions, its search, its filters, and its links that sort."""
LONG = "catalogue:" + "verylongname" * 20
NAMES = ["product:1", "catalogue/lamps:desk-lamp-with-dimmer", LONG]


CUT = """
    () => {
        const cut = [];
        const width = document.documentElement.clientWidth;
        for (const each of document.querySelectorAll(
                "#content :is(td, th, a, bdi, time, code, button, input, select, p)")) {
            const box = each.getBoundingClientRect();
            if (!each.checkVisibility() || !box.width || each.closest(".lock-cards thead")) {
                continue;
            }
            let left = 0, right = width;
            for (let out = each.parentElement; out; out = out.parentElement) {
                if (getComputedStyle(out).overflowX !== "visible") {
                    const around = out.getBoundingClientRect();
                    left = Math.max(left, around.left);
                    right = Math.min(right, around.right);
                }
            }
            if (box.left < left - 1 || box.right > right + 1) {
                cut.push(`${each.nodeName}.${each.className}: ${each.textContent.trim()}`);
            }
        }
        return cut;
    }
"""
"""What is not wholly inside the window and whatever scrolls or clips around it."""


def faults(page: Page) -> dict[str, Any]:
    spills = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    found = {"spills": max(0, page.evaluate(spills)), "cut": page.evaluate(CUT)}
    return {kind: value for kind, value in found.items() if value}


def violations(page: Page) -> list[str]:
    options = {"resultTypes": ["violations"], "preload": False}
    found = Axe().run(page, OURS, options).response["violations"]
    return [f"{rule['id']}: {node['html']}" for rule in found for node in rule["nodes"]]


@pytest.fixture
def holders(client: redis.Redis) -> None:
    """Hold locks of all kinds, one with everything that its page can show."""
    task = {"task_id": "7f0c3bb2-6b1f-4d0a-9a55-0f3f2f6f6a10", "auto_renew": True}
    lock(NAMES[0], timeout=60).acquire()
    locks["default"].force_release(NAMES[0], by="grace", reason="no row for an hour")
    entry = dict.fromkeys(("host", "task_id", "task_name", "by", "reason"), "a:" * 4000)
    client.xadd("lock-audit", {"event": "freed", "name": LONG, **entry})
    hold_as(
        client,
        NAMES[0],
        ttl=600,
        held_for=9000,
        host="worker-1.example.com",
        pid=30712,
        thread="ThreadPoolExecutor-0_0",
        task_name="shop.tasks.import_products",
        metadata={"supplier": "Lamps & Sons", "started_by": "beat"},
        lease=6_000_000,
        **task,
    )
    hold_as(client, NAMES[1], ttl=None, held_for=200_000, host="web-1", pid=812, thread="main")
    for _ in range(3):
        semaphore("render", 5, timeout=60, metadata={"order": "8b1f"}).acquire()
    locks["default"].set_limit("render", 2, by="grace")
    locks["default"].set_limit(f"paused:{LONG}", 0, by="grace")
    hold_as(client, LONG, host="h" * 200, task_id="8" * 36, task_name="shop.tasks." + "x" * 200)


@pytest.mark.usefixtures("holders")
@pytest.mark.parametrize(
    ("width", "scheme", "language"),
    [(320, "light", "en"), (320, "dark", "he"), (768, "light", "he"), (1280, "dark", "en")],
)
def test_every_page(visit: Visit, width: int, scheme: str, language: str) -> None:
    waiting = Background(lambda: lock(NAMES[0], timeout=60, blocking_timeout=60).acquire())
    eventually(lambda: waiters(NAMES[0]) == 1)
    visitor = visit(
        color_scheme=scheme,
        viewport={"width": width, "height": 800},
        locale=language,
        extra_http_headers={"Accept-Language": language},
    )
    page, found = visitor.open(), {}

    def look(where: str) -> None:
        found[where] = [*violations(page), *faults(page).items()]

    expect(row(page, NAMES[0])).to_be_visible()
    assert page.evaluate("document.dir") == ("rtl" if language == "he" else "ltr")
    look("list")
    for name in NAMES:
        visitor.open(page_of(name))
        expect(page.locator("#lock-now progress, #lock-now .lock-wrong").first).to_be_visible()
        for folded in page.locator("details:visible > summary").all():
            folded.click()
        look(f"lock {name}")
    visitor.open(page_of("render"))
    expect(page.locator("#lock-holders tbody tr")).to_have_count(3)
    look("semaphore")
    visitor.open(f"{LIST}audit/")
    look("audit")
    visitor.open(LIST)
    choose_release(page, *NAMES)
    expect(page.locator("#id_reason")).to_be_visible()
    look("confirmation")
    locks["default"].force_release(NAMES[0])
    assert waiting.outcome()
    assert {where: wrong for where, wrong in found.items() if wrong} == {}
    by_axe = "Applying inline style violates"
    visitor.complaints[:] = [text for text in visitor.complaints if not text.startswith(by_axe)]
