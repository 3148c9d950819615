"""Waiting without being woken: the hub that other backends use, and its options."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.exceptions import InvalidLockBackend, LockNotAcquired
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.waiting import Watch
from django_redis_lock.transport.polling import Polling, PollingHub, poll_options
from tests.tools import Background, eventually


class Deaf(LocMemLockBackend):
    """Locks whose waiters nobody tells anything, as on servers that know of no waiters."""

    def __init__(self, retries: int | None = None) -> None:
        super().__init__("deaf", {})
        self.hub: PollingHub = PollingHub(0.01, 0.5, retries)
        self.looks = 0

    def call(self, call: calls.Call) -> Any:
        """Carry out a call, and count those for the lock."""
        self.looks += isinstance(call, calls.Acquire)
        return super().call(call)

    def lock(self, name: str, **options: Any) -> Lock:
        """Return a handle."""
        return Lock(lambda: self, name, 20, **options)


def test_a_waiter_sees_the_release(name: str) -> None:
    """Whoever waits looks until the lock is free, under threads and under asyncio."""
    backend = Deaf()
    for acquire in (
        lambda: backend.lock(name).acquire(),
        lambda: asyncio.run(backend.lock(name).aacquire()),
    ):
        held = backend.lock(name)
        held.acquire()
        waiting = Background(acquire)
        eventually(lambda: backend.looks >= 4)
        held.release()
        assert waiting.outcome() is True
        backend.force_release(name)
        backend.looks = 0


def test_the_waiters_of_a_lock_share_their_looks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty threads look no more often than one would, and go on when one has the lock."""
    monkeypatch.setattr(Watch, "TURN", 1000)  # whoever has looked says when to look next
    backend = Deaf()
    with backend.lock(name):
        line = [
            Background(lambda: backend.lock(name).acquire(blocking_timeout=60)) for _ in range(20)
        ]
        eventually(lambda: backend.hub._watches[name].members == 20)
        before = backend.looks
        eventually(lambda: backend.looks >= before + 20)  # each has looked for itself
        began, before = time.monotonic(), backend.looks
        eventually(lambda: backend.looks >= before + 20)
        # Twenty looks of one take ten times 0.005 s at the least, of twenty next to nothing.
        assert time.monotonic() - began > 0.05
    for _ in line:
        eventually(lambda: backend.holder(name))
        backend.force_release(name)
    assert all(waiting.outcome() for waiting in line)


@pytest.mark.parametrize("retries", [0, 3])
def test_the_tries_are_counted(name: str, retries: int) -> None:
    """A wait is over after so many looks beyond the first, however long it may last."""
    backend = Deaf(retries)
    with backend.lock(name):
        backend.looks = 0
        assert backend.lock(name).acquire() is False
        # Before the first look in the line there is one that tells the server's clock.
        assert backend.looks == 2 + retries
        with pytest.raises(LockNotAcquired):
            backend.lock(name).__enter__()


def test_the_options_have_defaults() -> None:
    """What is not given is as documented."""
    assert poll_options("default", {}) == Polling(0.25, None)
    assert poll_options("default", {"POLL_INTERVAL": 2, "POLL_RETRIES": 0}) == Polling(2.0, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"POLL_INTERVAL": value}, r"\['POLL_INTERVAL'\] is .*seconds between 0.001 and 10")
        for value in (0, -1, 11, True, "1", None, float("nan"), float("inf"), 10**400)
    ]
    + [
        ({"POLL_RETRIES": value}, r"\['POLL_RETRIES'\] is .*looks from 0 up, or None")
        for value in (-1, 1.5, True, "3")
    ],
)
def test_senseless_options_are_refused(options: dict[str, Any], words: str) -> None:
    """The error names the alias, the option, the value and what to write."""
    with pytest.raises(InvalidLockBackend, match=words) as caught:
        poll_options("shop", options)
    assert "LOCKS['shop']" in str(caught.value)
    assert repr(next(iter(options.values()))) in str(caught.value)
