"""What callers do with locks, each in its own way and at random."""

from __future__ import annotations

import random
import traceback
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from django_redis_lock import locks
from tests.chaos.attempt import Attempt
from tests.chaos.history import Recorder
from tests.chaos.means import Means
from tests.chaos.plan import FIXED_LEASES, NAMES, PASSED, RENEWED_LEASES, SHARED, Plan

PAUSE = 0.02
"""Seconds at the most from one lock of a caller to its next."""


class Caller:
    """A thread or task that uses locks, one after the other, until the run is over."""

    def __init__(self, plan: Plan, recorder: Recorder, means: Means, dice: random.Random) -> None:
        self._plan = plan
        self._recorder = recorder
        self._means = means
        self._dice = dice
        can_share = locks["default"].can_share
        self._names = [name for name in NAMES if can_share or name not in SHARED]
        self._ways: dict[Callable[[], Awaitable[None]], int] = {
            self.patient: 28,
            self.impatient: 34,
            self.renewed: 16,
            self.extending: 10,
            self.overstaying: 2,
            self.abandoning: 6,
            self.succeeding: 12,
        }
        """What it may do next, with weights."""

    async def run(self) -> None:
        while not self._plan.stop.exists():
            (way,) = self._dice.choices(list(self._ways), list(self._ways.values()))
            try:
                await way()
            except Exception:
                self._recorder.note("failed", doing=way.__name__, trace=traceback.format_exc())
            await self._rest(0, PAUSE)

    async def patient(self) -> None:
        await self._take(self._attempt(timeout=self._lease()))

    async def impatient(self) -> None:
        wait = {"blocking_timeout": self._dice.uniform(0.05, 1.0)}
        options = self._dice.choice((wait, {"blocking": False}))
        await self._take(self._attempt(timeout=self._lease(), **options))

    async def renewed(self) -> None:
        """Have the lease renewed, and sometimes hold for longer than one lease."""
        dice = self._dice
        lease = dice.choice(RENEWED_LEASES)
        options = {"timeout": lease, "auto_renew": True}
        attempt = self._attempt(**(options if dice.random() < 0.5 else {}))
        if not await attempt.acquire():
            return
        if dice.random() < 0.1:
            end = monotonic() + lease * dice.uniform(1.1, 1.6)
            while monotonic() < end and not attempt.lost:
                await attempt.confirm()
                await self._rest(0.02, 0.2)
        await self._hold_and_release(attempt)

    async def extending(self) -> None:
        attempt = self._attempt(timeout=self._lease(shortest=0.5))
        if not await attempt.acquire():
            return
        await self._rest(0, 0.02)
        extension = self._dice.choice(
            (
                lambda: attempt.extend(2.5, replace_ttl=True),
                lambda: attempt.extend(0.25, replace_ttl=True),
                lambda: attempt.extend(0.3, replace_ttl=False),
                attempt.reacquire,
            )
        )
        await extension()
        await self._hold_and_release(attempt)

    async def overstaying(self) -> None:
        """Go on after the end of a lease that is not renewed."""
        attempt = self._attempt(timeout=self._dice.choice((0.3, 0.5)))
        if not await attempt.acquire():
            return
        while await attempt.confirm():
            await self._rest(0.1, 0.3)
        await attempt.release()

    async def abandoning(self) -> None:
        await self._attempt(timeout=self._lease()).acquire()

    async def succeeding(self) -> None:
        """Take over a lock that another process has detached, or come too late."""
        if ticket := self._plan.find_ticket(self._recorder.process):
            options = self._dice.choice(({}, {"timeout": self._lease()}))
            attempt = Attempt(self._means, self._recorder, PASSED, **options)
            if await attempt.take_over(ticket):
                await self._hold_and_release(attempt)

    def _attempt(self, **options: Any) -> Attempt:
        name = self._dice.choice(self._names)
        if name in SHARED and self._dice.random() < 0.7:
            options |= self._dice.choice(SHARED[name])
        return Attempt(self._means, self._recorder, name, **options)

    def _lease(self, shortest: float = 0.0) -> float:
        return self._dice.choice([lease for lease in FIXED_LEASES if lease >= shortest])

    async def _take(self, attempt: Attempt) -> None:
        if await attempt.acquire():
            await self._hold_and_release(attempt)

    async def _hold_and_release(self, attempt: Attempt) -> None:
        """Hold a lock, perhaps share what was held alone, and release it or pass it on."""
        await self._hold(attempt)
        held, changes = attempt.lock, self._dice.random() < 0.5
        if changes and held.name in SHARED and not held.sharing.shared:
            await attempt.downgrade()
            await self._hold(attempt)
        if changes and held.name == PASSED and not attempt.lost:
            if await attempt.detach(self._lease()):
                self._plan.offer(attempt.ticket, self._recorder.process)
                return
            if attempt.lost:
                return
        await attempt.release()

    async def _hold(self, attempt: Attempt) -> None:
        for _ in range(self._dice.randint(1, 3)):
            if not await attempt.confirm():
                break
            await self._rest(0, 0.025)

    async def _rest(self, shortest: float, longest: float) -> None:
        await self._means.rest(self._dice.uniform(shortest, longest))
