"""Releasing locks in the admin: confirmation, exactly what was shown, and what is told of it."""

from __future__ import annotations

import re
from html import escape, unescape
from typing import Any

import pytest
import redis
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import connection

from django_redis_lock import Lock, lock, locks
from django_redis_lock.admin.live import HEADER
from django_redis_lock.exceptions import LockLost
from django_redis_lock.models import HeldLock
from django_redis_lock.support.arguments import MAX_TEXT_LENGTH
from example_project.embedded import EmbeddedServer
from tests.settings import REDIS, server_url
from tests.tools import Background, counted, eventually, waiters
from tests.tools.admin import (
    LIST,
    MAY_RELEASE,
    RELEASE,
    VIEW,
    hold_as,
    page_of,
    release,
    root,
    staff,
    ticket,
    told,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("server", "no_workers")]


def holding(name: str, **options: Any) -> Lock:
    held = lock(name, timeout=60, **options)
    assert held.acquire(blocking=False)
    return held


def test_server_that_can_not_be_written_is_told_of_before(
    own_server: EmbeddedServer, settings: Any
) -> None:
    """The list, the lock's page and the confirmation warn; the server is asked once."""
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    holding("a")
    browser, shown = staff(VIEW, MAY_RELEASE), ticket("a")
    assert "read-only replica" not in browser.get(LIST).content.decode()
    with redis.Redis.from_url(own_server.url()) as server:
        server.replicaof("127.0.0.1", 1)
        settings.LOCKS = {"default": {"LOCATION": own_server.url()}}  # what was told is forgotten
        with counted(server) as commands:
            pages = [
                browser.get(LIST),
                browser.get(LIST, headers={HEADER: "live"}),
                browser.get(page_of("a")),
                browser.post(RELEASE, {"_selected_action": shown}),
            ]
    for page in pages:
        assert (
            "The server of “default” is a read-only replica: nothing can be released there."
        ) in page.content.decode()
    assert commands["info"] == 1


def test_from_the_list_to_the_release(name: str) -> None:
    """Tick, choose the action, read who would lose what, confirm, and see the result."""
    held, other = holding(name), holding("other")
    client = staff(VIEW, MAY_RELEASE)
    assert ticket(name) in client.get(LIST).content.decode()

    data = {"_selected_action": ticket(name), "action": "release_locks", "index": "0"}
    page = client.post(f"{LIST}?o=1&waiting=no", data)
    assert page.status_code == 200
    ((shown,), text) = page.context["held"], page.content.decode()
    assert shown["name"] == name
    assert f'value="{ticket(name)}"' in text
    assert "other" not in text
    assert held.owned()
    assert locks["default"].history() == []

    data = {"_selected_action": str(shown["ticket"]), "confirmed": "x", "reason": " it hangs "}
    page = client.post(RELEASE, {**data, "filters": page.context["filters"]}, follow=True)
    assert page.redirect_chain == [(f"{LIST}?o=1&waiting=no", 302)]
    ((level, message),) = told(page)
    assert level == "success"
    assert message.startswith(f"Released “{name}”, which ")
    assert re.search(r" had held for \d+ s\.$", message)
    with pytest.raises(LockLost):
        held.ensure_held()
    other.release()


def test_from_the_page_of_the_lock(name: str) -> None:
    """The button on the page leads to the same confirmation."""
    held = holding(name)
    client = root()
    text = client.get(page_of(name)).content.decode()
    assert f'action="{RELEASE}"' in text
    assert f'name="_selected_action" value="{ticket(name)}"' in text
    page = client.post(RELEASE, {"_selected_action": ticket(name)})
    assert [shown["name"] for shown in page.context["held"]] == [name]
    assert held.owned()


def test_it_is_written_down(name: str) -> None:
    """The audit, the lock's page and the admin's log say who released the lock, and why."""
    holding(name)
    client = staff(VIEW, MAY_RELEASE)
    release(client, ticket(name), reason="stuck since noon")
    (entry,) = locks["default"].history(name)
    assert (entry.by, entry.reason) == ("staff-view_heldlock-release_heldlock", "stuck since noon")
    logged = LogEntry.objects.get()
    assert logged.action_flag == CHANGE
    assert logged.object_id == HeldLock.of("default", name).pk
    assert "stuck since noon" in logged.change_message
    assert client.get(logged.get_admin_url()).context["entries"][0]["reason"] == "stuck since noon"
    assert "stuck since noon" in client.get(page_of(name, view="history")).content.decode()


def test_failing_log_of_the_admin_spoils_nothing(name: str) -> None:
    """A lock is released though the database refuses the entry, and the page says so."""
    held = holding(name)

    def refuse(execute: Any, sql: str, *args: Any) -> Any:
        if sql.startswith('INSERT INTO "django_admin_log"'):
            raise RuntimeError("no room")
        return execute(sql, *args)

    with connection.execute_wrapper(refuse):
        ((_, message),) = told(release(root(), ticket(name)))
    assert "It is not in the admin's log: no room" in message
    assert not held.owned()
    assert not LogEntry.objects.exists()


def test_the_lock_goes_to_who_waits(name: str) -> None:
    """The message names the new holder."""
    holding(name)
    waiting = Background(lambda: lock(name, timeout=60, blocking_timeout=60).acquire())
    eventually(lambda: waiters(name) == 1)
    page = release(root(), ticket(name))
    assert waiting.outcome()
    holder = locks["default"].holder(name)
    assert holder is not None
    ((_, message),) = told(page)
    assert message.endswith(f" It went to {holder.host}:{holder.pid}.")


def test_the_holder_changes_between_the_list_and_the_click(name: str) -> None:
    """The new holder keeps the lock, at the confirmation and after it."""
    held = holding(name)
    old = ticket(name)
    client = root()
    confirmation = client.post(RELEASE, {"_selected_action": old})
    assert [shown["name"] for shown in confirmation.context["held"]] == [name]
    held.release()
    successor = holding(name)

    page = client.post(RELEASE, {"_selected_action": old})
    assert page.context["held"] == []
    assert page.context["changed"] == [name]
    assert "There is nothing to release." in page.content.decode()

    ((level, message),) = told(release(client, old))
    assert level == "warning"
    assert message.startswith(f"Left “{name}” alone: it has changed hands, to ")
    assert successor.owned()
    assert locks["default"].history() == []


def test_each_lock_has_its_message(client: redis.Redis) -> None:
    """Released, changed hands, already free, or unavailable: each has a message."""
    for name in ("released", "changed", "gone"):
        holding(name)
    client.set("lock:foreign", "xyz", px=60_000)
    changed, gone = ticket("changed"), ticket("gone")
    for name in ("changed", "gone"):
        locks["default"].force_release(name)
    holding("changed")
    shown = [ticket("released"), changed, gone, ticket("foreign")]
    messages = told(release(root(), *shown, shown[0]))
    assert [(level, text.partition("”")[0]) for level, text in messages] == [
        ("success", "Released “released"),
        ("warning", "Left “changed"),
        ("warning", "Nothing to release: nobody held “gone"),
        ("success", "Released “foreign"),
    ]
    assert messages[3][1] == "Released “foreign”, which another program held."


def test_a_server_that_goes_away_before_the_confirmation(
    own_server: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says so for each of its locks; those of other servers are released."""
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())
    settings.LOCKS = {
        "default": {"BACKEND": REDIS, "LOCATION": server_url()},
        "away": {"BACKEND": REDIS, "LOCATION": own_server.url()},
    }
    holding("a", using="away")
    holding("b")
    shown = [ticket("a", using="away"), ticket("b")]
    own_server.kill()
    page = release(root(), *shown)
    assert page.status_code == 200
    assert [level for level, _ in told(page)] == ["error", "success"]


def test_a_cross_site_post_is_refused(name: str) -> None:
    held = holding(name)
    client = root(enforce_csrf_checks=True)
    data = {"_selected_action": ticket(name), "action": "release_locks", "index": "0"}
    assert client.post(LIST, data).status_code == 403
    assert client.post(RELEASE, {**data, "confirmed": "yes"}).status_code == 403
    assert held.owned()


def test_an_action_without_a_ticked_box(name: str) -> None:
    """Nothing happens, and Django says so, whatever the form claims to have selected."""
    held = holding(name)
    client = root()
    for more in ({}, {"select_across": "1"}):
        data = {"action": "release_locks", "index": "0", **more}
        page = client.post(LIST, data, follow=True)
        assert [level for level, _ in told(page)] == ["warning"]
    assert held.owned()


def test_a_reason_that_is_too_long(name: str) -> None:
    """The field limits it; a forged form is refused, and nothing is released."""
    held = holding(name)
    client = root()
    page = client.post(RELEASE, {"_selected_action": ticket(name)})
    assert f'maxlength="{MAX_TEXT_LENGTH}"' in page.content.decode()
    data = {"_selected_action": ticket(name), "confirmed": "yes"}
    assert client.post(RELEASE, {**data, "reason": "x" * (MAX_TEXT_LENGTH + 1)}).status_code == 400
    assert held.owned()


def test_the_way_back_keeps_the_filters_and_leads_nowhere_else(name: str) -> None:
    """Whatever a form sends as filters is used as a query string only."""
    holding(name)
    client = root()
    data = {"_selected_action": ticket(name), "confirmed": "yes"}
    for filters in ("//evil.example/?x=1", "\r\nLocation: //evil.example/"):
        assert client.post(RELEASE, {**data, "filters": filters}).url.startswith(f"{LIST}?")


@pytest.mark.parametrize("path", [LIST, page_of("a/b?#", view="change")])
def test_the_way_back_leads_where_one_came_from(path: str) -> None:
    """To the list or to the lock's page, with its query, by the link and after the release."""
    holding("a/b?#")
    browser, came_from = root(), f"{path}?q=b&o=1&p=1"
    shown = {"_selected_action": ticket("a/b?#")}
    if path == LIST:
        asked = browser.post(came_from, {**shown, "action": "release_locks", "index": "0"})
    else:
        form = browser.get(came_from).content.decode().split(f'action="{RELEASE}"')[1]
        given = re.findall(r'name="(from_lock|filters)" value="([^"]*)"', form)
        asked = browser.post(RELEASE, {**shown, **{key: unescape(text) for key, text in given}})
    assert asked.context["back_url"] == came_from
    assert f'href="{escape(came_from)}"' in asked.content.decode()
    fields = {"filters": asked.context["filters"]}
    if path != LIST:
        fields["from_lock"] = "yes"
    left = browser.post(RELEASE, {**shown, **fields, "confirmed": "yes"})
    assert (left.status_code, left.url) == (302, came_from)
    assert locks["default"].holder("a/b?#") is None
    forged = {"from_lock": "//evil.example/", "filters": "/evil.example/", "confirmed": "yes"}
    assert browser.post(RELEASE, {**shown, **forged}).url.startswith(f"{page_of('a/b?#')}?")
    assert browser.post(RELEASE, forged).url.startswith(f"{LIST}?")


def test_many_at_once(client: redis.Redis) -> None:
    for number in range(100):
        hold_as(client, f"n-{number:03}")
    browser = root()
    shown = [ticket(f"n-{number:03}") for number in range(100)]
    page = browser.post(RELEASE, {"_selected_action": shown})
    assert "Release 100 locks" in page.content.decode()
    page = release(browser, *shown)
    assert len(told(page)) == 100
    assert list(locks["default"].holders()) == []
