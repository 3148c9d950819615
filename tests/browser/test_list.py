"""The pages in a browser: they follow what happens, and leave the reader in peace."""

from __future__ import annotations

import pytest
from django.contrib import admin
from playwright.sync_api import expect

from django_redis_lock import lock, locks
from django_redis_lock.models import HeldLock
from tests.browser.window import Hold, Visit, box, row
from tests.tools import Background, eventually, waiters
from tests.tools.admin import LIST

HIDE = """
    (hidden) => {
        Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }
"""
RUNNING = "This page updates itself."
RESTING = "Updates are paused while locks or text are selected."
FAILED = "The last update failed, so this page may be outdated."


pytestmark = pytest.mark.usefixtures("quick")


def test_the_list_follows(visit: Visit, hold: Hold) -> None:
    page = visit().open()
    expect(page.locator(".lock-none")).to_have_text("No locks are held.")
    page.evaluate("window.loadedOnce = true")
    held = hold("busy", timeout=60)
    expect(row(page, "busy").locator(".field-waiters")).to_have_text("0")
    expect(page.locator("select[name=action]")).to_be_visible()
    waiting = Background(lambda: lock("busy", timeout=60, blocking_timeout=60).acquire())
    expect(row(page, "busy").locator(".field-waiters")).to_have_text("1")
    expect(page.locator("#lock-summary")).to_contain_text("1 held lock 1 waiting")
    held.release()
    assert waiting.outcome()
    locks["default"].force_release("busy")
    expect(page.locator(".lock-none")).to_have_text("No locks are held.")
    assert page.evaluate("window.loadedOnce") is True


def test_the_page_of_a_lock_follows(visit: Visit, hold: Hold) -> None:
    held = hold("busy", timeout=600)
    page = visit().open()
    row(page, "busy").locator("a").click()
    expect(page.get_by_role("button", name="Release…")).to_be_visible()
    expect(page.get_by_text("Alive")).to_be_visible()
    expect(page.get_by_role("progressbar", name="Lease left")).to_be_visible()
    page.get_by_text("Recent audit entries").click()
    waiting = Background(lambda: lock("busy", timeout=600, blocking_timeout=60).acquire())
    eventually(lambda: waiters("busy") == 1)
    expect(page.get_by_text("Waiter", exact=True)).to_have_count(1)
    held.release()
    expect(page.get_by_text("Waiter", exact=True)).to_have_count(0)
    assert waiting.outcome()
    locks["default"].force_release("busy", by="grace", reason="enough")
    expect(page.get_by_text("This lock is free.")).to_be_visible()
    for gone in ("Alive", "Token id"):
        expect(page.get_by_text(gone)).to_have_count(0)
    expect(page.get_by_role("button", name="Release…")).to_have_count(0)
    expect(page.get_by_text("enough")).to_be_visible()


def test_updates_rest_while_something_is_ticked(visit: Visit, hold: Hold) -> None:
    hold("lock-0", timeout=600)
    page = visit().open(f"{LIST}?o=1")
    for number in range(1, 5):
        hold(f"lock-{number}", timeout=600)
    expect(row(page, "lock-4")).to_be_visible()
    box(page, "lock-1").click()
    expect(page.get_by_text(RESTING)).to_be_visible()
    hold("lock-5", timeout=600)
    box(page, "lock-4").click(modifiers=["Shift"])
    expect(page.locator(".action-counter")).to_have_text("4 of 5 selected")
    assert page.locator("#result_list tr.selected").count() == 4
    page.locator("#action-toggle").check()
    expect(page.locator(".action-counter")).to_have_text("5 of 5 selected")
    expect(row(page, "lock-5")).to_have_count(0)
    page.locator("#action-toggle").uncheck()
    expect(row(page, "lock-5")).to_be_visible()
    expect(page.get_by_text(RUNNING)).to_be_visible()


def test_the_focus_is_kept(visit: Visit, hold: Hold) -> None:
    gone, _ = hold("a", timeout=600), hold("b", timeout=600)
    page = visit().open(f"{LIST}?o=1")
    row(page, "b").locator("a").focus()
    gone.release()
    expect(row(page, "a")).to_have_count(0)
    expect(row(page, "b").locator("a")).to_be_focused()


@pytest.fixture
def slow(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refresh so seldom that only the test's clock triggers it."""
    monkeypatch.setattr(admin.site.get_model_admin(HeldLock), "refresh_seconds", 300)


@pytest.mark.usefixtures("slow")
def test_a_hidden_tab_and_a_paused_page_rest(visit: Visit, hold: Hold) -> None:
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.open()
    refreshes = visitor.count_refreshes()
    hold("a", timeout=600)
    page.clock.run_for(301_000)
    expect(row(page, "a")).to_be_visible()
    assert len(refreshes) == 1
    page.evaluate(HIDE, True)
    hold("b", timeout=600)
    page.clock.run_for(3_600_000)
    assert len(refreshes) == 1
    page.evaluate(HIDE, False)
    expect(row(page, "b")).to_be_visible()
    page.get_by_role("button", name="Pause updates").click()
    expect(page.get_by_text("Updates are paused.")).to_be_visible()
    hold("c", timeout=600)
    page.clock.run_for(3_600_000)
    assert len(refreshes) == 2
    page.get_by_role("button", name="Resume updates").click()
    expect(row(page, "c")).to_be_visible()
    expect(page.get_by_text(RUNNING)).to_be_visible()


def test_the_site_is_down(visit: Visit, hold: Hold) -> None:
    hold("a", timeout=600)
    visitor = visit()
    page = visitor.open()
    page.route("**", lambda asked: asked.abort())
    expect(page.get_by_text(FAILED)).to_be_visible()
    expect(page.locator("#held-locks.lock-stale")).to_contain_text("a")
    page.unroute_all(behavior="wait")
    expect(page.get_by_text(FAILED)).to_be_hidden()
    expect(page.locator("#held-locks.lock-stale")).to_have_count(0)
    aborted = "Failed to load resource: net::ERR_FAILED"
    visitor.complaints[:] = [text for text in visitor.complaints if text != aborted]


def test_a_login_that_has_ended(visit: Visit, hold: Hold) -> None:
    hold("a", timeout=600)
    visitor = visit()
    page = visitor.open(f"{LIST}?o=1")
    visitor.context.clear_cookies()
    expect(page.locator("#id_username")).to_be_visible()
    assert page.url.endswith(f"/admin/login/?next={LIST}%3Fo%3D1")
