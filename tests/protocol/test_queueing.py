"""What is asked of the server to take a lock, step by step, without a server."""

from __future__ import annotations

import math
from time import monotonic
from typing import Any

import pytest

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import locking
from django_redis_lock.protocol.calls import (
    Acquire,
    Release,
    Wait,
)
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import OUTAGE_LIMIT, WaiterRegistry
from tests.protocol.steps import ended, refused


class KnowingRegistry(WaiterRegistry):
    """A registry that knows the server's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.note_server_ms(5_000, monotonic())


def request(timeout: float | None = 30.0) -> Request:
    return Request("name", "token", timeout, "{}")


# A waiter asks for its lock.

HELD = 0
"""What the server answers in place of a fence."""
JOINED = 1
"""The kind of answer to a waiter; see ``acquire.lua``."""


def poll(steps: Any, answer: Any = None) -> Acquire:
    """Let steps go on with an answer, until they ask for the lock."""
    call = steps.send(answer)
    assert isinstance(call, Acquire)
    call.sending()
    return call


def waiting(registry: WaiterRegistry, wanted: Request) -> Any:
    """Return the steps of a request that has asked for its lock and sleeps."""
    steps = locking.acquire(registry, wanted, monotonic() + 60)
    poll(steps)
    assert isinstance(steps.send([HELD, 30_000, 5_000, JOINED, 7]), Wait)
    return steps


def test_wait_that_runs_out_is_withdrawn_patiently() -> None:
    """There is nothing else to do, so it is sent again if no answer comes."""
    wanted = request()
    steps = locking.acquire(KnowingRegistry(), wanted, monotonic())
    poll(steps)
    assert isinstance(steps.send([HELD, 30_000, 5_000, JOINED, 7]), Wait)
    withdrawal = steps.send(None)
    assert isinstance(withdrawal, Release)
    assert withdrawal.patient
    assert ended(steps, 0) is None
    assert not wanted.may_be_held


def test_waiter_bears_with_an_outage_as_long_as_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or as long as is tolerated."""
    now = monotonic()
    monkeypatch.setattr("django_redis_lock.protocol.waiting.monotonic", lambda: now)
    for limit in (0.02, 60):
        registry = KnowingRegistry()
        steps = locking.acquire(registry, request(), now + limit)
        poll(steps)
        steps.send([HELD, 30_000, 5_000, JOINED, 7])
        registry.notify("token")
        poll(steps)
        left = min(limit, OUTAGE_LIMIT)
        now += left - 0.001
        assert steps.throw(refused()).seconds == pytest.approx(0.001)
        poll(steps)
        now += 0.001
        steps.throw(refused())  # which withdraws the request
        with pytest.raises(LockUnavailable):
            steps.send(0)


@pytest.mark.parametrize(
    ("wait", "patience"), [(None, 1.3), (0.2, 1.3), (4.0, 4.3), (math.inf, math.inf)]
)
def test_how_long_a_caller_waits_for_a_silent_server(wait: float | None, patience: float) -> None:
    """Half a second beyond its wait at most, or beyond a second; without a limit, no shorter."""
    before = monotonic()
    until = None if wait is None else before + wait
    first = next(locking.acquire(KnowingRegistry(), request(), until))
    assert isinstance(first, Acquire)
    assert before + patience <= first.until <= monotonic() + patience
