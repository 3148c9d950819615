"""What is asked of the server to take a lock, step by step, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import acquiring
from django_redis_lock.protocol.calls import Claim, Post, Release, TakeOver
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import CLAIM, Grant, Hub
from django_redis_lock.support.clock import monotonic


class ClaimingHub(Hub):
    """A hub of a server that takes back what is not claimed."""

    takes_back = True


def request(timeout: float | None = 30.0) -> Request:
    return Request("name", "token", timeout, "{}")


def grant(lease: float, *, ago: float = 0.0) -> Grant:
    """Return a grant that was given some seconds ago, when the server's clock read 5000 ms."""
    given = Grant(7, round(lease * 1000), 5_000)
    given.received_at = monotonic() - ago
    return given


def result(steps: Any) -> Any:
    """Return what steps return that ask for nothing more."""
    with pytest.raises(StopIteration) as stop:
        next(steps)
    return stop.value.value


def test_interrupted_take_over_is_withdrawn() -> None:
    """Whatever the server has done by then, it is told to undo it, and the interruption goes on."""
    hub, wanted = Hub(), request()
    steps = acquiring.take_over(hub, wanted, "digest")
    call = next(steps)
    assert isinstance(call, TakeOver)
    assert (call.request, call.token_id) == (wanted, "digest")
    call.sending()
    withdrawal = steps.throw(KeyboardInterrupt())
    assert isinstance(withdrawal, Release)
    assert (withdrawal.name, withdrawal.token) == ("name", "token")
    assert withdrawal.entry == wanted.entry(hub.channel)
    assert withdrawal.patient is False
    with pytest.raises(KeyboardInterrupt):
        steps.send(1)
    assert not wanted.sent


def test_take_over_that_was_not_sent_is_not_withdrawn() -> None:
    """Nothing has to be undone that the server has not heard of."""
    steps = acquiring.take_over(Hub(), request(), "digest")
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())


@pytest.mark.parametrize(
    ("looked_ago", "server_ms", "received_ago", "begun_ago"),
    [
        pytest.param(4.0, 3_000, 1.0, 2.0, id="the message lay unread"),
        pytest.param(4.0, 3_000, 3.0, 3.0, id="the server's clock was stepped ahead"),
    ],
)
def test_lease_of_a_grant_ends_early_rather_than_late(
    looked_ago: float, server_ms: int, received_ago: float, begun_ago: float
) -> None:
    """It counts from its receipt, or from when it was given if that was earlier."""
    given = grant(10.0, ago=received_ago)
    lease = acquiring._granted(request(), given, monotonic() - looked_ago, server_ms)
    assert lease.remaining == pytest.approx(10.0 - begun_ago, abs=0.05)
    assert lease.fence == 7


@pytest.mark.parametrize(("seconds", "in_time"), [(30.0, CLAIM), (0.5, 0.5)])
def test_grant_is_claimed_without_an_answer(seconds: float, in_time: float) -> None:
    """The claim names the end by the server's clock; until it is due, the lease is not proven."""
    given = grant(seconds)
    lease = request(seconds).granted(7, given.received_at + seconds)
    steps = acquiring._claim(ClaimingHub(), lease, given)
    post = next(steps)
    assert isinstance(post, Post)
    assert isinstance(post.call, Claim)
    assert (post.call.name, post.call.token) == ("name", "token")
    assert post.call.end_ms == 5_000 + seconds * 1000
    assert lease.verify_by == pytest.approx(given.received_at + in_time)
    assert result(steps) is True


def test_claim_that_can_not_be_sent_proves_nothing() -> None:
    """Then the server has to be asked."""
    given = grant(30.0)
    steps = acquiring._claim(ClaimingHub(), request().granted(7, monotonic() + 30), given)
    next(steps)
    with pytest.raises(StopIteration) as stop:
        steps.throw(LockUnavailable("gone"))
    assert stop.value.value is False


@pytest.mark.parametrize(("late", "sent"), [(0.3, True), (0.75, False)])
def test_late_claim_is_not_sent(late: float, sent: bool) -> None:
    """After half the time the server may take the lock back first, so it has to be asked."""
    given = grant(30.0, ago=late)
    steps = acquiring._claim(ClaimingHub(), request().granted(7, given.received_at + 30), given)
    if sent:
        assert isinstance(next(steps), Post)
    else:
        assert result(steps) is False


def test_grant_that_need_not_be_claimed() -> None:
    """Within a process a grant is final, unless its lease has ended meanwhile."""
    for ago, held in ((0.0, True), (31.0, False)):
        given = grant(30.0, ago=ago)
        lease = request().granted(7, given.received_at + 30)
        assert result(acquiring._claim(Hub(), lease, given)) is held
        assert lease.verify_by is None


def test_one_nudge_makes_one_look() -> None:
    """A waiter that was nudged looks once, and then sleeps again."""
    hub = Hub()
    waiter = hub.join(request())
    until = monotonic() + 60
    hub.nudge("name")
    steps = acquiring._sleep(hub, waiter, until)
    next(steps)
    with pytest.raises(StopIteration) as stop:
        steps.send(None)
    assert stop.value.value is acquiring._Awake.NUDGED
    assert not waiter.awake
    steps = acquiring._sleep(hub, waiter, until)
    next(steps)
    again = steps.send(None)
    assert (again.waiter, again.until) == (waiter, min(until, waiter.watch.due))
    steps.close()
    hub.leave(waiter)
