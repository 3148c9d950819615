"""Lets waiters poll a lock, where they can't be told of its release."""

from __future__ import annotations

import random
from time import monotonic

from django_redis_lock.protocol.waiting import ServerHub

CLAIM_MS = 1200
"""Milliseconds for which a lock is kept for the poller whose turn it is, or four intervals if those
are longer."""
JITTER = 0.2
"""The part of the interval by which each sleep is longer or shorter, so that processes that began
together spread out."""


class PollingHub(ServerHub):
    """A hub whose waiters are only woken from inside the process.

    The waiters of one lock share their looks and take turns, so a hundred of them ask no more
    often than one. ``channel`` identifies the process in the queue. With ``""`` there is no queue,
    and each look is an attempt to acquire the lock.
    """

    def __init__(
        self,
        interval: float,
        jitter: float = JITTER,
        *,
        channel: str = "",
    ) -> None:
        super().__init__()
        self.interval = interval
        self.jitter = jitter
        self._channel = channel

    @property
    def channel(self) -> str:
        """The channel in the queue's entries; empty if there is no queue."""
        return self._channel

    def next_look(self, ttl_ms: int, *, foreign: bool = False) -> float:
        """Return after how many seconds to look again at a lock whose lease ends in ``ttl_ms``."""
        pause = self.interval * random.uniform(1 - self.jitter, 1 + self.jitter)
        return pause if ttl_ms < 0 else min(pause, (ttl_ms + 2) / 1000)

    def freed(self, name: str) -> None:
        """Let a waiter look at once at a lock that this process has released."""
        with self._mutex:
            watch = self._watches.get(name)
            if watch is None:
                return
            watch.due = monotonic()
            watch.news += 1
            waiters = list(self._waiters.values())
            waiter = next((item for item in waiters if item.name == name), None)
        if waiter is not None:
            waiter.stirred = True
            waiter.wake()


class ClaimingHub(PollingHub):
    """A hub whose waiters are in the queue, and look whether the lock was granted to one of them.

    A waiter that does not claim it within ``claim_ms`` loses its turn.
    """

    def __init__(self, interval: float) -> None:
        longest = interval * (1 + JITTER)
        self.claim_ms = max(CLAIM_MS, round(4 * longest * 1000))
        super().__init__(interval)
        self.glances = True

    @property
    def channel(self) -> str:
        """The channel in the queue's entries."""
        return f"@poll:{self.claim_ms}:{super(PollingHub, self).channel}"

    def may_have_missed(self, seconds: float) -> bool:
        """Whether a grant can have been missed between two looks so many seconds apart."""
        return seconds * 1000 > self.claim_ms
