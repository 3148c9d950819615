"""How waiters of a process are woken, and what they know of the server's clock."""

from __future__ import annotations

import contextlib
import itertools
from time import monotonic

import pytest

from django_redis_lock.protocol import waiting
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import CLOCK_VALID, Grant, Hub, LocalWaiter
from tests.protocol.steps import joined
from tests.tools import Background, eventually
from tests.tools.interruption import Interrupted, Interruption


def test_waiter_whose_event_loop_is_closed_is_gone() -> None:
    """It can't take the lock, so it leaves, and the grant goes to the next."""
    hub = Hub()
    closed, _ = joined(hub, "closed"), joined(hub, "other")
    closed.sleeper = lambda: False
    assert hub.notify("closed", Grant(7, 1_000, 0)) is False
    assert hub.notify("closed") is False
    assert hub.notify("other") is True


def test_clock_of_the_server_is_carried_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a minute; then a waiter has to ask for it."""
    now = 1.0  # of a machine that has just started
    monkeypatch.setattr(waiting, "monotonic", lambda: now)
    hub = Hub()
    assert hub.server_ms() is None
    hub.note_server_ms(5_000)
    assert hub.server_ms() == 5_000
    now += 2.5
    assert hub.server_ms() == 7_500
    now += CLOCK_VALID
    assert hub.server_ms() is None


# Sleeping and waking.


def sleeping(hub: Hub, waiter: LocalWaiter) -> Background:
    """Let a waiter sleep in a thread."""
    thread = Background(lambda: hub.wait(waiter, monotonic() + 60))
    eventually(lambda: waiter.sleeper is not None)
    return thread


def test_forked_child_forgets_its_parents_waiters() -> None:
    """Those that it inherited poll, and then find that they belong to the parent."""
    hub = Hub()
    waiter = joined(hub, "token")
    before = hub.channel_of("name")
    thread = sleeping(hub, waiter)
    hub.after_fork()
    thread.outcome()
    assert waiter.must_poll
    assert hub.channel_of("name") != before
    assert not hub.notify("token", Grant(7, 1_000, 0))
    assert joined(hub, "another").schedule is not waiter.schedule


def test_a_waiter_leaves_while_others_are_notified() -> None:
    """The garbage collector may close the generator of one at any moment."""
    hub = Hub()
    one, other = joined(hub, "one"), joined(hub, "other")

    def collect(waiter: LocalWaiter) -> bool:
        hub.leave(other)
        return waiter is one

    hub.notify_if(collect)
    assert one.must_poll
    assert not hub.notify("other")


def test_wherever_a_waiter_is_interrupted() -> None:
    """A signal handler may raise as it joins or leaves; those who wait later are served."""
    hub = Hub()

    def come_and_go(token: str) -> None:
        waiter = LocalWaiter(Request("name", token, 30.0, "{}"))
        try:
            hub.join(waiter)
        finally:
            hub.leave(waiter)

    for at in itertools.count():
        interruption = Interruption(at, waiting)
        with contextlib.suppress(Interrupted), interruption:
            come_and_go(f"token {at}")
        assert not hub._waiters
        for waiter in [joined(hub, f"other {at}"), joined(hub, f"another {at}")]:
            waiter.schedule.poller = waiter.token
            hub.leave(waiter)
        if not interruption.raised:
            break
    assert at > 5
