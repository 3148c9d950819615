"""How waiters of a process are woken, and what they know of the server's clock."""

from __future__ import annotations

import contextlib
import itertools
import math
from time import monotonic

import pytest

from django_redis_lock.protocol import conversation, waiting
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import CLOCK_KEPT, Grant, Hub, LocalWaiter, ServerHub
from tests.protocol.steps import joined
from tests.tools import Background, eventually
from tests.tools.interruption import Interrupted, Interruption


def test_other_waiting_schemes_are_refused() -> None:
    with pytest.raises(ValueError, match="no waiting scheme") as caught:
        waiting.check_scheme("pubsub")
    assert str(caught.value) == (
        "wait='pubsub' is no waiting scheme. "
        "Give 'queue', 'blpop', 'poll', or None for the backend's."
    )


def test_waiter_whose_event_loop_is_closed_is_gone() -> None:
    """It can't take the lock, so it leaves, and the grant goes to the next."""
    hub = Hub()
    closed, _ = joined(hub, "closed"), joined(hub, "other")
    closed.sleeper = lambda: False
    assert hub.dispatch("closed", Grant(7, 1_000, 0)) is False
    assert hub.nudge_one("closed") is False
    assert hub.nudge_one("other") is True


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
        steps = conversation.acquire(hub, Request("name", f"token {at}", 30.0, "{}"), math.inf)
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
