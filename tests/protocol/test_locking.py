"""How locks are taken, set, detached and released, step by step, without a server."""

from __future__ import annotations

import math
from time import monotonic
from typing import Any

import pytest

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import calls, locking, waiting
from django_redis_lock.protocol.calls import (
    GRACE,
    Acquire,
    ForceRelease,
    Pause,
    Release,
    TakeOver,
    Wait,
)
from django_redis_lock.protocol.lease import Lease, Request
from django_redis_lock.protocol.waiting import OUTAGE_LIMIT, WaiterRegistry
from tests.protocol.steps import ended, refused

JOINED = [0, 30_000, 5_000, 1, 7]
"""What ``acquire.lua`` answers to a waiter that has joined the queue."""


def request() -> Request:
    return Request("name", "secret", 30.0, "{}")


def lease() -> Lease:
    return Lease(request(), 7, monotonic() + 30.0)


def lose_reply(steps: Any) -> None:
    """Let the first call of steps be sent twice, as its reply is lost."""
    call = next(steps)
    call.sending()
    assert isinstance(steps.throw(LockUnavailable("no reply")), Pause)
    assert steps.send(None) is call
    call.sent_at = call.first_sent_at + 0.001


def poll(steps: Any, answer: Any = None) -> Acquire:
    """Let steps go on with an answer, until they ask for the lock."""
    call = steps.send(answer)
    assert repr(call) == "<Acquire 'name'>"  # without the token, in tracebacks
    assert isinstance(call, Acquire)
    call.sending()
    return call


@pytest.mark.parametrize(
    ("patient", "error", "pauses"),
    [
        (True, LockUnavailable("no answer"), calls.RETRY_PAUSES),
        (False, LockUnavailable("no answer"), ()),
        (True, refused(), ()),
    ],
)
def test_call_is_sent_again_for_a_while(
    patient: bool, error: LockUnavailable, pauses: tuple[float, ...]
) -> None:
    """With growing pauses, unless the server would refuse it again."""
    call = Release("name", "token", patient=patient)
    steps = calls.ask(call)
    assert next(steps) is call
    for seconds in pauses:
        pause = steps.throw(LockUnavailable("no answer"))
        assert isinstance(pause, Pause)
        assert pause.seconds == seconds
        assert steps.send(None) is call
    with pytest.raises(LockUnavailable) as caught:
        steps.throw(error)
    assert not caught.value.silent


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


def test_what_an_earlier_sending_may_have_done_is_not_undone_by_a_refusal() -> None:
    call = ForceRelease("name", "digest", {}, 10)
    steps = calls.ask(call)
    next(steps).sending()
    steps.throw(LockUnavailable("no answer"))
    next(steps)  # which is refused before it is sent
    error = refused()
    error.not_applied = True
    with pytest.raises(LockUnavailable):
        steps.throw(error)
    assert not error.not_applied


@pytest.mark.parametrize(("left", "given"), [(-5.0, GRACE), (0.1, GRACE), (4.0, 4.0)])
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


def test_replies_that_were_lost() -> None:
    """The first sending released no expired lease; but it may have detached a lease that holds."""
    mine, other = lease(), lease()
    first, second = [(other.begin_release(), other.left_at) for _ in range(2)]
    assert first == second  # though the release is called again
    mine.deadline = monotonic() - 1
    steps: Any = locking.release(mine)
    lose_reply(steps)
    assert ended(steps, 0) is False
    steps = locking.detach(lease(), TakeOver(request(), "digest"))
    lose_reply(steps)
    assert ended(steps, None) is True


def test_wait_that_runs_out_is_withdrawn_patiently() -> None:
    """There is nothing else to do, so it is sent again if no answer comes."""
    wanted = request()
    steps: Any = locking.acquire(WaiterRegistry(), wanted, monotonic())
    poll(steps)
    assert isinstance(steps.send(JOINED), Wait)
    withdrawal = steps.send(None)
    assert isinstance(withdrawal, Release)
    assert withdrawal.patient
    assert ended(steps, 0) is None
    assert not wanted.may_be_held


@pytest.mark.parametrize("limit", [0.02, 60])
def test_waiter_bears_with_an_outage_as_long_as_it_waits(
    limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or as long as is tolerated."""
    now = monotonic()
    monkeypatch.setattr(waiting, "monotonic", lambda: now)
    registry = WaiterRegistry()
    steps: Any = locking.acquire(registry, request(), now + limit)
    poll(steps)
    steps.send(JOINED)
    registry.notify("secret")
    poll(steps)
    now += min(limit, OUTAGE_LIMIT) - 0.001
    assert steps.throw(refused()).seconds == pytest.approx(0.001)
    poll(steps)
    now += 0.001
    steps.throw(refused())  # which withdraws the request
    with pytest.raises(LockUnavailable):
        steps.send(0)


@pytest.mark.parametrize(
    ("wait", "patience"),
    [(None, 1 + GRACE), (0.2, 1 + GRACE), (4.0, 4 + GRACE), (math.inf, math.inf)],
)
def test_how_long_a_caller_waits_for_a_silent_server(
    wait: float | None, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.3 s beyond its wait at most, or beyond a second; without a limit, no shorter."""
    monkeypatch.setattr(locking, "monotonic", lambda: 100.0)
    monkeypatch.setattr(calls, "monotonic", lambda: 100.0)
    until = None if wait is None else 100.0 + wait
    assert poll(locking.acquire(WaiterRegistry(), request(), until)).until == 100.0 + patience
