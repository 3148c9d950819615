"""The pages under axe-core, in what is ours: Django's own frame is Django's."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from django_redis_lock import lock, locks
from tests.browser.window import Visit, choose_release, row
from tests.tools.admin import LIST, hold_as, page_of

OURS = {
    "include": [["#held-locks"], [".lock-banner"], ["#held-locks-live"]],
    "exclude": [["#held-locks thead .sortoptions"], ["#held-locks .actions"]],
}
"""The list has Django's own form of actions, and its links that sort, which have no text."""
OPTIONS = {"resultTypes": ["violations"], "preload": False}
CONFIRMATION = {"include": [["#content-main"]]}


def violations(page: Page, within: Any = OURS) -> list[str]:
    found = Axe().run(page, within, OPTIONS).response["violations"]
    return [f"{rule['id']}: {node['html']}" for rule in found for node in rule["nodes"]]


@pytest.fixture
def holders(client: redis.Redis) -> None:
    """Locks with all that a page can show of them."""
    lock("import:7", timeout=60).acquire()
    locks["default"].force_release("import:7", by="grace", reason="stuck")
    task = {"task_id": "8c1f", "task_name": "shop.import", "auto_renew": True, "lease": 6_000_000}
    hold_as(client, "import:7", ttl=600, held_for=9000, metadata={"supplier": "Lamps"}, **task)
    hold_as(client, "old", ttl=None, held_for=200_000)


@pytest.mark.usefixtures("holders", "quick")
@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page(visit: Visit, scheme: str, width: int) -> None:
    """The list, live and out of date, the page of a lock, the confirmation, and an empty list."""
    visitor = visit(color_scheme=scheme, viewport={"width": width, "height": 800})
    page = visitor.open()
    expect(row(page, "import:7")).to_be_visible()
    found = {"list": violations(page)}
    page.route("**", lambda route: route.abort())
    expect(page.locator("#held-locks.lock-stale")).to_be_visible()
    found["stale list"] = violations(page)
    page.unroute_all(behavior="wait")
    visitor.complaints.clear()
    visitor.open(page_of("import:7"))
    expect(page.locator("#lock-metadata")).to_be_visible()
    found["lock"] = violations(page)
    visitor.open(LIST)
    choose_release(page, "import:7", "old")
    expect(page.locator("#id_reason")).to_be_visible()
    found["confirmation"] = violations(page, CONFIRMATION)
    for name in ("import:7", "old"):
        locks["default"].force_release(name)
    visitor.open(LIST)
    expect(page.get_by_text("No lock is held.")).to_be_visible()
    found["empty list"] = violations(page)
    assert {where: wrong for where, wrong in found.items() if wrong} == {}
    by_axe = "Applying inline style violates"
    visitor.complaints[:] = [text for text in visitor.complaints if not text.startswith(by_axe)]
