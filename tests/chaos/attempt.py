"""One handle, used as a careful caller would, with everything that happens to it recorded."""

from __future__ import annotations

import itertools
import traceback
import weakref
from time import monotonic
from typing import Any

from django_redis_lock import Lock, lock, semaphore, signals
from django_redis_lock.exceptions import LockNotOwned, LockUnavailable
from django_redis_lock.signals import never_blocks
from tests.chaos.history import Event, Recorder
from tests.chaos.means import Means
from tests.chaos.plan import DEFAULT_LEASE

RELEASES = 4
"""How often a release is tried; after LockUnavailable it can be called again."""

CALLED = {"confirm": "ensure_held"}
"""Methods that are called otherwise than what they are recorded as."""
_numbers = itertools.count(1)
_by_lock: weakref.WeakValueDictionary[int, Attempt] = weakref.WeakValueDictionary()
"""By the ``id()`` of the handle."""


def record_signals() -> None:
    """Have it recorded when a handle begins to wait, and when its lock is lost, even unused."""

    def note(f: str, lock: Lock | None) -> None:
        attempt = _by_lock.get(id(lock))
        if attempt is not None:
            attempt.note(f)

    @never_blocks
    def waits(lock: Lock, **kwargs: Any) -> None:
        note("queued", lock)

    def lose(lock: Lock | None, **kwargs: Any) -> None:
        note("lost", lock)

    signals.lock_waiting.connect(waits, weak=False)
    signals.lock_lost.connect(lose, weak=False)


class Attempt:
    """An acquisition and what follows. Methods that return a bool tell whether the lock is held."""

    def __init__(self, means: Means, recorder: Recorder, name: str, **options: Any) -> None:
        self.lock: Lock = (
            semaphore(name, **options) if "limit" in options else lock(name, **options)
        )
        _by_lock[id(self.lock)] = self
        self.handle = f"{recorder.process}.{next(_numbers)}"
        self.lost = False
        self.ticket = ""
        """For another handle to take the lock over, once this one has detached it."""
        self._means = means
        self._recorder = recorder
        limit, shared = options.get("limit"), options.get("shared", False)
        self._asked = {
            "name": self.lock.name,
            "lease": options.get("timeout", DEFAULT_LEASE),
            "renewed": options.get("auto_renew", "timeout" not in options),
            "wait": options.get("blocking_timeout") if options.get("blocking", True) else 0,
            "mode": "shared" if shared or limit is not None else "exclusive",
            "limit": limit,
        }

    def note(self, f: str, type: str = "info", **values: Any) -> None:
        self._recorder.note(f, type, handle=self.handle, **values)

    async def acquire(self) -> bool:
        return await self._do("acquire", self._asked)

    async def take_over(self, ticket: str) -> bool:
        return await self._do("take_over", {**self._asked, "ticket": ticket}, ticket)

    async def confirm(self) -> bool:
        return await self._do("confirm")

    async def extend(self, seconds: float, *, replace_ttl: bool) -> bool:
        return await self._do("extend", None, seconds, replace_ttl=replace_ttl)

    async def reacquire(self) -> bool:
        return await self._do("reacquire")

    async def downgrade(self) -> bool:
        return await self._do("downgrade")

    async def detach(self, seconds: float) -> bool:
        """Leave the lock locked for its ``ticket``; return whether that is so."""
        self.ticket = self.lock.ticket
        until = monotonic() + seconds
        return await self._do("detach", {"ticket": self.ticket, "until": until}, seconds)

    async def release(self) -> None:
        """Release the lock; try again while the server is unavailable."""
        for _ in range(RELEASES):
            if await self._do("release") or self.lost:
                return

    async def _do(self, f: str, asked: Event | None = None, *args: Any, **kwargs: Any) -> bool:
        """Carry out an operation and record it; return whether it certainly happened."""
        self.note(f, "invoke", **(asked or {}))
        try:
            answer = await self._means.do(self.lock, CALLED.get(f, f), *args, **kwargs)
        except LockUnavailable as error:
            self.note(f, "info", error=str(error))
        except LockNotOwned as error:
            self.lost = True
            self.note(f, "fail", error=repr(error))
        except Exception:
            self.note(f)
            self.note("failed", doing=f, trace=traceback.format_exc())
        else:
            time = monotonic()
            if answer is False:
                self.note(f, "fail", time=time)
            else:
                self.note(f, "ok", time=time, **self._values(f))
            return answer is not False
        return False

    def _values(self, f: str) -> Event:
        """Return what the handle says about its hold."""
        if f in ("release", "detach"):
            return {}
        now = monotonic()  # before the handle reads the clock: early rather than late
        until = now + self.lock.remaining
        found = {"token_id": self.lock.token_id} if f in ("acquire", "take_over") else {}
        return {**found, "fence": self.lock.fence, "until": until}
