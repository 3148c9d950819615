"""What a page shows of what is not known any more: what was known, marked, with the time."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib import admin
from playwright.sync_api import Page, Route, expect

from django_redis_lock import lock
from django_redis_lock.models import HeldLock
from example_project.embedded import EmbeddedServer
from tests.browser.window import Hold, Visit, box, row
from tests.settings import REDIS, server_url
from tests.tools.admin import LIST, page_of

STALE = re.compile(r"\block-stale\b")
TIME = r"\w+\.? \d+, \d{4}, \d\d:\d\d:\d\d [A-Z]+"
FAILED = re.compile(f"The last update failed, so this page shows what was known at {TIME}")


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())


@pytest.fixture
def two_servers(settings: Any, own_server: EmbeddedServer) -> EmbeddedServer:
    """One alias on the session's server, and another on one that can go away."""
    settings.LOCKS = {
        "default": {"BACKEND": REDIS, "LOCATION": server_url()},
        "far": {"BACKEND": REDIS, "LOCATION": own_server.url()},
    }
    return own_server


def live(page: Page, respond: Any) -> None:
    def route(asked: Route) -> None:
        respond(asked) if "x-held-locks" in asked.request.headers else asked.continue_()

    page.route("**", route)


def test_the_site_is_down(visit: Visit, hold: Hold) -> None:
    """Rows and ticks stay, greyed, with the time; then all is as before."""
    hold("a", timeout=600)
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.open()
    box(page, "a").check()
    live(page, lambda asked: asked.abort())
    expect(page.get_by_text(FAILED)).to_be_visible()
    expect(page.locator("#held-locks")).to_have_class(STALE)
    expect(box(page, "a")).to_be_checked()
    clock = row(page, "a").locator(".field-lease_left .lock-clock")
    stands_at = clock.inner_text()
    page.clock.run_for(30_000)
    assert clock.inner_text() == stands_at
    page.unroute_all(behavior="wait")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text(FAILED)).to_be_hidden()
    expect(page.locator("#held-locks")).not_to_have_class(STALE)
    expect(box(page, "a")).to_be_checked()
    aborted = "Failed to load resource: net::ERR_FAILED"
    visitor.complaints[:] = [text for text in visitor.complaints if text != aborted]


def test_the_site_hangs(visit: Visit, hold: Hold) -> None:
    """The page says so after a while, takes the late answer, and refreshes soon after it."""
    hold("a", timeout=600)
    visitor = visit()
    page = visitor.page
    page.clock.install()
    hanging: list[Route] = []
    live(page, hanging.append)
    with page.expect_request(lambda asked: "x-held-locks" in asked.headers):
        visitor.open()
    page.clock.run_for(5_000)
    expect(page.locator("#held-locks")).not_to_have_class(STALE)
    page.clock.run_for(300_000)
    expect(page.get_by_text(FAILED)).to_be_visible()
    expect(page.locator("#held-locks")).to_have_class(STALE)
    hanging[0].continue_()
    expect(page.get_by_text(FAILED)).to_be_hidden()
    expect(page.locator("#held-locks")).not_to_have_class(STALE)
    with page.expect_request(lambda asked: "x-held-locks" in asked.headers):
        page.clock.run_for(61_000)


def test_a_login_that_has_ended(visit: Visit, hold: Hold) -> None:
    """The page says so, links back to itself, and stops refreshing."""
    hold("a", timeout=600)
    visitor = visit()
    page = visitor.open(f"{LIST}?o=1")
    expect(row(page, "a")).to_be_visible()
    refreshes = visitor.count_refreshes()
    visitor.context.clear_cookies()
    again = page.get_by_role("link", name="Log in again")
    expect(again).to_be_visible()
    expect(page.get_by_text("Your login has ended")).to_be_visible()
    expect(row(page, "a")).to_be_visible()
    expect(page.locator("#held-locks")).to_have_class(STALE)
    seen = len(refreshes)
    page.wait_for_timeout(500)
    assert len(refreshes) == seen
    again.click()
    assert page.url.endswith(f"/admin/login/?next={LIST}%3Fo%3D1")
    visitor.complaints[:] = [text for text in visitor.complaints if "401" not in text]


def test_the_server_says_how_often(
    visit: Visit, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer sets the interval: expensive pages refresh less often."""
    monkeypatch.setattr(admin.site.get_model_admin(HeldLock), "refresh_seconds", 300)
    hold("a", timeout=600)
    visitor = visit()
    page = visitor.page
    page.clock.install()

    def respond(asked: Route) -> None:
        answer = asked.fetch()
        asked.fulfill(response=answer, headers={**answer.headers, "x-held-locks-every": "900"})

    live(page, respond)
    visitor.open()
    refreshes = visitor.count_refreshes()
    for number in (1, 2):
        hold(f"later-{number}", timeout=600)
        page.clock.run_for(301_000)
        expect(row(page, f"later-{number}")).to_be_visible()
        assert len(refreshes) == number
        page.clock.run_for(599_000)
        assert len(refreshes) == number


def test_a_backend_goes_silent(visit: Visit, hold: Hold, two_servers: EmbeddedServer) -> None:
    """Its rows stay, greyed and ticked; those of the others update."""
    near = hold("b-near", timeout=600)
    for name in ("a-far", "c-far"):
        assert lock(name, timeout=600, using="far").acquire()
    page = visit().open(f"{LIST}?o=1")
    box(page, "a-far").check()
    two_servers.kill()
    expect(page.locator(".lock-problem")).to_contain_text("The backend “far” can't be asked")
    shown = re.compile(f"It is shown as it was at {TIME}")
    expect(page.locator(".lock-problem")).to_contain_text(shown)
    expect(page.locator(".field-lock bdi")).to_have_text(["a-far", "b-near", "c-far"])
    expect(row(page, "a-far")).to_have_class(STALE)
    expect(row(page, "b-near")).not_to_have_class(STALE)
    expect(box(page, "a-far")).to_be_checked()
    stands = row(page, "a-far").locator(".field-held_for").inner_text()
    near.release()
    expect(row(page, "b-near")).to_have_count(0)
    expect(page.locator(".lock-total")).to_have_text("How many locks are held is not known.")
    expect(page.locator(".field-lock bdi")).to_have_text(["a-far", "c-far"])
    expect(box(page, "a-far")).to_be_checked()
    expect(page.locator("select[name=action]")).to_be_visible()
    assert row(page, "a-far").locator(".field-held_for").inner_text() == stands
    two_servers.restart()
    expect(page.locator(".lock-problem")).to_have_count(0)
    expect(page.locator(".lock-stale")).to_have_count(0)
    assert lock("after", timeout=600, using="far").acquire()
    expect(page.locator(".field-lock bdi")).to_have_text(["after"])


def test_the_page_of_a_lock_goes_silent(visit: Visit, two_servers: EmbeddedServer) -> None:
    """The last known state stays, greyed; the page does not claim that the lock is free."""
    assert lock("a", timeout=600, using="far").acquire()
    visitor = visit()
    page = visitor.open(page_of("a", "far"))
    expect(page.get_by_text("no forced release")).to_be_visible()
    two_servers.kill()
    expect(page.locator(".lock-problem")).to_contain_text("It is shown as it was at ")
    expect(page.locator("#lock-known")).to_have_class(STALE)
    expect(page.locator("#lock-known")).to_contain_text("Token id")
    expect(page.get_by_role("button", name="Release…")).to_be_visible()
    page.reload()
    expect(page.locator(".lock-problem")).to_contain_text("so what it holds is not known")
    expect(page.locator(".lock-as-of")).to_be_hidden()
    for false in ("Nobody holds this lock", "no forced release", "Token id"):
        expect(page.get_by_text(false)).to_have_count(0)
    two_servers.restart()
    expect(page.get_by_text("Nobody holds this lock.")).to_be_visible()
    expect(page.locator("#lock-known")).not_to_have_class(STALE)


def test_opened_while_a_server_is_silent(visit: Visit, two_servers: EmbeddedServer) -> None:
    """No number is claimed that is not known; the list fills once the server answers."""
    two_servers.kill()
    page = visit().open()
    expect(page.locator(".lock-total")).to_have_text("How many locks are held is not known.")
    expect(page.locator(".lock-as-of")).to_be_hidden()
    expect(page.get_by_text("No lock is held")).to_have_count(0)
    expect(page.get_by_text("0 held locks")).to_have_count(0)
    two_servers.restart()
    expect(page.locator(".lock-total")).to_have_text("0 held locks")
