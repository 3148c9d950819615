"""Releasing a lock in a browser: with the mouse, with the keyboard alone, without scripts."""

from __future__ import annotations

import os
import socket

import pytest
from playwright.sync_api import expect

from django_redis_lock import lock, locks, semaphore
from django_redis_lock.exceptions import LockLost
from tests.browser.window import Hold, Visit, choose_release, row
from tests.tools import Background, eventually, waiters
from tests.tools.admin import LIST, page_of


def test_a_release(visit: Visit, hold: Hold) -> None:
    held = hold("stuck", timeout=600, metadata={"order": "8b1f"})
    hold("other", timeout=600)
    waiting = Background(lambda: lock("stuck", timeout=600, blocking_timeout=60).acquire())
    eventually(lambda: waiters("stuck") == 1)
    visitor = visit()
    page = visitor.open(f"{LIST}?o=1")
    choose_release(page, "stuck")
    expect(page.get_by_role("heading", name="Release held locks")).to_be_visible()
    (shown,) = page.locator("#content tbody tr").all()
    expect(shown).to_contain_text("stuck")
    expect(shown).to_contain_text(f"{socket.gethostname()}:{os.getpid()}")
    assert held.owned()
    page.get_by_label("Reason").fill("hangs since noon")
    page.get_by_role("button", name="Release 1 lock").click()
    expect(page.locator(".messagelist .success")).to_contain_text("Released “stuck”")
    expect(page.locator(".messagelist .success")).to_contain_text("It is now held by ")
    assert page.url.endswith("?o=1")
    assert waiting.outcome()
    with pytest.raises(LockLost):
        held.ensure_held()
    row(page, "stuck").locator("a").click()
    expect(page.locator("#lock-audit")).to_contain_text("hangs since noon")
    page.get_by_role("link", name="History").click()
    expect(page.locator("#content")).to_contain_text("hangs since noon")
    visitor.open("/admin/")
    page.locator("#recent-actions-module").get_by_role("link", name="stuck").click()
    expect(page.locator("#held-locks")).to_contain_text("hangs since noon")


def test_a_change_of_mind_and_the_way_back(visit: Visit, hold: Hold) -> None:
    held = [hold(name, timeout=600) for name in ("a", "b", "c")]
    page = visit().open(f"{LIST}?o=-1")
    for press in ("No, take me back", "Release 2 locks"):
        choose_release(page, "a", "c")
        expect(page.locator("#content tbody tr")).to_have_count(2)
        assert all(each.owned() for each in held)
        page.get_by_role("button", name=press).click()
        assert page.url.endswith("?o=-1")
    assert [each.owned() for each in held] == [False, True, False]
    row(page, "b").locator("a").click()
    address = page.url
    for press in ("No, take me back", "Release 1 lock"):
        assert held[1].owned()
        page.get_by_role("button", name="Release…").click()
        page.get_by_role("button", name=press).click()
        expect(page.locator("#held-locks")).to_be_visible()
        assert page.url == address
    expect(page.get_by_text("This lock is free.")).to_be_visible()


@pytest.mark.usefixtures("quick")
def test_one_of_several_holders_and_the_limit(visit: Visit) -> None:
    taken = [semaphore("render", 3, timeout=600) for _ in range(3)]
    assert all(permit.acquire() for permit in taken)
    page = visit().open(page_of("render"))
    page.get_by_label("Limit").fill("2")
    page.get_by_role("button", name="Set limit").click()
    expect(page.locator(".messagelist .success")).to_have_text("The limit is now 2.")
    expect(page.locator("#lock-now")).to_contain_text("3 of 2")
    page.get_by_role("button", name="Release…").nth(1).click(delay=1000)  # and refreshes meanwhile
    page.get_by_role("button", name="Release 1 lock").click()
    expect(page.locator("#lock-holders tbody tr")).to_have_count(2)
    assert [permit.owned() for permit in taken].count(False) == 1
    page.get_by_role("button", name="Clear limit").click()
    expect(page.locator("#lock-now")).to_contain_text("2 of 3")
    locks["default"].set_limit("render", 0, by="grace")  # while the page is open
    page.get_by_role("button", name="Clear limit").click()
    expect(page.locator("#lock-now")).to_contain_text("2 of 3")


def test_with_the_keyboard_alone(visit: Visit, hold: Hold) -> None:
    held = hold("a", timeout=600)
    hold("b", timeout=600)
    page = visit().open(f"{LIST}?o=1")

    def tab_to(selector: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.locator(f"{selector}:focus").count():
                return
        pytest.fail(f"Tab does not lead to {selector}")

    tab_to("select[name=action]")
    page.keyboard.type("Release")
    tab_to("button[name=index]")
    tab_to("input.action-select")
    page.keyboard.press("Space")
    expect(page.locator(".action-counter")).to_have_text("1 of 2 selected")
    page.locator("button[name=index]").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Release held locks")).to_be_visible()
    tab_to("input[name=reason]")
    page.keyboard.type("by keyboard")
    tab_to("input[name=confirmed]")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist .success")).to_contain_text("Released “a”")
    assert not held.owned()
    assert "by keyboard" in [entry.reason for entry in locks["default"].history("a")]


def test_without_scripts(visit: Visit, hold: Hold) -> None:
    held = hold("apple", timeout=650)
    other = hold("berry", timeout=600)
    page = visit(java_script_enabled=False).open(f"{LIST}?o=1")
    expect(row(page, "apple").locator(".field-lease_left")).to_contain_text("10 min")
    expect(page.locator("#held-locks-live")).to_be_hidden()
    page.locator("#searchbar").fill("apple")
    page.get_by_role("button", name="Search").click()
    expect(row(page, "berry")).to_have_count(0)
    choose_release(page, "apple")
    page.get_by_role("button", name="Release 1 lock").click()
    expect(page.locator(".messagelist .success")).to_contain_text("Released “apple”")
    assert not held.owned()
    page.goto(page.url.partition("?")[0])
    row(page, "berry").locator("a").click()
    page.get_by_role("button", name="Release…").click()
    page.get_by_role("button", name="Release 1 lock").click()
    expect(page.locator(".messagelist .success")).to_contain_text("Released “berry”")
    assert not other.owned()
