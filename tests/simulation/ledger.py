"""Who asks for which lock, and what they believe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from django_redis_lock.protocol.lease import token_id as digest

if TYPE_CHECKING:
    from django_redis_lock.protocol.lease import Request
    from tests.simulation.world import Process, World

ROUNDING = 0.00001
"""Seconds by which the end of a lease may differ from how its holder computes it."""


class Attempt:
    looked_after = 0.0
    """Seconds within which the lock is granted to one who waits, if it does not do so itself."""
    comes_back = True
    """Whether it takes its former place if it has lost it."""
    next_turn = math.inf
    """Where the backlog of a message has its next turn."""

    def __init__(
        self, process: Process, lock: Any, *, until: float = math.inf, ahead: bool = False
    ) -> None:
        self.process = process
        self.thread = getcurrent()
        self.lock = lock
        self.name: str = lock.name
        self.until = until
        """When its wait ends, in seconds of the monotonic clock."""
        self.token = ""
        self.request: Any = None
        """What the package asks with under that token."""
        self.turn = True
        """Whether it waits for this lock, and not for another one of its group first."""
        self.asked_at: float | None = None
        """Since when it waits; ``None`` if it does not."""
        self.requested_at = 0.0
        """When it began to ask for this lock under its token."""
        self.held = False
        self.left_at: float | None = None
        """Since when it does not want the lock any more."""
        self.ahead = ahead
        """Whether it takes the lock over, ahead of the queue."""
        self.place = ""
        """The token of the parked message for which it takes the lock over."""
        self.lease: Any = None
        """What it was given."""
        self.group: Sequence[Attempt] = ()
        """Those of the locks that are acquired together."""
        self.excuse = ""
        """Why another one may have the lock as well; empty if nothing can be the reason."""
        self.may_lose = False
        """Whether it may be told that its lock is lost."""

    @property
    def counts_until(self) -> float:
        """Until when (monotonic) its holder may count on the lock; 0 if it may not at all."""
        return max(0.0, self.lease_until - ROUNDING) if self.held else 0.0

    @property
    def lease_until(self) -> float:
        """When its lease ends, as far as its holder knows, whether it still wants it or not."""
        lease = self.lease
        if lease is None or lease.lost:
            return 0.0
        deadline: float = lease.deadline
        # A lock that was handed off counts as lost if it is not confirmed by then.
        return deadline if lease.verify_by is None else min(deadline, lease.verify_by)

    @property
    def limit(self) -> float | None:
        """How many may hold it together, as it says; ``None`` if it wants the lock alone."""
        sharing = self.lock.sharing
        if sharing.shared:
            return math.inf if sharing.limit is None else sharing.limit
        return math.inf if self.lease is not None and self.lease.shared else None

    def forgive(self, why: str) -> None:
        """Note why another one may have the lock as well, or its holder may lose it."""
        self.excuse = self.excuse or why

    def waits(self) -> bool:
        asked_at = self.asked_at
        return asked_at is not None and self.turn and asked_at < self.until and self.process.runs

    def __repr__(self) -> str:
        return f"{self.process} {self.token[:4]}"


class Ledger:
    def __init__(self, world: World) -> None:
        self._world = world
        self.attempts: list[Attempt] = []
        self.waiting: list[Attempt] = []
        self.holding: list[Attempt] = []
        self.by_token: dict[str, Attempt] = {}
        self.tokens: dict[str, str] = {}
        """Each token by its digest."""
        self.watchers: list[Any] = []
        """Promises, which are told of each lock that is taken."""
        self.excuse_of_all = ""
        """Why nobody can be sure of a lock from here on."""

    def asks(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            attempt.asked_at = self._world.machine.now
            attempt.excuse = self.excuse_of_all
            attempt.group = attempts
            self.attempts.append(attempt)
            self.waiting.append(attempt)

    def requested(self, attempt: Attempt, request: Request) -> None:
        """Note the token under which an attempt asks now."""
        attempt.token, attempt.request = request.token, request
        attempt.requested_at = self._world.machine.now
        self.by_token[request.token] = attempt
        self.tokens[digest(request.token.encode())] = request.token
        for other in attempt.group:
            other.turn = other is attempt

    def has(self, attempt: Attempt) -> None:
        """Note that somebody was told to have a lock."""
        self._answered(attempt)
        attempt.held = True
        self.holding.append(attempt)
        lease = attempt.lease = attempt.lock.lease
        self._world.tell(
            "{} has {} with fence {} until {:.3f}",
            attempt, attempt.name, lease.fence, lease.deadline - 1000,
        )  # fmt: skip
        for watcher in self.watchers:
            watcher.has(attempt)
        self._world.note()

    def leaves(self, attempt: Attempt) -> None:
        """Note that somebody does not count on a lock any more, or was told not to have it."""
        if attempt.left_at is None:
            self._answered(attempt)
            attempt.left_at = self._world.machine.now
        if attempt.held:
            attempt.held = False
            self.holding.remove(attempt)

    def forgive_holder(self, token_id: str, why: str) -> None:
        """Note that the holder that is shown with this ``token_id`` may lose its lock."""
        if token_id in self.tokens:
            holder = self.by_token[self.tokens[token_id]]
            for attempt in self.attempts:  # it may be about to be left to another one
                if attempt.lock is holder.lock:
                    attempt.forgive(why)
            holder.process.disturb(self._world.machine.now)

    def forgive_all(self, why: str) -> None:
        """Note that from here on nobody can be sure of a lock."""
        self.excuse_of_all = why
        for attempt in self.attempts:
            attempt.forgive(why)

    def _answered(self, attempt: Attempt) -> None:
        if attempt.asked_at is None:
            return
        attempt.asked_at = None
        self.waiting.remove(attempt)
        for watcher in self.watchers:
            watcher.answered(attempt)
