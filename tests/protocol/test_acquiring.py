"""What is asked of the server to take a lock, step by step, without a server."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import acquiring, conversation
from django_redis_lock.protocol.calls import (
    Acquire,
    Claim,
    Glance,
    Listen,
    Pause,
    Post,
    Release,
    Renew,
    TakeOver,
    Wait,
)
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import CLAIM, LOOK_EVERY, Grant, Hub, LocalWaiter
from django_redis_lock.support.clock import monotonic
from tests.protocol.steps import ended, joined, refused


class ClaimingHub(Hub):
    """A hub of a server that takes back what is not claimed."""

    takes_back = True


class PollingHub(Hub):
    """A hub whose waiters poll, with a server clock that a test sets."""

    glances = True

    def __init__(self) -> None:
        super().__init__()
        self.clock: int | None = 5_000
        self.unseen: list[float] = []

    def server_ms(self) -> int | None:
        return self.clock

    def may_have_missed(self, seconds: float) -> bool:
        self.unseen.append(seconds)
        return seconds > 5


def request(timeout: float | None = 30.0) -> Request:
    return Request("name", "token", timeout, "{}")


def grant(lease: float, *, ago: float = 0.0) -> Grant:
    """Return a grant that was given some seconds ago, when the server's clock read 5000 ms."""
    given = Grant(7, round(lease * 1000), 5_000)
    given.received_at = monotonic() - ago
    return given


def result(steps: Any) -> Any:
    """Return what steps return that ask for nothing more."""
    return ended(steps, None)


@pytest.fixture
def hub() -> PollingHub:
    return PollingHub()


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
    assert wanted.sent  # the call was not answered, and may arrive after its withdrawal


def test_take_over_that_was_not_sent_is_not_withdrawn() -> None:
    """Nothing has to be undone that the server has not heard of."""
    steps = acquiring.take_over(Hub(), request(), "digest")
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())


@pytest.mark.parametrize("taken", [True, False])
def test_take_over(taken: bool) -> None:
    """The lease counts from the sending; without a fence, that holder had lost the lock."""
    wanted = request()
    steps = acquiring.take_over(Hub(), wanted, "digest")
    call = next(steps)
    call.sending()
    with pytest.raises(StopIteration) as stop:
        steps.send(7 if taken else None)
    lease = stop.value.value
    if taken:
        assert (lease.token, lease.fence) == (wanted.token, 7)
        assert lease.deadline == pytest.approx(call.sent_at + 30)
    else:
        assert lease is None
    assert wanted.sent is taken


class HearingHub(Hub):
    """A hub that notes the readings of the server's clock, and has a channel for each lock."""

    def __init__(self) -> None:
        super().__init__()
        self.readings: list[int] = []
        self.listened_for: set[str] = set()

    def heard(self, now_ms: int) -> None:
        self.readings.append(now_ms)

    def listens_for(self, name: str) -> bool:
        return name in self.listened_for

    def channel_of(self, name: str) -> str:
        return f"channel of {name}"


@pytest.mark.parametrize(
    ("answer", "fence", "left", "readings"),
    [
        (7, 7, 30.0, []),
        ([7, 5_000, 9_000], 7, 5.0, [9_000]),
        ([7, 0, 9_000], 7, 0.0, [9_000]),
        ([7, -1, 9_000], 7, math.inf, [9_000]),
        ([0, 5_000, 9_000, 0], None, None, [9_000]),
    ],
)
def test_one_attempt(
    answer: Any, fence: int | None, left: float | None, readings: list[int]
) -> None:
    """The lease counts from the sending; a lock that is held is no reason to withdraw anything."""
    hub, wanted = HearingHub(), request()
    steps = acquiring.acquire(hub, wanted, None)
    call = look(steps)
    assert (call.request, call.channel) == (wanted, "")
    lease = ended(steps, answer)
    if fence is None:
        assert lease is None
    else:
        assert (lease.name, lease.token, lease.fence) == ("name", "token", fence)
        assert lease.deadline - call.sent_at == pytest.approx(left)
    assert wanted.sent is (fence is not None)
    assert hub.readings == readings


def test_lock_without_end_is_made_so_by_a_second_call() -> None:
    """If it was lost in between, it is taken again."""
    steps = acquiring.acquire(Hub(), request(None), None)
    look(steps)
    for answer in (-2, -1):
        renewal = steps.send(7)
        assert isinstance(renewal, Renew)
        assert renewal.leases == [("name", "token", -1)]
        if answer == -2:
            look(steps, [answer])
    assert ended(steps, [-1]).deadline == math.inf


def test_interruption_goes_on_if_it_can_not_be_withdrawn() -> None:
    """The server may still carry the request out, which the caller has to know."""
    wanted = request()
    steps = acquiring.acquire(Hub(), wanted, None)
    look(steps)
    assert isinstance(steps.throw(KeyboardInterrupt()), Release)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(refused())
    assert wanted.sent is True


def test_nothing_is_asked_of_a_server_that_lets_calls_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would let the withdrawal time out as well."""
    monkeypatch.setattr(conversation, "RETRY_FOR", -1)
    steps = acquiring.acquire(Hub(), request(), None)
    look(steps)
    with pytest.raises(LockUnavailable) as caught:
        steps.throw(LockUnavailable("no answer"))
    assert caught.value.silent


def test_call_that_was_answered_can_not_arrive_any_more() -> None:
    """So a request that is withdrawn during its wait needs no second withdrawal."""
    hub, wanted = HearingHub(), request()
    hub.listened_for.add(wanted.name)
    hub.heard(5_000)
    steps = acquiring.acquire(hub, wanted, math.inf)
    call = next(steps)
    assert isinstance(call, Acquire)
    call.sending()
    assert wanted.under_way
    assert isinstance(steps.send([0, 30_000, 5_000, 1]), Wait)
    assert isinstance(steps.throw(KeyboardInterrupt()), Release)
    with pytest.raises(KeyboardInterrupt):
        steps.send(0)
    assert not wanted.sent


def test_take_over_that_was_answered_can_not_arrive_any_more() -> None:
    wanted = request()
    steps = acquiring.take_over(Hub(), wanted, "digest")
    next(steps).sending()
    assert wanted.under_way
    ended(steps, 7)
    assert not wanted.under_way


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
    now = monotonic()
    given = grant(10.0)
    given.received_at = now - received_ago
    lease = acquiring._granted(request(), given, now - looked_ago, server_ms)
    assert lease.deadline - now == pytest.approx(10.0 - begun_ago)
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
    assert lease.verify_by is not None
    assert lease.verify_by - given.received_at == pytest.approx(in_time)
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
    waiter = joined(hub, "token")
    until = monotonic() + 60
    hub.nudge("name")
    steps = acquiring._sleep(hub, waiter, until)
    next(steps)
    assert ended(steps, None) is acquiring._Awake.NUDGED
    assert not waiter.awake
    steps = acquiring._sleep(hub, waiter, until)
    next(steps)
    again = steps.send(None)
    assert (again.waiter, again.until) == (waiter, min(until, waiter.watch.due))
    steps.close()
    hub.leave(waiter)


def test_waiter_whose_turn_it_is_looks_for_the_others(waiter: LocalWaiter) -> None:
    """When it leaves, another one does."""
    steps = acquiring._sleep(Hub(), waiter, monotonic() + 60)
    next(steps)
    waiter.watch.due = monotonic()
    assert ended(steps, None) is acquiring._Awake.TURN
    assert waiter.looks


# A waiter's looks at its lock.

HELD = 0
"""What the server answers in place of a fence."""
JOINED, WAITING, JOINED_FOREIGN, WAITING_FOREIGN = 1, 2, 4, 5
"""The kinds of answers to a waiter; see ``acquire.lua``."""


def look(steps: Any, answer: Any = None) -> Acquire:
    """Let steps go on with an answer, until they ask for the lock."""
    call = steps.send(answer)
    assert isinstance(call, Acquire)
    call.sending()
    return call


def test_waiter_that_listens_already_joins_at_once() -> None:
    hub = HearingHub()
    hub.listened_for.add("name")
    steps = acquiring.acquire(hub, request(), monotonic() + 60)
    assert look(steps).channel == "channel of name"
    steps.close()


def test_waiter_listens_on_the_channel_of_its_lock() -> None:
    """Before it joins the queue, and again if it hears nothing any more."""
    hub, wanted = HearingHub(), request()
    steps = acquiring.acquire(hub, wanted, monotonic() + 60)
    assert look(steps).channel == ""
    listen = steps.send([HELD, 30_000, 5_000, 0])
    hub.listened_for.add("name")
    assert isinstance(listen, Listen)
    assert (listen.hub, listen.name) == (hub, "name")
    assert look(steps).channel == "channel of name"
    wait = steps.send([HELD, 30_000, 6_000, JOINED])
    assert isinstance(wait, Wait)
    assert wait.hub is hub
    assert hub.readings == [5_000, 6_000]
    hub.listened_for.clear()
    hub.nudge("name")
    listen = steps.send(None)
    assert isinstance(listen, Listen)
    assert (listen.hub, listen.name) == (hub, "name")
    assert look(steps).channel == "channel of name"
    withdrawal = steps.throw(KeyboardInterrupt())
    assert isinstance(withdrawal, Release)
    assert withdrawal.entry == wanted.entry("channel of name")


def waiting(hub: Hub, wanted: Request) -> Any:
    """Return the steps of a request that has asked for its lock and sleeps."""
    steps = acquiring.acquire(hub, wanted, monotonic() + 60)
    look(steps)
    assert isinstance(steps.send([HELD, 30_000, 5_000, JOINED]), Wait)
    return steps


def test_granted_lock() -> None:
    """Within a process a grant needs no further call."""
    hub = Hub()
    steps = waiting(hub, request())
    given = Grant(7, 20_000, 5_100)
    assert hub.dispatch("token", given)
    lease = ended(steps, None)
    assert (lease.name, lease.token, lease.fence) == ("name", "token", 7)
    assert lease.deadline <= given.received_at + 20
    assert not hub.dispatch("token", given)


@pytest.mark.parametrize("fence", [8, 7, 6])
def test_grant_counts_if_it_is_newer_than_the_holders(fence: int) -> None:
    """Else it was taken back, and its age can't be told by a clock that was set back since."""
    hub = Hub()
    steps = acquiring.acquire(hub, request(), monotonic() + 60)
    look(steps)
    assert isinstance(steps.send([-7, 30_000, 5_000, WAITING]), Wait)
    hub.dispatch("token", Grant(fence, 20_000, 35_000))
    if fence == 8:
        assert ended(steps, None).fence == fence
    else:
        look(steps)
        steps.close()


def test_granted_lock_is_claimed() -> None:
    hub = ClaimingHub()
    steps = waiting(hub, request())
    hub.dispatch("token", Grant(7, 20_000, 5_100))
    post = steps.send(None)
    assert isinstance(post, Post)
    assert isinstance(post.call, Claim)
    assert post.call.end_ms == 25_100
    assert ended(steps, None).fence == 7


def test_first_wait_is_announced_once() -> None:
    hub, wanted, announcement = Hub(), request(), Pause(0.0)
    wanted.when_waiting = lambda: [announcement]
    steps = acquiring.acquire(hub, wanted, monotonic() + 60)
    look(steps)
    assert steps.send([HELD, 30_000, 5_000, JOINED]) is announcement
    assert isinstance(steps.send(None), Wait)
    hub.nudge()
    look(steps)
    assert isinstance(steps.send([HELD, 30_000, 5_000, WAITING]), Wait)
    steps.close()


@pytest.mark.parametrize(
    ("kind", "ttl_ms", "seconds"),
    [
        (JOINED, 30_000, LOOK_EVERY),
        (WAITING, 30_000, LOOK_EVERY),
        (WAITING, 98, 0.1),
        (JOINED_FOREIGN, 30_000, 0.25),
        (WAITING_FOREIGN, 30_000, 0.25),
    ],
)
def test_when_a_waiter_looks_again(kind: int, ttl_ms: int, seconds: float) -> None:
    """At the end of the lease, or sooner; often, if another program holds the lock."""
    steps = acquiring.acquire(Hub(), request(), monotonic() + 60)
    call = look(steps)
    wait = steps.send([HELD, ttl_ms, 5_000, kind])
    assert isinstance(wait, Wait)
    assert wait.until - call.sent_at == pytest.approx(seconds)
    steps.close()


@pytest.mark.parametrize("glances", [False, True])
def test_new_waiter_does_not_postpone_a_glance(glances: bool) -> None:
    """It has not seen whether the lock was granted to another waiter of the process."""
    hub = Hub()
    hub.glances = glances
    beside = joined(hub, "beside")
    soon = beside.watch.due = monotonic() + 0.1
    steps = acquiring.acquire(hub, request(), monotonic() + 60)
    call = look(steps)
    assert isinstance(steps.send([HELD, 30_000, 5_000, JOINED]), Wait)
    assert beside.watch.due == (soon if glances else call.sent_at + LOOK_EVERY)
    steps.close()


@pytest.mark.parametrize(
    ("ttl_ms", "seconds"), [(298, 0.3), (30_000, LOOK_EVERY), (-1, LOOK_EVERY)]
)
@pytest.mark.parametrize("news", [False, True])
def test_waiter_that_gets_its_lock_plans_for_the_others(
    ttl_ms: int, seconds: float, news: bool
) -> None:
    """They look when its lease ends, at the latest; at once, if there was news meanwhile."""
    hub = Hub()
    beside = joined(hub, "beside")
    steps = waiting(hub, request())
    hub.nudge_one("token")
    call = look(steps)
    beside.watch.due = monotonic() + 0.1
    if news:
        hub.look_soon("name")
    assert ended(steps, [1, ttl_ms, 5_000]).fence == 1
    if news:
        assert beside.watch.due <= monotonic()
    else:
        assert beside.watch.due - call.sent_at == pytest.approx(seconds, abs=0.01)


def test_waiter_joins_the_queue_with_its_first_call() -> None:
    """Where the server's clock is known, and grants are heard."""
    hub, wanted = Hub(), request()
    steps = acquiring.acquire(hub, wanted, monotonic() + 60)
    call = look(steps)
    assert call.channel == hub.channel
    assert wanted.since is not None
    steps.close()


def test_waiter_that_does_not_know_the_servers_clock_tries_first(hub: PollingHub) -> None:
    """The answer tells it; a lock that is free needs no more."""
    hub.clock = None
    wanted = request()
    steps = acquiring.acquire(hub, wanted, monotonic() + 60)
    assert look(steps).channel == ""
    hub.clock = 5_000
    listen = steps.send([HELD, 30_000, 5_000, 0])
    assert isinstance(listen, Listen)
    assert listen.name == "name"
    assert look(steps).channel == hub.channel
    assert wanted.since == 5_000
    steps.close()


@pytest.mark.parametrize(
    ("kind", "lost_its_place"),
    [(JOINED, True), (WAITING, False), (JOINED_FOREIGN, True), (WAITING_FOREIGN, False)],
)
def test_all_look_where_a_waiter_has_lost_its_place(kind: int, lost_its_place: bool) -> None:
    """The queue was dropped, so nobody of this process stands in it any more."""
    hub = Hub()
    beside = joined(hub, "beside")
    elsewhere = joined(hub, "elsewhere", "other")
    steps = waiting(hub, request())
    assert not beside.nudged
    hub.nudge_one("token")
    look(steps)
    assert isinstance(steps.send([HELD, 30_000, 5_001, kind]), Wait)
    assert (beside.nudged, elsewhere.nudged) == (lost_its_place, False)
    steps.close()


def test_wait_that_runs_out_is_withdrawn_patiently() -> None:
    """There is nothing else to do, so it is sent again if no answer comes."""
    steps = acquiring.acquire(Hub(), request(), monotonic())
    look(steps)
    assert isinstance(steps.send([HELD, 30_000, 5_000, JOINED]), Wait)
    withdrawal = steps.send(None)
    assert isinstance(withdrawal, Release)
    assert withdrawal.patient
    assert ended(steps, 0) is None


def test_waiter_bears_with_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks again, less and less often; one that is not waiting yet gives up."""
    shares = []

    def share(low: float, high: float) -> float:
        shares.append((low, high))
        return 0.5

    monkeypatch.setattr(random, "uniform", share)
    hub = Hub()
    steps = waiting(hub, request())
    hub.nudge()
    look(steps)
    for seconds in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        pause = steps.throw(refused())
        assert isinstance(pause, Pause)
        assert pause.seconds == pytest.approx(seconds / 2)
        look(steps)
    steps.close()
    assert set(shares) == {(0.5, 1.5)}
    steps = acquiring.acquire(Hub(), request(), monotonic() + 60)
    look(steps)
    assert isinstance(steps.throw(refused()), Release)
    with pytest.raises(LockUnavailable) as caught:
        steps.send(0)
    assert caught.value.name == "name"


def test_waiter_bears_with_an_outage_as_long_as_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or as long as is tolerated."""
    now = monotonic()
    monkeypatch.setattr(acquiring, "monotonic", lambda: now)
    for limit in (0.02, 60):
        hub = Hub()
        steps = acquiring.acquire(hub, request(), now + limit)
        look(steps)
        steps.send([HELD, 30_000, 5_000, JOINED])
        hub.nudge()
        look(steps)
        left = min(limit, acquiring.OUTAGE_LIMIT)
        now += left - 0.001
        assert steps.throw(refused()).seconds == pytest.approx(0.001)
        look(steps)
        now += 0.001
        steps.throw(refused())  # which withdraws the request
        with pytest.raises(LockUnavailable):
            steps.send(0)


# Waiters that poll: one of them glances at the holder for all.


@pytest.fixture
def waiter(hub: PollingHub) -> LocalWaiter:
    """A waiter that has just asked for the lock, and glanced at it."""
    return joined(hub, "token")


def glancing(hub: PollingHub, waiter: LocalWaiter) -> Any:
    steps = acquiring._glance_shows_need(hub, waiter)
    glance = next(steps)
    assert isinstance(glance, Glance)
    assert glance.name == "name"
    return steps


def test_queue_is_kept_alive_without_a_glance(hub: PollingHub, waiter: LocalWaiter) -> None:
    """A process that has not asked for the lock for long would be taken for dead."""
    waiter.watch.asked_at = monotonic() - LOOK_EVERY - 0.1
    assert result(acquiring._glance_shows_need(hub, waiter)) is True
    waiter.watch.asked_at = monotonic() - LOOK_EVERY / 2
    glancing(hub, waiter)


def test_free_lock_is_asked_for(hub: PollingHub, waiter: LocalWaiter) -> None:
    assert ended(glancing(hub, waiter), None) is True


def test_lock_is_asked_for_if_it_can_not_be_read(hub: PollingHub, waiter: LocalWaiter) -> None:
    """The look knows how long to bear with a server."""
    with pytest.raises(StopIteration) as stop:
        glancing(hub, waiter).throw(refused())
    assert stop.value.value is True


def test_held_lock_is_glanced_at_again_later(hub: PollingHub, waiter: LocalWaiter) -> None:
    """Nobody of this process has to ask for it."""
    watch = waiter.watch
    before = watch.due = monotonic()
    assert ended(glancing(hub, waiter), b"another 7 {}") is False
    assert before <= watch.glanced_at <= monotonic()
    assert watch.due == pytest.approx(watch.glanced_at + LOOK_EVERY)
    assert not waiter.awake


def test_news_during_a_glance_outweighs_its_plan(hub: PollingHub, waiter: LocalWaiter) -> None:
    steps = glancing(hub, waiter)
    hub.look_soon("name")
    assert ended(steps, b"another 7 {}") is False
    assert waiter.watch.due <= monotonic()


def test_lock_that_was_handed_off_to_the_one_who_glances(
    hub: PollingHub, waiter: LocalWaiter
) -> None:
    assert ended(glancing(hub, waiter), b"token 7 {}") is True


def test_lock_that_was_handed_off_to_another_waiter_here(
    hub: PollingHub, waiter: LocalWaiter
) -> None:
    """That one has to look, and nobody else, even if it is late."""
    hub.clock = 9_000
    heir = joined(hub, "heir")
    third = joined(hub, "third")
    assert ended(glancing(hub, waiter), b'heir 7 {"unclaimed":"6200 x",') is False
    assert [each.nudged for each in (waiter, heir, third)] == [False, True, False]


@pytest.mark.parametrize(
    ("value", "clock", "asked"),
    [
        (b'another 7 {"unclaimed":"6200 1000 channel","host":"far"}', 6_199, False),
        (b'another 7 {"unclaimed":"6200 1000 channel","host":"far"}', 6_200, True),
        (b'another 7 {"unclaimed":"6200 1000 channel","host":"far"}', None, True),
        (b'another 7 {"host":"far","unclaimed":"6200 1000 channel"}', 6_200, False),
        (b'another 7 {"host":"far"}', None, False),
        (b"\xff of another program", 6_200, False),
    ],
)
def test_lock_that_nobody_claims_is_asked_for(
    hub: PollingHub, waiter: LocalWaiter, value: bytes, clock: int | None, asked: bool
) -> None:
    """Once its time is over, or where the server's clock is not known; see ``common.lua``."""
    hub.clock = clock
    assert ended(glancing(hub, waiter), value) is asked


@pytest.mark.parametrize(("ago", "missed"), [(10.0, True), (1.0, False)])
def test_all_waiters_look_after_a_long_time_between_glances(
    hub: PollingHub, waiter: LocalWaiter, ago: float, missed: bool
) -> None:
    """A turn of theirs may have come and gone; waiters of other locks are left alone."""
    beside = joined(hub, "beside")
    elsewhere = joined(hub, "elsewhere", "other")
    waiter.watch.glanced_at = monotonic() - ago
    ended(glancing(hub, waiter), b"another 7 {}")
    assert hub.unseen == [pytest.approx(ago, abs=0.5)]
    assert [each.nudged for each in (waiter, beside, elsewhere)] == [missed, missed, False]


@pytest.mark.parametrize("glanced", [True, False])
def test_waiter_that_took_the_turn_of_another_looks_at_once(hub: PollingHub, glanced: bool) -> None:
    """The lock was free, and the server may have given it to another waiter of this process."""
    steps = acquiring.acquire(hub, request(), monotonic() + 60)
    call = look(steps)
    wait = steps.send([HELD, -1, 5_000, JOINED])
    assert isinstance(wait, Wait)
    due = wait.until
    assert due == call.sent_at + LOOK_EVERY
    if glanced:
        hub.look_soon("name")
        assert isinstance(steps.send(None), Glance)
    else:
        hub.nudge()
    call = look(steps)
    wait = steps.send([HELD, -1, 5_001, WAITING])
    assert isinstance(wait, Wait)
    assert wait.until == (call.sent_at if glanced else due)
    steps.close()


@pytest.mark.parametrize(
    ("wait", "patience"), [(None, 1.3), (0.2, 1.3), (4.0, 4.3), (math.inf, math.inf)]
)
def test_how_long_a_caller_waits_for_a_silent_server(wait: float | None, patience: float) -> None:
    """Half a second beyond its wait at most, or beyond a second; without a limit, no shorter."""
    before = monotonic()
    until = None if wait is None else before + wait
    first = next(acquiring.acquire(Hub(), request(), until))
    assert isinstance(first, Acquire)
    assert before + patience <= first.until <= monotonic() + patience


def test_a_caller_that_gives_up_does_not_ask_again() -> None:
    """The withdrawal is left to the background, too: the server would not answer that either."""
    asked = request()
    steps = acquiring.acquire(Hub(), asked, None)
    call = next(steps)
    assert isinstance(call, Acquire)
    call.sending()
    call.until = monotonic()
    with pytest.raises(LockUnavailable) as caught:
        steps.throw(LockUnavailable("timed out"))
    assert caught.value.silent
    assert asked.adrift
