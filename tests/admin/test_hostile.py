"""The admin and what is not under its control: words of other programs, dead servers, languages."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from django_redis_lock import lock
from django_redis_lock.models import HeldLock
from tests.settings import server_url
from tests.tools.admin import LIST, RELEASE, box_of, hold_as, names, page_of, root

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("server", "no_workers")]


NASTY = "<script>alert(1)</script>"


def test_names_and_metadata_are_escaped(client: redis.Redis) -> None:
    """All that a program writes into a lock is text on every page."""
    origin = dict.fromkeys(("host", "thread", "task_id", "task_name"), NASTY)
    hold_as(client, NASTY, **origin, metadata={NASTY: NASTY})
    browser = root()
    released = {"_selected_action": box_of(NASTY), "confirmed": "yes", "reason": NASTY}
    pages = [
        browser.get(f"{LIST}?task={NASTY}&q={NASTY}"),
        browser.get(page_of(NASTY)),
        browser.post(RELEASE, {"_selected_action": box_of(NASTY)}),
        browser.post(RELEASE, {"_selected_action": HeldLock.of("default", NASTY, "0" * 16).hold}),
        browser.post(RELEASE, released, follow=True),
        browser.get(page_of(NASTY)),
        browser.get(page_of(NASTY, view="history")),
        browser.get(f"{LIST}audit/"),
        browser.get("/admin/"),
    ]
    for page in pages:
        text = page.content.decode()
        assert page.status_code == 200
        assert NASTY not in text
        assert "&lt;script&gt;" in text


def test_invisible_characters_are_shown(client: redis.Redis) -> None:
    hold_as(client, "a\u202eb", host="h\x1b[31m", thread="t\x00", metadata={"k\u2066": "v\x9b"})
    browser = root()
    for page in (browser.get(LIST), browser.get(page_of("a\u202eb"))):
        text = page.content.decode()
        assert ("a\\u202eb" in text, "h\\x1b[31m" in text) == (True, True)
        assert not any(character in text for character in "\u202e\x1b\x00\x9b\u2066")
    assert page.context["command"][4] == r"$'a\U0000202eb'"


def test_a_server_that_is_away_is_named_and_the_others_are_listed(
    name: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", ())
    settings.LOCKS = {
        "default": {"LOCATION": server_url()},
        "away": {"LOCATION": "redis://bob:s3cret@127.0.0.1:1/0"},
        "wrong": {"LOCATION": "ftp://bob:s3cret@nowhere"},
    }
    lock(name, timeout=60).acquire()
    client = root()
    page = client.get(LIST)
    assert page.status_code == 200
    assert names(page) == [name]
    text = page.content.decode()
    for alias in ("away", "wrong"):
        assert f"Locks of “{alias}” are not shown" in text
    searched = client.get(LIST, {"q": "nowhere"}).content.decode()
    assert "0 of 1 held lock" in searched
    assert "0 results" not in searched
    for path in (page_of("x", using="away"), page_of("x", using="wrong")):
        page = client.get(path)
        assert page.status_code == 200
        text += page.content.decode()
        assert "is not available" in page.content.decode()
    assert "s3cret" not in text
    page = client.post(RELEASE, {"_selected_action": HeldLock.of("away", "x", "0" * 16).hold})
    assert page.context["changed"] == []  # as far as is known


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({}, "Set LOCKS = {"),
        (["default"], "LOCKS must be a dict of aliases"),
        ({"default": {"LOCATION": "redis://127.0.0.1:1/0"}}, "Locks of “default” are not shown"),
    ],
)
def test_what_is_not_known_is_not_said(
    settings: Any, monkeypatch: pytest.MonkeyPatch, value: Any, told: str
) -> None:
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", ())
    browser = root()
    settings.LOCKS = value
    pages = [LIST, f"{LIST}audit/", *([page_of("a")] if told.startswith("Locks of") else [])]
    for page in pages:
        text = browser.get(page).content.decode()
        for said in ("0 held locks", "No locks are held.", "This lock is free.", "has no entries"):
            assert said not in text
        assert told in text
