"""Where waiters look at a lock from time to time, for nobody can tell them of its end."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.protocol.waiting import ServerHub

POLL_OPTIONS = ("POLL_INTERVAL", "POLL_RETRIES")
"""The keys of ``OPTIONS`` that ``poll_options`` reads."""
INTERVAL = 0.25
"""Seconds between two looks, unless ``POLL_INTERVAL`` says otherwise."""
CLAIM_MS = 1200
"""Milliseconds for which a lock is kept for a poller whose turn it is; longer where that is less
than four intervals."""
SHORTEST = 0.001
"""Seconds; the smallest interval that may be asked for."""
LONGEST = 10.0
"""Seconds; the greatest. Those who wait keep their line alive by their looks."""
JITTER = 0.2
"""The part of the interval by which each sleep is longer or shorter, so that processes that began
together do not go on asking together."""


@dataclass(frozen=True, slots=True)
class Polling:
    """How often to look at a lock that somebody else holds."""

    interval: float = INTERVAL
    """Seconds between two looks."""
    retries: int | None = None
    """How often to look again after the first time; ``None`` for as long as the wait lasts."""


def poll_options(alias: str, options: Mapping[str, Any]) -> Polling:
    """Return what ``OPTIONS`` of an entry of ``LOCKS`` says about polling.

    Raises ``InvalidLockBackend`` naming the option and the value.
    """
    interval = options.get("POLL_INTERVAL", INTERVAL)
    retries = options.get("POLL_RETRIES")
    if (
        isinstance(interval, bool)
        or not isinstance(interval, int | float)
        or not SHORTEST <= interval <= LONGEST
    ):
        raise InvalidLockBackend(
            f"LOCKS[{alias!r}]['OPTIONS']['POLL_INTERVAL'] is {interval!r}; give seconds between "
            f"{SHORTEST:g} and {LONGEST:g}, such as {INTERVAL:g}."
        )
    if retries is not None and (type(retries) is not int or retries < 0):
        raise InvalidLockBackend(
            f"LOCKS[{alias!r}]['OPTIONS']['POLL_RETRIES'] is {retries!r}; give a number of looks "
            f"from 0 up, or None to look for as long as the wait lasts."
        )
    return Polling(float(interval), retries)


class PollingHub(ServerHub):
    """A hub whose waiters are never woken from outside of the process.

    The waiters of one lock share their looks and take turns, so a hundred of them ask no more
    often than one. A wait is over, without the lock, when ``retries`` looks after its first one
    have found it held.

    ``channel`` is what the waiters stand in line under, where there is a line; ``""`` says that
    there is none. Then each look is an ``Acquire`` by one of them, which it may win.
    """

    def __init__(
        self,
        interval: float = INTERVAL,
        jitter: float = JITTER,
        retries: int | None = None,
        *,
        channel: str = "",
    ) -> None:
        super().__init__()
        self.interval = interval
        self.jitter = jitter
        self.retries = retries
        self._channel = channel

    @property
    def channel(self) -> str:
        """What waiters stand in line under; empty where there is no line."""
        return self._channel

    def next_look(self, ttl_ms: int, *, foreign: bool = False) -> float:
        """Return after how many seconds to look again at a lock with so much lease left."""
        pause = self.interval * random.uniform(1 - self.jitter, 1 + self.jitter)
        return pause if ttl_ms < 0 else min(pause, (ttl_ms + 2) / 1000)

    def freed(self, name: str) -> None:
        """Let one of those who wait here for a lock that this process released look at once."""
        with self._mutex:
            watch = self._watches.get(name)
            if watch is None:
                return
            watch.due = monotonic()
            watch.news += 1
            waiter = next((item for item in self._waiters.values() if item.name == name), None)
        if waiter is not None:
            waiter.stirred = True
            waiter.wake()


class ClaimingHub(PollingHub):
    """A hub whose waiters stand in line, and look whether the lock was written for one of them.

    One who is not seen to claim it within ``claim_ms`` is taken for dead, or loses its turn.
    """

    def __init__(self, polling: Polling) -> None:
        longest = polling.interval * (1 + JITTER)
        self.claim_ms = max(CLAIM_MS, round(4 * longest * 1000))
        super().__init__(polling.interval, JITTER, polling.retries)
        self.glances = True

    @property
    def channel(self) -> str:
        """What waiters stand in line under."""
        return f"@poll:{self.claim_ms}:{super(PollingHub, self).channel}"

    def may_have_missed(self, seconds: float) -> bool:
        """Whether a turn may have come and gone unseen between two looks so many seconds apart."""
        return seconds * 1000 > self.claim_ms
