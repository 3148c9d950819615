"""Polling: the hub of backends that wake no waiters, and its interval."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.waiting import Hub, Schedule
from tests.tools import Background, eventually


class Deaf(LocMemLockBackend):
    """Locks whose waiters are never woken."""

    def __init__(self) -> None:
        super().__init__("deaf", {})
        self.polls = 0

    def make_hub(self, scheme: str) -> Hub:
        return Hub(interval=0.01, channel="")

    def call(self, call: calls.Call) -> Any:
        self.polls += isinstance(call, calls.Acquire)
        return super().call(call)

    def lock(self, name: str, **options: Any) -> Lock:
        return Lock(lambda: self, name, 20, **options)


def test_the_waiters_of_a_lock_share_their_polls(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty threads poll no more often than one, and go on after one has the lock."""
    monkeypatch.setattr(Schedule, "TURN", 1000)  # whoever has polled says when to poll next
    backend = Deaf()
    with backend.lock(name):
        queue = [
            Background(lambda: backend.lock(name).acquire(blocking_timeout=60)) for _ in range(20)
        ]
        eventually(lambda: len(backend.hub._waiters) == 20)
        before = backend.polls
        eventually(lambda: backend.polls >= before + 20)  # each has polled for itself
        began, before = time.monotonic(), backend.polls
        eventually(lambda: backend.polls >= before + 20)
        # Twenty polls of one take nineteen times 0.008 s at the least, of twenty next to nothing.
        assert time.monotonic() - began > 0.05
    for _ in queue:
        eventually(lambda: backend.holder(name))
        backend.force_release(name)
    assert all(waiting.outcome() for waiting in queue)
