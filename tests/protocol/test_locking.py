"""How leases are set, detached and released, step by step, without a server."""

from __future__ import annotations

import math
from time import monotonic
from typing import Any

import pytest

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import calls, locking
from django_redis_lock.protocol.calls import Pause, Release, TakeOver
from django_redis_lock.protocol.lease import Lease, Request
from tests.protocol.steps import ended, refused


def lease(name: str = "name", timeout: float = 30.0) -> Lease:
    request = Request(name, f"token of {name}", timeout, "{}")
    return Lease(request, 7, monotonic() + timeout)


def lose_reply(steps: Any, call: Any) -> Any:
    """Send a call whose reply is lost; return the call when it is sent again."""
    call.sending()
    pause = steps.throw(LockUnavailable("no reply"))
    assert isinstance(pause, Pause)
    assert steps.send(None) is call
    call.sent_at = call.first_sent_at + 0.001
    return call


def test_a_step_shows_its_lock_and_not_its_token() -> None:
    """In tracebacks."""
    assert repr(calls.Acquire(Request("name", "secret", 30.0, "{}"), "")) == "<Acquire 'name'>"


def test_call_is_sent_again_for_a_while() -> None:
    """With growing pauses; the last error is the caller's."""
    call = Release("name", "token")
    steps = calls.ask(call)
    assert next(steps) is call
    for seconds in calls.RETRY_PAUSES:
        pause = steps.throw(LockUnavailable("no answer"))
        assert isinstance(pause, Pause)
        assert pause.seconds == seconds
        assert steps.send(None) is call
    with pytest.raises(LockUnavailable, match="the last") as caught:
        steps.throw(LockUnavailable("the last"))
    assert not caught.value.silent


@pytest.mark.parametrize("patient", [False, True])
def test_call_is_not_sent_again(patient: bool) -> None:
    """If nobody has the patience, or the server would refuse it again."""
    steps = calls.ask(Release("name", "token", patient=patient))
    next(steps)
    with pytest.raises(LockUnavailable):
        steps.throw(refused() if patient else LockUnavailable("no answer"))


def test_call_is_not_sent_again_to_a_server_that_lets_it_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = monotonic()
    monkeypatch.setattr(calls, "monotonic", lambda: now)
    steps = calls.ask(Release("name", "token"))
    next(steps)
    now += calls.RETRY_FOR - 0.01
    steps.throw(LockUnavailable("no answer"))
    next(steps)
    now += 0.02
    with pytest.raises(LockUnavailable) as caught:
        steps.throw(LockUnavailable("no answer"))
    assert caught.value.silent


@pytest.mark.parametrize(("left", "given"), [(-5.0, 0.3), (0.1, 0.3), (4.0, 4.0)])
def test_a_server_has_time_to_answer(
    left: float, given: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped until after the end of its wait asks a server that is well."""
    monkeypatch.setattr(calls, "monotonic", lambda: 100.0)
    call = next(calls.ask(Release("name", "token", until=100.0 + left)))
    assert isinstance(call, Release)
    assert call.until == 100.0 + given


@pytest.mark.parametrize(
    ("left_ms", "held", "left"),
    [(5_000, True, 5.0), (0, True, 0.0), (-1, True, math.inf), (-2, False, 30.0), (None, True, 30)],
)
def test_what_a_server_says_of_a_lease(left_ms: int | None, held: bool, left: float) -> None:
    """-1 is no end, -2 not held; a server that can't tell changes nothing."""
    mine = lease()
    mine.handed_off(mine.deadline)
    asked_at = mine.deadline - 30
    mine.renewed(left_ms, asked_at)
    assert (mine.verify_by is None) is (left_ms is not None and held)
    assert mine.lost is not held
    assert mine.deadline - asked_at == left
    mine.renewed(-2, asked_at)
    mine.renewed(5_000, asked_at)
    assert mine.lost  # for good


def test_release_of_an_expired_lease_is_a_loss() -> None:
    """A lease that had ended before the first sending was not released by it."""
    mine = lease()
    mine.deadline = monotonic() - 1
    steps = locking.release(mine)
    lose_reply(steps, next(steps))
    assert ended(steps, 0) is False


def test_detach_whose_reply_was_lost_is_no_loss() -> None:
    """Another process may have taken the lock over before the second sending."""
    call = TakeOver(Request("name", "ticket", 30.0, "{}"), "digest")
    steps = locking.detach(lease(), call)
    lose_reply(steps, next(steps))
    assert ended(steps, None) is True
