"""How waiters of a process are woken, and what they know of the server's clock."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
import weakref

import pytest

from django_redis_lock.protocol import acquiring, waiting
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import CLOCK_KEPT, Grant, Hub, LocalWaiter, ServerHub
from django_redis_lock.support.clock import monotonic
from tests.protocol.steps import joined
from tests.tools import Background, eventually
from tests.tools.interruption import Interrupted, Interruption


@pytest.mark.parametrize("wait", [*waiting.WAITING_SCHEMES, None])
def test_waiting_schemes(wait: str | None) -> None:
    assert waiting.check_scheme(wait) == wait


def test_other_waiting_schemes_are_refused() -> None:
    with pytest.raises(ValueError, match="no waiting scheme") as caught:
        waiting.check_scheme("pubsub")
    assert str(caught.value) == (
        "wait='pubsub' is no waiting scheme. "
        "Give 'queue', 'blpop', 'poll', or None for the backend's."
    )


def test_times_of_a_hub_without_a_server() -> None:
    """A grant tells when it was received; the clock is that of this machine, in milliseconds."""
    before = monotonic()
    assert before <= Grant(7, 1_000, 0).received_at <= monotonic()
    now = time.time_ns()
    read = Hub().server_ms()
    assert isinstance(read, int)
    assert now // 1_000_000 <= read <= time.time_ns() // 1_000_000


def test_grant_reaches_only_who_waits() -> None:
    """Whoever hands a lock off learns whether the waiter is there."""
    hub = Hub()
    assert hub.dispatch("token", Grant(7, 1_000, 0)) is False
    waiter = joined(hub, "token")
    grant = Grant(7, 1_000, 0)
    assert hub.dispatch("token", grant) is True
    assert waiter.grant is grant


def test_waiter_whose_event_loop_is_closed_is_gone() -> None:
    """It can't take the lock, so it leaves, and the grant goes to the next."""
    hub = Hub()
    closed, _ = joined(hub, "closed"), joined(hub, "other")
    closed.sleeper = lambda: False
    assert hub.dispatch("closed", Grant(7, 1_000, 0)) is False
    assert hub.nudge_one("closed") is False
    assert hub.nudge_one("other") is True


def test_news_during_a_look_outweighs_its_plan() -> None:
    """A look that began before the news may not put off the look that the news asks for."""
    hub = Hub()
    waiter = joined(hub, "token")
    watch = waiter.watch
    for _ in range(2):
        seen = watch.news
        hub.look_soon("name")
        for _ in range(2):
            watch.plan(monotonic() + 60, seen)
            assert watch.due <= monotonic()
    watch.plan(due := monotonic() + 60, watch.news)
    assert watch.due == due


def test_only_the_first_answer_puts_off_the_next_look() -> None:
    """The others may be older, of a lease that has ended since; see ``Watch.plan``."""
    watch = joined(Hub(), "token").watch
    for _ in range(2):
        seen, now = watch.news, monotonic()
        watch.plan(now + 10, seen)
        watch.plan(now + 60, seen)
        assert watch.due == now + 10
        watch.plan(now + 5, seen)
        assert watch.due == now + 5


def test_clock_of_the_server_is_carried_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a minute; then a waiter has to ask for it."""
    now = 1.0  # of a machine that has just started
    monkeypatch.setattr(waiting, "monotonic", lambda: now)
    hub = ServerHub()
    assert hub.server_ms() is None
    hub.heard(5_000)
    assert hub.server_ms() == 5_000
    now += 2.5
    assert hub.server_ms() == 7_500
    now += CLOCK_KEPT
    assert hub.server_ms() is None


# Sleeping and waking.


def sleeping(hub: Hub, waiter: LocalWaiter) -> Background:
    """Let a waiter sleep in a thread."""
    thread = Background(lambda: hub.wait(waiter, monotonic() + 60))
    eventually(lambda: waiter.sleeper is not None)
    return thread


@pytest.mark.parametrize("wake", ["grant", "nudge", "nudge_one", "look_soon"])
def test_what_wakes_a_waiter(wake: str) -> None:
    """A grant, and whatever makes it look; it does not sleep again before it has looked."""
    hub = Hub()
    waiter = joined(hub, "token")
    thread = sleeping(hub, waiter)
    if wake == "grant":
        hub.dispatch("token", Grant(7, 1_000, 0))
    elif wake == "nudge_one":
        hub.nudge_one("token")
    else:
        getattr(hub, wake)("name")
    thread.outcome()
    assert waiter.sleeper is None
    hub.wait(waiter, monotonic() + 60)
    asyncio.run(hub.await_(waiter, monotonic() + 60))
    assert waiter.sleeper is None


def test_what_wakes_a_waiter_under_asyncio() -> None:
    hub = Hub()
    waiter = joined(hub, "token")

    async def main() -> None:
        task = asyncio.ensure_future(hub.await_(waiter, monotonic() + 60))
        while waiter.sleeper is None:
            await asyncio.sleep(0)
        hub.nudge()
        await task

    asyncio.run(main())
    assert waiter.sleeper is None


def test_sleep_ends_with_its_time() -> None:
    hub = Hub()
    waiter = joined(hub, "token")
    hub.wait(waiter, monotonic())
    asyncio.run(hub.await_(waiter, monotonic()))
    assert not waiter.awake


def test_look_soon_concerns_one_lock() -> None:
    """The waiters of others sleep on."""
    hub = Hub()
    waiter, other = joined(hub, "token"), joined(hub, "other", "other")
    hub.look_soon("name")
    hub.look_soon("nobody waits for this")
    assert (waiter.stirred, other.stirred) == (True, False)
    assert waiter.watch.claim()
    assert not other.watch.claim()


def test_one_waiter_at_a_time_looks() -> None:
    """If it does not plan the next look, another one takes its turn later."""
    hub = Hub()
    watch = joined(hub, "token").watch
    assert not watch.claim()
    hub.look_soon("name")
    before = monotonic()
    assert watch.claim()
    assert watch.due == pytest.approx(before + watch.TURN, abs=0.5)
    assert not watch.claim()


def test_another_waiter_looks_when_the_one_that_looked_leaves() -> None:
    """The others may sleep for longer than until the next look is due."""
    hub = Hub()
    one, two, three = (joined(hub, token) for token in ("one", "two", "three"))
    elsewhere = joined(hub, "elsewhere", "another lock")
    woken: list[LocalWaiter] = []
    for waiter in (two, three, elsewhere):
        waiter.sleeper = lambda waiter=waiter: woken.append(waiter)
    hub.leave(one)
    assert not woken
    two.looks = True
    hub.leave(two)
    assert woken == [three]
    assert three.looks
    assert three.stirred
    hub.leave(three)
    hub.leave(elsewhere)
    assert woken == [three]


def test_forked_child_forgets_its_parents_waiters() -> None:
    """Those that it inherited look, and then find that they belong to the parent."""
    hub = Hub()
    waiter = joined(hub, "token")
    before = hub.channel
    thread = sleeping(hub, waiter)
    hub.after_fork()
    thread.outcome()
    assert waiter.nudged
    assert hub.channel != before
    assert not hub.dispatch("token", Grant(7, 1_000, 0))
    assert joined(hub, "another").watch is not waiter.watch


def test_the_watch_of_a_lock_ends_with_its_waiters() -> None:
    """The next one has nothing of what they knew."""
    hub = Hub()
    first, second = joined(hub, "first"), joined(hub, "second")
    assert first.watch is second.watch
    hub.leave(first)
    assert joined(hub, "third").watch is second.watch
    watch = weakref.ref(second.watch)
    for waiter in list(hub._waiters.values()):
        hub.leave(waiter)
    del first, second, waiter
    assert watch() is None


def test_a_waiter_leaves_while_others_are_nudged() -> None:
    """The garbage collector may close the generator of one at any moment."""
    hub = Hub()
    one, other = joined(hub, "one"), joined(hub, "other")

    def collect(waiter: LocalWaiter) -> bool:
        hub.leave(other)
        return waiter is one

    hub._nudge(collect)
    assert one.nudged
    assert not hub.nudge_one("other")


def test_wherever_a_waiter_is_interrupted() -> None:
    """A signal handler may raise as it joins or leaves; those who wait later are served."""
    hub = Hub()
    for at in itertools.count():
        steps = acquiring.acquire(hub, Request("name", f"token {at}", 30.0, "{}"), math.inf)
        interruption = Interruption(at, waiting)
        with contextlib.suppress(Interrupted), interruption:
            next(steps)
            steps.close()
        assert len(hub._waiters) <= 1  # the one that was interrupted before it could leave
        for waiter in [joined(hub, f"other {at}"), joined(hub, f"another {at}")]:
            waiter.looks = True
            hub.leave(waiter)
        if not interruption.raised:
            break
    assert at > 5


@pytest.mark.parametrize(
    ("ttl_ms", "foreign", "seconds"),
    [
        (-1, False, 0.8),
        (0, False, 0.002),
        (-1, True, 0.25),
        (10_000, False, 0.8),
        (98, False, 0.1),
        (98, True, 0.1),
    ],
)
def test_next_look(ttl_ms: int, foreign: bool, seconds: float) -> None:
    """When the lease ends, or sooner, because the process has to be heard of."""
    assert Hub().next_look(ttl_ms, foreign=foreign) == pytest.approx(seconds)
