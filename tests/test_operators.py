"""Releasing exactly what was shown: what becomes of each lock, and where it is written."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import MagicMock

import pytest

from django_redis_lock import Holder, lock, locks
from django_redis_lock.exceptions import LockLost, LockUnavailable
from django_redis_lock.models import HeldLock
from django_redis_lock.operators import Result, release_shown
from example_project.embedded import EmbeddedServer
from tests.tools import queue


def shown(name: str, using: str = "default") -> Holder:
    holder = locks[using].holder(name)
    assert holder
    return holder


def test_what_was_shown_is_released(
    name: str, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A lock still held by the holder that was shown is released, logged, and in the audit."""
    held = lock(name)
    held.acquire()
    before = shown(name)
    with caplog.at_level(logging.WARNING, "django_redis_lock"):
        (outcome,) = release_shown([before], by="ada", reason="it\nhangs")
    assert (outcome.shown, outcome.result, outcome.holder) == (before, Result.RELEASED, None)
    assert outcome.loser.token_id == before.token_id
    (line,) = caplog.messages
    assert name in line
    assert str(before) in line
    assert line.endswith("by ada: it\\nhangs")
    (entry,) = locks["default"].history(name)
    assert (entry.by, entry.reason) == ("ada", "it\nhangs")
    with pytest.raises(LockLost):
        held.release()


def test_lock_that_has_another_holder_or_none_is_left_alone(
    name: str, server: EmbeddedServer
) -> None:
    """A holder that was not shown keeps the lock, and is named. The next waiter is named, too."""
    with lock(name):
        before = shown(name)
    assert [item.result for item in release_shown([before], by="ada")] == [Result.GONE]
    with lock(name) as successor:
        hold = HeldLock.of("default", name, before.token_id)
        (outcome,) = release_shown([hold], by="ada")
        successor.ensure_held()
        assert (outcome.shown, outcome.result, outcome.loser) == (hold, Result.CHANGED, None)
        assert outcome.holder.fence == successor.fence
    assert locks["default"].history(name) == []
    lock(name).acquire()
    heir = lock(name)
    (waiting,) = queue(heir)
    outcome, second = release_shown([shown(name)] * 2, by="ada")
    assert (outcome.result, second.result) == (Result.RELEASED, Result.CHANGED)
    assert waiting.outcome() is True
    assert outcome.holder.fence == heir.fence
    heir.release()


def test_server_that_does_not_answer_is_asked_once(
    name: str, server: EmbeddedServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its locks are said to be unknown, without a try for each; others are released."""
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", ())
    settings.LOCKS = {
        "default": {"LOCATION": server.url()},
        "down": {"LOCATION": "redis://ada:secret@127.0.0.1:1/0"},
    }
    lock(name).acquire()
    down = [HeldLock.of("down", str(number), "0" * 16) for number in range(3)]
    asked = []
    monkeypatch.setattr(
        locks["down"], "call", lambda call, real=locks["down"].call: (asked.append(1), real(call))
    )
    others = [shown(name), HeldLock.of("no", "a", "0"), HeldLock.of("default", "a\nb", "0")]
    outcomes = release_shown([*down, *others], by="ada")
    unknown = Result.UNAVAILABLE
    assert [item.result for item in outcomes] == [unknown] * 3 + [Result.RELEASED] + [unknown] * 2
    assert len(asked) == 1
    assert "127.0.0.1:1" in outcomes[2].error
    assert "secret" not in outcomes[2].error
    assert "no alias 'no'" in outcomes[4].error
    assert "control characters" in outcomes[5].error  # as a forged request may bring it


def test_after_a_refusal_the_next_is_tried(
    name: str, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may have the rights to some locks alone."""
    refusal = LockUnavailable("no permission")
    refusal.refused = refusal.not_applied = True
    take = MagicMock(side_effect=[refusal, None])
    monkeypatch.setattr(locks["default"], "force_release", take)
    outcomes = release_shown([HeldLock.of("default", name, "0" * 16)] * 2, by="ada")
    assert [one.result for one in outcomes] == [Result.REFUSED, Result.GONE]


def test_reason_is_checked_before_anything_is_released(
    name: str, server: EmbeddedServer, settings: Any
) -> None:
    """One that is too long, or missing where the settings want one; Python may go without."""
    strict = {"LOCATION": server.url(), "OPERATORS": {"REASON_REQUIRED": True}}
    settings.LOCKS = {"default": {"LOCATION": server.url()}, "strict": strict}
    held = lock(name)
    held.acquire()
    both = [shown(name), shown(name, "strict")]
    with pytest.raises(ValueError, match="at most 500"):
        release_shown(both[:1], by="ada", reason="x" * 501)
    with pytest.raises(ValueError, match=r"LOCKS\['strict'\].*REASON_REQUIRED"):
        release_shown(iter(both), by="ada", reason=" \n")
    held.ensure_held()
    (outcome,) = release_shown(both[1:], by="ada", reason="stuck")
    assert outcome.result is Result.RELEASED
    lock(name).acquire()
    assert locks["strict"].force_release(name)
