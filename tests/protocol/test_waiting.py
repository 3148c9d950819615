"""How waiters of a process are woken, and what they know of the server's clock."""

from __future__ import annotations

import pytest

from django_redis_lock.protocol import waiting
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import CLOCK_KEPT, Grant, Hub, LocalWaiter, ServerHub
from django_redis_lock.support.clock import monotonic


def joined(hub: Hub, token: str) -> LocalWaiter:
    return hub.join(Request("name", token, 30.0, "{}"))


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
    closed, other = joined(hub, "closed"), joined(hub, "other")
    closed.sleeper = lambda: False
    assert hub.dispatch("closed", Grant(7, 1_000, 0)) is False
    assert hub.nudge_one("closed") is False
    assert other.watch.members == 1
    assert hub.nudge_one("other") is True


def test_news_during_a_look_outweighs_its_plan() -> None:
    """A look that began before the news may not put off the look that the news asks for."""
    hub = Hub()
    waiter = joined(hub, "token")
    watch = waiter.watch
    for _ in range(2):
        seen = watch.news
        hub.look_soon("name")
        watch.plan(monotonic() + 60, seen)
        assert watch.due <= monotonic()
    watch.plan(due := monotonic() + 60, watch.news)
    assert watch.due == due


def test_clock_of_the_server_is_carried_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a minute; then a waiter has to ask for it."""
    now = monotonic()
    monkeypatch.setattr(waiting, "monotonic", lambda: now)
    hub = ServerHub()
    assert hub.server_ms() is None
    hub.heard(5_000)
    assert hub.server_ms() == 5_000
    now += 2.5
    assert hub.server_ms() == 7_500
    now += CLOCK_KEPT
    assert hub.server_ms() is None
