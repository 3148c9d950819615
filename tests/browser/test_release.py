"""Releasing a lock in a browser: with the mouse, with the keyboard alone, without scripts."""

from __future__ import annotations

import os
import re
import shlex
import socket
from typing import Any

import pytest
from django.core.management import call_command
from playwright.sync_api import expect

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockLost
from tests.browser.window import Hold, Visit, box, choose_release, row
from tests.tools import Background, eventually, waiters
from tests.tools.admin import LIST, page_of


def test_a_release(visit: Visit, hold: Hold) -> None:
    """The holder loses the lock, the waiter gets it, and the audit says why."""
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
    expect(shown.locator(".lock-clock").first).to_have_text(re.compile(r"^\d+ s$"))
    assert held.owned()
    page.get_by_label("Reason").fill("hangs since noon")
    page.get_by_role("button", name="Release 1 lock").click()
    expect(page.locator(".messagelist .success")).to_contain_text("Released “stuck”")
    expect(page.locator(".messagelist .success")).to_contain_text("It went to ")
    assert page.url.endswith("?o=1")
    assert waiting.outcome()
    with pytest.raises(LockLost):
        held.ensure_held()
    row(page, "stuck").locator("a").click()
    expect(page.locator(".lock-table", has_text="Recent audit entries")).to_contain_text(
        "hangs since noon"
    )
    page.get_by_role("link", name="History").click()
    expect(page.locator("#content")).to_contain_text("hangs since noon")
    visitor.open("/admin/")
    page.locator("#recent-actions-module").get_by_role("link", name="stuck").click()
    expect(page.locator("#held-locks")).to_contain_text("hangs since noon")


def test_several_at_once_and_a_change_of_mind(visit: Visit, hold: Hold) -> None:
    """The way back leads to the unchanged list; nothing was released."""
    held = [hold(name, timeout=600) for name in ("a", "b", "c")]
    page = visit().open(f"{LIST}?o=-1")
    choose_release(page, "a", "c")
    expect(page.get_by_role("heading", name="Release held locks")).to_be_visible()
    expect(page.locator("#content tbody tr")).to_have_count(2)
    page.get_by_role("button", name="No, take me back").click()
    assert page.url.endswith("?o=-1")
    assert all(each.owned() for each in held)
    choose_release(page, "a", "c")
    page.get_by_role("button", name="Release 2 locks").click()
    expect(page.locator(".messagelist .success")).to_have_count(2)
    assert [each.owned() for each in held] == [False, True, False]


def test_the_way_back_to_the_page_of_a_lock(visit: Visit, hold: Hold) -> None:
    """The link and the release lead back to it, and from there Back leads to the filtered list."""
    held = hold("stuck", timeout=600)
    hold("other", timeout=600)
    page = visit().open(f"{LIST}?q=stuck&o=1")
    row(page, "stuck").locator("a").click()
    address = page.url
    assert "/change/" in address
    for press in ("No, take me back", "Release 1 lock"):
        assert held.owned()
        page.get_by_role("button", name="Release…").click()
        page.get_by_role("button", name=press).click()
        expect(page.locator("#held-locks")).to_be_visible()
        assert page.url == address
    assert not held.owned()
    expect(page.locator(".messagelist .success")).to_contain_text("Released “stuck”")
    expect(page.get_by_text("Nobody holds this lock.")).to_be_visible()


def test_the_holder_changes_before_the_click(visit: Visit, hold: Hold) -> None:
    """A page that was not refreshed releases only the holders that it shows."""
    first = hold("a", timeout=600)
    page = visit().open()
    page.get_by_role("button", name="Pause").click()
    box(page, "a").check()
    first.release()
    second = hold("a", timeout=600)
    choose_release(page, "a")
    expect(page.locator(".errornote")).to_contain_text("left alone: a")
    expect(page.get_by_text("There is nothing to release.")).to_be_visible()
    assert second.owned()


def test_the_holder_changes_before_the_confirmation(visit: Visit, hold: Hold) -> None:
    """The new holder keeps the lock, and the message names it."""
    first = hold("a", timeout=600)
    page = visit().open()
    choose_release(page, "a")
    first.release()
    second = hold("a", timeout=600)
    page.get_by_role("button", name="Release 1 lock").click()
    expect(page.locator(".messagelist .warning")).to_contain_text("Left “a” alone")
    assert second.owned()
    assert locks["default"].history() == []


def test_with_the_keyboard_alone(visit: Visit, hold: Hold) -> None:
    """Every step can be reached with Tab, in a sensible order."""
    held = hold("a", timeout=600)
    hold("b", timeout=600)
    page = visit().open(f"{LIST}?o=1")
    page.locator("select[name=action]").focus()
    page.keyboard.type("Release")
    focus_on = "(selector) => document.activeElement.matches(selector)"

    def tab_to(selector: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate(focus_on, selector):
                return
        pytest.fail(f"Tab does not lead to {selector}")

    tab_to("input.action-select")
    page.keyboard.press("Space")
    expect(page.locator(".action-counter")).to_have_text("1 of 2 selected")
    page.locator("select[name=action]").focus()
    tab_to("button[name=index]")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Release held locks")).to_be_visible()
    tab_to("input[name=reason]")
    page.keyboard.type("by keyboard")
    tab_to("input[name=confirmed]")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist .success")).to_contain_text("Released “a”")
    assert not held.owned()
    assert "by keyboard" in [entry.reason for entry in locks["default"].history("a")]


def test_enter_in_the_reason_confirms(visit: Visit, hold: Hold) -> None:
    """Enter sends the form that is on the screen."""
    held = hold("a", timeout=600)
    page = visit().open()
    choose_release(page, "a")
    page.get_by_label("Reason").fill("quick")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist .success")).to_contain_text("Released “a”")
    assert not held.owned()


def test_without_scripts(visit: Visit, hold: Hold) -> None:
    """Everything but the updates works, and nothing mentions them."""
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


@pytest.mark.parametrize("allowed", [True, False])
def test_the_command_is_copied(visit: Visit, hold: Hold, allowed: bool) -> None:
    """The button copies it to the clipboard, or selects it if that is not allowed."""
    held = hold("two words", timeout=600)
    visitor = visit(permissions=None)
    if allowed:
        visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    else:
        visitor.page.add_init_script(
            "Object.defineProperty(navigator, 'clipboard', { value: undefined });"
        )
    page = visitor.open(page_of("two words"))
    page.get_by_role("button", name="Copy").click()
    if allowed:
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        copied = page.evaluate("navigator.clipboard.readText()")
    else:
        copied = page.evaluate("window.getSelection().toString()")
    holder = locks["default"].holder("two words")
    assert holder is not None
    words = ["release", "two words", "--token-id", holder.token_id, "--using", "default"]
    assert shlex.split(copied) == ["python", "manage.py", "locks", *words]
    call_command("locks", *words, "--noinput")
    assert not held.owned()


def test_a_reason_that_is_required(visit: Visit, hold: Hold, settings: Any) -> None:
    """The browser asks for it, and the site checks it."""
    entry = {**settings.LOCKS["default"], "OPERATORS": {"REASON_REQUIRED": True}}
    settings.LOCKS = {"default": entry}
    held = hold("a", timeout=600)
    page = visit().open()
    choose_release(page, "a")
    reason = page.get_by_label("Reason")
    expect(reason).to_have_attribute("required", "")
    expect(page.get_by_text("Required; kept in the audit.")).to_be_visible()
    reason.fill("   ")
    page.get_by_role("button", name="Release 1 lock").click()
    expect(page.locator("#id_reason_error")).to_be_visible()
    expect(reason).to_have_attribute("aria-invalid", "true")
    assert held.owned()
    reason.fill("hangs")
    page.get_by_role("button", name="Release 1 lock").click()
    expect(page.locator(".messagelist .success")).to_contain_text("Released “a”")
