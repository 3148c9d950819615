"""Releasing locks in the admin: confirmation, exactly what was shown, and what is told of it."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import connection

from django_redis_lock import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.operators import Outcome, Result
from example_project.embedded import EmbeddedServer
from tests.tools.admin import (
    LIST,
    MAY_RELEASE,
    RELEASE,
    VIEW,
    box_of,
    page_of,
    release,
    root,
    staff,
    told,
)
from tests.tools.console import held

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("server", "no_workers")]


def test_server_that_can_not_be_written_is_told_of_before(
    own_server: EmbeddedServer, settings: Any
) -> None:
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    held("a")
    browser, shown = staff(VIEW, MAY_RELEASE), box_of("a")
    assert "refuses writes" not in browser.get(LIST).content.decode()
    with redis.Redis.from_url(own_server.url()) as server:
        server.replicaof("127.0.0.1", 1)
        pages = [
            browser.get(LIST),
            browser.get(page_of("a")),
            browser.get(page_of("a free lock")),
            browser.get(f"{LIST}audit/"),
            browser.post(RELEASE, {"_selected_action": shown}),
        ]
    for page in pages:
        assert (
            "The server of LOCKS[&#x27;default&#x27;] refuses writes, so it releases no locks: "
            "You can&#x27;t write against a read only replica."
        ) in page.content.decode()


def test_each_lock_has_its_message_and_entries(client: redis.Redis) -> None:
    """Only what was shown is released: a new holder keeps its lock, and is named."""
    name, browser = "a_b:c?d#é%2F", staff(VIEW, MAY_RELEASE)
    held(name)
    former = {each: held(each) for each in ("changed", "gone")}
    client.set("lock:foreign", "xyz", px=60_000)
    shown = [box_of(each) for each in (name, "changed", "gone", "foreign")]
    for each in former.values():
        each.release()
    successor = held("changed")
    page = browser.post(RELEASE, {"_selected_action": shown[:2]})
    assert [row["hold"] for row in page.context["held"]] == shown[:1]
    assert page.context["changed"] == ["changed"]
    page = browser.post(RELEASE, {"_selected_action": shown[1]})
    assert "There is nothing to release." in page.content.decode()

    messages = told(release(browser, *shown, shown[0], reason="stuck since noon"))
    assert [(level, text.partition("”")[0]) for level, text in messages] == [
        ("success", f"Released “{name}"),
        ("warning", "Not released: “changed"),
        ("warning", "Not released: “gone"),
        ("success", "Released “foreign"),
    ]
    assert "” is now held by " in messages[1][1]
    assert messages[3][1] == "Released “foreign”, which another program held."
    assert (successor.owned(), locks["default"].history("changed")) == (True, [])
    (entry,) = locks["default"].history(name)
    assert (entry.by, entry.reason) == ("staff-view_heldlock-release_heldlock", "stuck since noon")
    logged = LogEntry.objects.get(object_id=HeldLock.of("default", name).pk)
    assert (logged.action_flag, "stuck since noon" in logged.change_message) == (CHANGE, True)
    page = browser.get(logged.get_admin_url())
    assert page.context["entries"][0]["reason"] == "stuck since noon"
    assert "stuck since noon" in browser.get(page_of(name, view="history")).content.decode()


def test_failing_log_of_the_admin_spoils_nothing(name: str) -> None:
    """A lock is released or a limit set though the database refuses the entry; the page says so."""
    handle = held(name)

    def refuse(execute: Any, sql: str, *args: Any) -> Any:
        if sql.startswith('INSERT INTO "django_admin_log"'):
            raise RuntimeError("no room")
        return execute(sql, *args)

    with connection.execute_wrapper(refuse):
        client = root()
        ((_, released),) = told(release(client, box_of(name)))
        limit = {"lock": HeldLock.of("default", name).pk, "limit": "3"}
        ((_, limited),) = told(client.post(f"{LIST}limit/", limit, follow=True))
    for message in (released, limited):
        assert "It could not be written to the admin's log: no room" in message
    assert limited.startswith("The limit is now 3. ")
    assert not handle.owned()
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    ("result", "told_of_it"),
    [
        (Result.REFUSED, "The server refused to release “{}”: OOM"),
        (Result.UNAVAILABLE, "It is not known whether “{}” was released: OOM"),
    ],
)
def test_what_a_server_refuses_or_does_not_answer(
    name: str, monkeypatch: pytest.MonkeyPatch, result: Result, told_of_it: str
) -> None:
    held(name)
    outcome = Outcome(HeldLock.of("default", name), result, error="OOM")
    monkeypatch.setattr("django_redis_lock.operators.release_shown", lambda *_, **__: [outcome])
    assert told(release(root(), box_of(name))) == [("error", told_of_it.format(name))]


def test_a_cross_site_post_is_refused(name: str) -> None:
    handle = held(name)
    client = root(enforce_csrf_checks=True)
    data = {"_selected_action": box_of(name), "action": "release_locks", "index": "0"}
    assert client.post(LIST, data).status_code == 403
    assert client.post(RELEASE, {**data, "confirmed": "yes"}).status_code == 403
    assert handle.owned()


def test_the_way_back_leads_nowhere_else() -> None:
    held("a/b?#")
    browser, shown = root(), {"_selected_action": box_of("a/b?#")}
    for filters in ("//evil.example/?x=1", "\r\nLocation: //evil.example/"):
        forged = {"from_lock": "//evil.example/", "filters": filters, "confirmed": "yes"}
        assert browser.post(RELEASE, {**shown, **forged}).url.startswith(f"{page_of('a/b?#')}?")
        assert browser.post(RELEASE, forged).url.startswith(f"{LIST}?")
