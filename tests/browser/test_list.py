"""The list in a browser: it follows what happens, and leaves the reader in peace."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from playwright.sync_api import expect

from django_redis_lock import lock, locks
from django_redis_lock.models import HeldLock
from tests.apps.celery.browser import import_products
from tests.apps.csp import POLICY
from tests.browser.window import Hold, Visit, box, row
from tests.tools import Background, eventually, waiters
from tests.tools.admin import LIST, VIEW
from tests.tools.celery_worker import events

HIDE = """
    (hidden) => {
        Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }
"""


pytestmark = pytest.mark.usefixtures("quick")


def test_the_list_follows_a_worker(visit: Visit, worker: None) -> None:
    """Locks of tasks appear and vanish without a reload of the page."""
    page = visit().open()
    expect(page.locator(".lock-none")).to_have_text("No lock is held.")
    page.evaluate("window.loadedOnce = true")
    import_products.delay(1)
    expect(row(page, "import:1")).to_contain_text("tests.apps.celery.browser.import_products")
    expect(page.locator("select[name=action]")).to_be_visible()
    import_products.delay(2)
    expect(row(page, "import:2")).to_be_visible()
    expect(page.locator(".lock-total")).to_have_text("2 held locks")
    with events() as client:
        client.rpush("end:1", "now")
    expect(row(page, "import:1")).to_have_count(0)
    expect(row(page, "import:2")).to_be_visible()
    with events() as client:
        client.rpush("end:2", "now")
    expect(page.locator(".lock-none")).to_have_text("No lock is held.")
    assert page.evaluate("window.loadedOnce") is True


def test_who_waits_is_counted(visit: Visit, hold: Hold) -> None:
    """A cell changes when its value does."""
    held = hold("busy", timeout=60)
    page = visit().open()
    expect(row(page, "busy").locator(".field-waiters")).to_have_text("0")
    waiting = Background(lambda: lock("busy", timeout=60, blocking_timeout=60).acquire())
    expect(row(page, "busy").locator(".field-waiters")).to_have_text("1")
    held.release()
    expect(row(page, "busy").locator(".field-waiters")).to_have_text("0")
    assert waiting.outcome()


def test_clocks_run_between_refreshes(
    visit: Visit, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases and hold times run on without requests to the server."""
    monkeypatch.setattr(admin.site.get_model_admin(HeldLock), "refresh_seconds", None)
    hold("fixed", timeout=3700)
    visitor = visit()
    page = visitor.page
    refreshes = visitor.count_refreshes()
    page.clock.install()
    visitor.open()
    held, left = (
        row(page, "fixed").locator(f".field-{name}") for name in ("held_for", "lease_left")
    )
    expect(left).to_have_text("1 h 1 min")
    page.clock.run_for(102_000)
    expect(left).to_have_text(re.compile(r"^59 min \d+ s$"))
    expect(held).to_have_text(re.compile(r"^1 min \d+ s$"))
    page.clock.run_for(4_000_000)
    expect(left).to_have_text("0 s")
    assert refreshes == []
    expect(page.locator("#held-locks-live")).to_be_hidden()


def test_ticks_focus_and_scroll_are_kept(visit: Visit, hold: Hold) -> None:
    """Updates leave ticks, focus and scroll position alone."""
    for number in range(40):
        hold(f"lock-{number:02}", timeout=600)
    gone = hold("zz-gone", timeout=600)
    visitor = visit(viewport={"width": 420, "height": 500})
    refreshes = visitor.count_refreshes()
    page = visitor.open(f"{LIST}?o=1")
    box(page, "lock-20").check()
    box(page, "lock-25").check()
    box(page, "lock-30").focus()
    box(page, "lock-30").scroll_into_view_if_needed()
    page.locator("select[name=action]").select_option("release_locks")
    box(page, "lock-30").focus()
    place = "(element) => Math.round(element.getBoundingClientRect().top)"
    before = row(page, "lock-30").evaluate(place)

    hold("aa-new", timeout=600)
    gone.release()
    expect(row(page, "aa-new")).to_have_count(1)
    expect(row(page, "zz-gone")).to_have_count(0)
    expect(page.locator(".action-counter")).to_have_text("2 of 41 selected")
    seen = len(refreshes)
    eventually(lambda: page.wait_for_timeout(10) or len(refreshes) > seen + 2)

    assert box(page, "lock-20").is_checked()
    assert box(page, "lock-25").is_checked()
    assert page.locator("input.action-select:checked").count() == 2
    assert page.locator("#result_list tr.selected").count() == 2
    expect(box(page, "lock-30")).to_be_focused()
    assert row(page, "lock-30").evaluate(place) == before
    assert page.locator("select[name=action]").input_value() == "release_locks"


def test_a_tick_does_not_pass_to_the_next_holder(visit: Visit, hold: Hold) -> None:
    """A tick for one holder does not count for the next."""
    first = hold("a", timeout=600)
    waiting = Background(lambda: lock("a", timeout=300, blocking_timeout=60).acquire())
    eventually(lambda: waiters("a") == 1)
    page = visit().open()
    box(page, "a").check()
    first.release()  # and so at no moment nobody's
    assert waiting.outcome()
    expect(row(page, "a").locator(".field-lease_left")).to_contain_text("4 min")
    expect(box(page, "a")).not_to_be_checked()
    expect(page.locator(".action-counter")).to_have_text("0 of 1 selected")


def test_selecting(visit: Visit, hold: Hold) -> None:
    """All at once, or a range with Shift that includes new rows."""
    for number in range(4):
        hold(f"lock-{number}", timeout=600)
    page = visit().open(f"{LIST}?o=1")
    hold("lock-4", timeout=600)
    expect(row(page, "lock-4")).to_be_visible()
    page.locator("#action-toggle").check()
    expect(page.locator(".action-counter")).to_have_text("5 of 5 selected")
    page.locator("#action-toggle").uncheck()
    expect(page.locator(".action-counter")).to_have_text("0 of 5 selected")
    box(page, "lock-1").click()
    box(page, "lock-4").click(modifiers=["Shift"])
    expect(page.locator(".action-counter")).to_have_text("4 of 5 selected")
    expect(page.locator("#action-toggle")).not_to_be_checked()
    box(page, "lock-0").click()
    expect(page.locator("#action-toggle")).to_be_checked()


@pytest.fixture
def slow(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refresh so seldom that only the test's clock triggers it."""
    monkeypatch.setattr(admin.site.get_model_admin(HeldLock), "refresh_seconds", 300)


@pytest.mark.usefixtures("slow")
def test_a_hidden_tab_rests(visit: Visit, hold: Hold) -> None:
    """A hidden tab sends no requests; when it is shown again, it refreshes at once."""
    held = hold("a", timeout=600)
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.open()
    expect(row(page, "a")).to_be_visible()
    refreshes = visitor.count_refreshes()
    page.evaluate(HIDE, True)
    page.clock.run_for(3_600_000)
    assert refreshes == []
    held.release()
    page.evaluate(HIDE, False)
    expect(row(page, "a")).to_have_count(0)
    assert len(refreshes) == 1


@pytest.mark.usefixtures("slow")
def test_the_page_refreshes_itself(visit: Visit, hold: Hold) -> None:
    """It does so at the given interval while the tab is visible."""
    hold("a", timeout=600)
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.open()
    refreshes = visitor.count_refreshes()
    for number in range(1, 4):
        hold(f"b:{number}", timeout=600)
        page.clock.run_for(301_000)
        expect(page.get_by_role("link", name=f"b:{number}")).to_be_visible()
        assert len(refreshes) == number


@pytest.mark.usefixtures("slow")
def test_the_reader_can_pause(visit: Visit, hold: Hold) -> None:
    """The button stops the updates, says so, and starts them again."""
    held = hold("a", timeout=600)
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.open()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Updating is paused.")).to_be_visible()
    refreshes = visitor.count_refreshes()
    held.release()
    page.clock.run_for(3_600_000)
    page.evaluate(HIDE, True)
    page.evaluate(HIDE, False)
    assert refreshes == []
    expect(row(page, "a")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(row(page, "a")).to_have_count(0)
    expect(page.get_by_text("This page keeps itself up to date.")).to_be_visible()


def test_text_of_other_programs_stays_text(visit: Visit, hold: Hold) -> None:
    """No name or metadata is executed, at first or after a refresh."""
    nasty = '"><img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'
    hold(nasty, timeout=600, metadata={nasty: nasty})
    page = visit().open()
    expect(row(page, nasty)).to_be_visible()
    hold(f"2{nasty}", timeout=600)
    expect(row(page, f"2{nasty}")).to_be_visible()
    row(page, nasty).locator("a").click()
    expect(page.locator("#held-locks")).to_contain_text(nasty)
    page.get_by_role("button", name="Release…").click()
    expect(page.locator("#content table")).to_contain_text(nasty)
    page.get_by_role("button", name="Release 1 lock").click()
    expect(page.locator(".messagelist")).to_contain_text(nasty)
    assert page.evaluate("window.pwned") is None


def test_the_policy_is_strict(visit: Visit) -> None:
    """All tests here run under it: no inline script, no inline style, nothing from elsewhere."""
    visitor = visit()
    response = visitor.page.goto(visitor.base + LIST)
    assert response is not None
    assert response.headers["content-security-policy"] == POLICY
    inline = "script:not([src]), style, [style], [onclick]"
    assert visitor.page.locator(f"#content :is({inline})").count() == 0


def test_a_viewer_has_nothing_to_click(visit: Visit, hold: Hold) -> None:
    """Without the permission to release there are no boxes; the list still updates."""
    hold("a", timeout=600)
    page = visit([VIEW]).open()
    expect(row(page, "a")).to_be_visible()
    assert page.locator("#changelist-form input[type=checkbox]").count() == 0
    assert page.locator("select[name=action]").count() == 0
    hold("b", timeout=600)
    expect(row(page, "b")).to_be_visible()
    row(page, "a").locator("a").click()
    expect(page.locator("#held-locks")).to_contain_text("Lease left")
    assert page.get_by_role("button", name="Release…").count() == 0


def test_staff_without_permission(visit: Visit, hold: Hold) -> None:
    """They see no link, and the address is refused."""
    hold("a", timeout=600)
    visitor = visit([])
    page = visitor.open("/admin/")
    assert page.get_by_text("Held locks").count() == 0
    response = page.goto(visitor.base + LIST)
    assert response is not None
    assert response.status == 403
    visitor.complaints.clear()  # the browser's own word on the 403


def test_the_page_of_a_lock_is_live_too(visit: Visit, hold: Hold) -> None:
    """Waiters and holders change, and the button goes with the last holder."""
    held = hold("busy", timeout=600)
    page = visit().open()
    row(page, "busy").locator("a").click()
    expect(page.get_by_role("button", name="Release…")).to_be_visible()
    waiting = Background(lambda: lock("busy", timeout=600, blocking_timeout=60).acquire())
    eventually(lambda: waiters("busy") == 1)
    expect(page.get_by_role("heading", name="Waiters")).to_be_visible()
    held.release()
    expect(page.get_by_role("heading", name="Waiters")).to_have_count(0)
    assert waiting.outcome()
    locks["default"].force_release("busy", by="grace", reason="enough")
    expect(page.get_by_text("Nobody holds this lock.")).to_be_visible()
    expect(page.get_by_role("button", name="Release…")).to_have_count(0)
    expect(page.locator(".lock-table", has_text="Recent audit entries")).to_contain_text("enough")
