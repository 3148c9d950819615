"""What is asked of the server to take a lock, step by step, without a server."""

from __future__ import annotations

import math
import random
from time import monotonic
from typing import Any

import pytest

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import locking, queueing
from django_redis_lock.protocol.calls import (
    Acquire,
    Pause,
    Peek,
    Release,
    Renew,
    Wait,
)
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import POLL_EVERY, Hub, LocalWaiter
from tests.protocol.steps import ended, joined, refused


class KnowingHub(Hub):
    """A hub that knows the server's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.note_server_ms(5_000)


def request(timeout: float | None = 30.0) -> Request:
    return Request("name", "token", timeout, "{}")


def test_lock_without_end_is_made_so_by_a_second_call() -> None:
    """If it was lost in between, it is taken again."""
    steps = locking.acquire(KnowingHub(), request(None), None)
    poll(steps)
    for answer in (-2, -1):
        renewal = steps.send(7)
        assert isinstance(renewal, Renew)
        assert renewal.leases == [("name", "token", -1)]
        if answer == -2:
            poll(steps, [answer])
    assert ended(steps, [-1]).deadline == math.inf


# A waiter polls its lock.

HELD = 0
"""What the server answers in place of a fence."""
JOINED, WAITING, JOINED_FOREIGN, WAITING_FOREIGN = 1, 2, 4, 5
"""The kinds of answers to a waiter; see ``acquire.lua``."""


def poll(steps: Any, answer: Any = None) -> Acquire:
    """Let steps go on with an answer, until they ask for the lock."""
    call = steps.send(answer)
    assert isinstance(call, Acquire)
    call.sending()
    return call


def waiting(hub: Hub, wanted: Request) -> Any:
    """Return the steps of a request that has asked for its lock and sleeps."""
    steps = locking.acquire(hub, wanted, monotonic() + 60)
    poll(steps)
    assert isinstance(steps.send([HELD, 30_000, 5_000, JOINED]), Wait)
    return steps


@pytest.mark.parametrize(
    ("kind", "ttl_ms", "seconds"),
    [
        (JOINED, 30_000, POLL_EVERY),
        (WAITING, 30_000, POLL_EVERY),
        (WAITING, 98, 0.1),
        (JOINED_FOREIGN, 30_000, 0.25),
        (WAITING_FOREIGN, 30_000, 0.25),
    ],
)
def test_when_a_waiter_polls_again(kind: int, ttl_ms: int, seconds: float) -> None:
    """At the end of the lease, or sooner; often, if another program holds the lock."""
    steps = locking.acquire(KnowingHub(), request(), monotonic() + 60)
    call = poll(steps)
    wait = steps.send([HELD, ttl_ms, 5_000, kind])
    assert isinstance(wait, Wait)
    assert wait.waiter.wakes_at(wait.until) - call.sent_at == pytest.approx(seconds)
    steps.close()


@pytest.mark.parametrize(
    ("kind", "lost_its_position"),
    [(JOINED, True), (WAITING, False), (JOINED_FOREIGN, True), (WAITING_FOREIGN, False)],
)
def test_all_poll_where_a_waiter_has_lost_its_position(kind: int, lost_its_position: bool) -> None:
    """The queue was dropped, so nobody of this process stands in it any more."""
    hub = KnowingHub()
    beside = joined(hub, "beside")
    elsewhere = joined(hub, "elsewhere", "other")
    steps = waiting(hub, request())
    assert not beside.must_poll
    hub.notify("token")
    poll(steps)
    assert isinstance(steps.send([HELD, 30_000, 5_001, kind]), Wait)
    assert (beside.must_poll, elsewhere.must_poll) == (lost_its_position, False)
    steps.close()


def test_wait_that_runs_out_is_withdrawn_patiently() -> None:
    """There is nothing else to do, so it is sent again if no answer comes."""
    wanted = request()
    steps = locking.acquire(KnowingHub(), wanted, monotonic())
    poll(steps)
    assert isinstance(steps.send([HELD, 30_000, 5_000, JOINED]), Wait)
    withdrawal = steps.send(None)
    assert isinstance(withdrawal, Release)
    assert withdrawal.patient
    assert ended(steps, 0) is None
    assert not wanted.adrift


def test_waiter_bears_with_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks again, less and less often; one that is not waiting yet gives up."""
    shares = []

    def share(low: float, high: float) -> float:
        shares.append((low, high))
        return 0.5

    monkeypatch.setattr(random, "uniform", share)
    hub = KnowingHub()
    steps = waiting(hub, request())
    hub.notify_all()
    poll(steps)
    for seconds in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        pause = steps.throw(refused())
        assert isinstance(pause, Pause)
        assert pause.seconds == pytest.approx(seconds / 2)
        poll(steps)
    steps.close()
    assert set(shares) == {(0.5, 1.5)}
    steps = locking.acquire(KnowingHub(), request(), monotonic() + 60)
    poll(steps)
    assert isinstance(steps.throw(refused()), Release)
    with pytest.raises(LockUnavailable) as caught:
        steps.send(0)
    assert caught.value.name == "name"


def test_waiter_bears_with_an_outage_as_long_as_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or as long as is tolerated."""
    now = monotonic()
    monkeypatch.setattr(queueing, "monotonic", lambda: now)
    for limit in (0.02, 60):
        hub = KnowingHub()
        steps = locking.acquire(hub, request(), now + limit)
        poll(steps)
        steps.send([HELD, 30_000, 5_000, JOINED])
        hub.notify_all()
        poll(steps)
        left = min(limit, queueing.OUTAGE_LIMIT)
        now += left - 0.001
        assert steps.throw(refused()).seconds == pytest.approx(0.001)
        poll(steps)
        now += 0.001
        steps.throw(refused())  # which withdraws the request
        with pytest.raises(LockUnavailable):
            steps.send(0)


# Waiters that poll: one of them reads the holder for all.


# A waiter that polls reads the holder for all of its process.


def peeking(hub: Hub, waiter: LocalWaiter) -> Any:
    steps = queueing._peek_shows_need(hub, waiter)
    peek = next(steps)
    assert isinstance(peek, Peek)
    assert peek.name == "name"
    return steps


def test_lock_is_asked_for_if_it_can_not_be_read() -> None:
    """The poll knows how long to bear with a server."""
    hub = Hub(interval=POLL_EVERY, peeks=True)
    with pytest.raises(StopIteration) as stop:
        peeking(hub, joined(hub, "token")).throw(refused())
    assert stop.value.value is True


@pytest.mark.parametrize(("ago", "missed"), [(10.0, True), (1.0, False)])
def test_all_waiters_poll_if_the_holder_was_not_read_for_long(ago: float, missed: bool) -> None:
    """A turn of theirs may have come and gone; waiters of other locks are left alone."""
    hub = Hub(interval=POLL_EVERY, peeks=True)
    waiter, beside = joined(hub, "token"), joined(hub, "beside")
    elsewhere = joined(hub, "elsewhere", "other")
    waiter.schedule.peeked(monotonic() - ago)
    ended(peeking(hub, waiter), b"another 7 {}")
    assert [each.must_poll for each in (waiter, beside, elsewhere)] == [missed, missed, False]


@pytest.mark.parametrize(
    ("wait", "patience"), [(None, 1.3), (0.2, 1.3), (4.0, 4.3), (math.inf, math.inf)]
)
def test_how_long_a_caller_waits_for_a_silent_server(wait: float | None, patience: float) -> None:
    """Half a second beyond its wait at most, or beyond a second; without a limit, no shorter."""
    before = monotonic()
    until = None if wait is None else before + wait
    first = next(locking.acquire(KnowingHub(), request(), until))
    assert isinstance(first, Acquire)
    assert before + patience <= first.until <= monotonic() + patience


def test_a_caller_that_gives_up_does_not_ask_again() -> None:
    """The withdrawal is left to the background, too: the server would not answer that either."""
    asked = request()
    steps = locking.acquire(KnowingHub(), asked, None)
    call = next(steps)
    assert isinstance(call, Acquire)
    call.sending()
    call.until = monotonic()
    with pytest.raises(LockUnavailable) as caught:
        steps.throw(LockUnavailable("timed out"))
    assert caught.value.silent
    assert asked.adrift


def test_waiter_that_does_not_know_the_servers_clock_tries_first() -> None:
    """The answer tells it; a lock that is free needs no more."""
    hub, wanted = Hub(), request()
    steps = locking.acquire(hub, wanted, monotonic() + 60)
    assert poll(steps).channel == ""
    assert poll(steps, [HELD, 30_000, 5_000, 0]).channel == hub.channel_of("name")
    assert wanted.since == 5_000
    steps.close()
    # From now on the clock is known.
    steps = locking.acquire(hub, request(), monotonic() + 60)
    assert poll(steps).channel == hub.channel_of("name")
    steps.close()
