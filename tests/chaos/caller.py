"""What callers do with locks, each in its own way and at random."""

from __future__ import annotations

import random
import traceback
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from tests.chaos.attempt import Attempt
from tests.chaos.history import Recorder
from tests.chaos.means import Means
from tests.chaos.plan import FIXED_LEASES, FLEETING, NAMES, QUIET, RENEWED_LEASES, Plan

PAUSE = 0.02
"""Seconds at the most from one lock of a caller to its next."""
STAY_AWAY = 2.0
"""Seconds at the most for which a caller leaves a quiet lock to the waiters."""

Ways = dict[Callable[[], Awaitable[None]], int]
"""What a caller may do next, with weights."""


class BodyError(Exception):
    """Raised in the body of a with statement; a failing release must not hide it."""


class Caller:
    """A thread or task that uses locks, one after the other, until the run is over."""

    def __init__(
        self,
        plan: Plan,
        recorder: Recorder,
        means: Means,
        dice: random.Random,
        *,
        quiet: bool,
        hasty: bool,
    ) -> None:
        self._plan = plan
        self._recorder = recorder
        self._means = means
        self._dice = dice
        self._names = (QUIET,) if quiet else NAMES
        self._in_calm: Ways = {self.patient: 6, self.renewed: 2, self.in_context: 2}
        if quiet:
            self._in_storm = self._in_calm = {self.quietly: 24, self.leaving_quietly: 1}
        elif hasty:
            self._in_storm = self._in_calm = {self.giving_up: 30, self.patient: 1, self.renewed: 1}
        else:
            self._in_storm = {
                self.patient: 22,
                self.limited: 18,
                self.at_once: 14,
                self.renewed: 14,
                self.extending: 8,
                self.in_context: 7,
                self.giving_up: 5 if self._means.can_give_up else 0,
                self.overstaying: 2,
                self.abandoning: 2,
            }

    async def run(self) -> None:
        while not self._plan.sign("stop").exists():
            ways = self._in_calm if self._is_calm() else self._in_storm
            (way,) = self._dice.choices(list(ways), list(ways.values()))
            try:
                await way()
            except Exception:
                self._recorder.note("failed", doing=way.__name__, trace=traceback.format_exc())
            await self._rest(0, PAUSE)

    async def patient(self) -> None:
        await self._take(self._attempt(timeout=self._lease()))

    async def limited(self) -> None:
        wait = self._dice.uniform(0.05, 1.0)
        await self._take(self._attempt(timeout=self._lease(), blocking_timeout=wait))

    async def at_once(self) -> None:
        await self._take(self._attempt(timeout=self._lease(), blocking=False))

    async def renewed(self) -> None:
        """Have the lease renewed, and sometimes hold for longer than one lease."""
        dice = self._dice
        lease = dice.choice(RENEWED_LEASES)
        options = {"timeout": lease, "auto_renew": True}
        attempt = self._attempt(**(options if dice.random() < 0.5 else {}))
        if not await attempt.acquire():
            return
        if dice.random() < 0.1 and not self._is_calm():
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

    async def in_context(self) -> None:
        attempt = self._attempt(timeout=self._lease(), blocking_timeout=self._dice.uniform(1, 3))
        if not await attempt.acquire("__enter__"):
            return
        await self._hold(attempt)
        await attempt.leave(BodyError() if self._dice.random() < 0.5 else None)

    async def giving_up(self) -> None:
        """Be interrupted or cancelled while acquiring or releasing; the lock comes free after that.

        The lease is long, to show a lock that was granted to a caller that had given up.
        """
        dice = self._dice
        attempt = self._attempt(FLEETING, timeout=2.0)
        if dice.random() < 0.75:
            # At once, to meet the reply of the first call, or in the queue.
            patience = dice.choice((0.0, 0.002, 0.1))
            if await attempt.acquire(interrupted_after=dice.uniform(0.0001, 0.0005 + patience)):
                await self._hold_and_release(attempt)
        elif await attempt.acquire():
            await self._hold(attempt)
            await attempt.try_to_release(interrupted_after=dice.choice((0.0002, 0.0005, 0.001)))
        again = self._attempt(FLEETING, timeout=2.0)
        if await again.acquire():
            await again.release()

    async def overstaying(self) -> None:
        """Go on after the end of a lease that is not renewed."""
        attempt = self._attempt(timeout=self._dice.choice((0.3, 0.5)))
        if not await attempt.acquire():
            return
        while await attempt.confirm():
            await self._rest(0.1, 0.3)
        await attempt.release()

    async def abandoning(self) -> None:
        attempt = self._attempt(timeout=self._lease())
        if await attempt.acquire():
            attempt.note("abandoned")

    async def quietly(self) -> None:
        """Use a quiet lock, waiting without limit, and sometimes stay away after a long lease."""
        lease, longest = self._dice.choice(self._plan.quiet_leases), max(self._plan.quiet_leases)
        attempt = self._attempt(timeout=lease, auto_renew=self._dice.random() < 0.3)
        if await self._take(attempt) and lease == longest and self._dice.random() < 0.3:
            await self._rest(0, STAY_AWAY)

    async def leaving_quietly(self) -> None:
        """Forget to release a quiet lock, and stay away for longer than its lease."""
        lease = self._plan.quiet_leases[0]
        attempt = self._attempt(timeout=lease)
        if await attempt.acquire():
            attempt.note("abandoned")
            await self._rest(lease, lease + STAY_AWAY)

    def _attempt(self, name: str | None = None, **options: Any) -> Attempt:
        name = name or self._dice.choice(self._names)
        return Attempt(self._means, self._recorder, name, **options)

    def _lease(self, shortest: float = 0.0) -> float:
        return self._dice.choice([lease for lease in FIXED_LEASES if lease >= shortest])

    async def _take(self, attempt: Attempt) -> bool:
        if not await attempt.acquire():
            return False
        await self._hold_and_release(attempt)
        return True

    def _is_calm(self) -> bool:
        return self._plan.sign("calm").exists()

    async def _hold_and_release(self, attempt: Attempt) -> None:
        await self._hold(attempt)
        await attempt.release()

    async def _hold(self, attempt: Attempt) -> None:
        shortest, longest = (0.02, 0.04) if self._is_calm() else (0, 0.025)
        for _ in range(self._dice.randint(1, 3)):
            if not await attempt.confirm():
                break
            await self._rest(shortest, longest)

    async def _rest(self, shortest: float, longest: float) -> None:
        await self._means.rest(self._dice.uniform(shortest, longest))
