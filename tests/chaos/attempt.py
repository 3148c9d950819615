"""One handle, used as a careful caller would, with everything that happens to it recorded."""

from __future__ import annotations

import itertools
import traceback
import weakref
from time import monotonic
from typing import Any

from django_redis_lock import Lock, lock, signals
from django_redis_lock.exceptions import LockNotOwned, LockUnavailable
from tests.chaos.history import Recorder
from tests.chaos.means import Means
from tests.chaos.plan import DEFAULT_LEASE

RELEASES = 4
"""How often a release is tried; after LockUnavailable it can be called again."""

_FAILED = object()
_numbers = itertools.count(1)
_by_lock: weakref.WeakValueDictionary[int, Attempt] = weakref.WeakValueDictionary()
"""By the ``id()`` of the handle."""


def record_losses() -> None:
    """Have it recorded when ``lock_lost`` tells of a handle, even one that is not used any more."""

    def receive(lock: Lock | None, **kwargs: Any) -> None:
        attempt = _by_lock.get(id(lock))
        if attempt is not None:
            attempt.note("told")

    signals.lock_lost.connect(receive, weak=False)


class Attempt:
    """An acquisition and what follows. Methods that return a bool tell whether the lock is held."""

    def __init__(self, means: Means, recorder: Recorder, name: str, **options: Any) -> None:
        self.lock: Lock = lock(name, **options)
        _by_lock[id(self.lock)] = self
        self.handle = f"{recorder.process}.{next(_numbers)}"
        self.lost = False
        self._means = means
        self._recorder = recorder
        self._lease = options.get("timeout", DEFAULT_LEASE)
        self._renewed = options.get("auto_renew", "timeout" not in options)

    def note(self, kind: str, **fields: Any) -> None:
        self._recorder.note(kind, handle=self.handle, **fields)

    async def acquire(self) -> bool:
        self.note("requested", name=self.lock.name, lease=self._lease, renewed=self._renewed)
        got = await self._ask("acquire")
        at = monotonic()
        if got is True:
            self.note("acquired", at=at, fence=self.lock.fence, until=self._until())
        elif got is False:
            self.note("refused", at=at)
        return got is True

    async def confirm(self) -> bool:
        return await self._confirmed("ensure_held")

    async def extend(self, seconds: float, *, replace_ttl: bool) -> bool:
        self.note("extending")
        return await self._confirmed("extend", seconds, replace_ttl=replace_ttl)

    async def reacquire(self) -> bool:
        self.note("extending")
        return await self._confirmed("reacquire")

    async def release(self) -> None:
        """Release the lock; try again while the server is unavailable."""
        for _ in range(RELEASES):
            since = monotonic()
            self.note("releasing", at=since)
            if await self._ask("release") is not _FAILED:
                self.note("released", since=since)
                return
            if self.lost:
                return

    async def _confirmed(self, operation: str, *args: Any, **kwargs: Any) -> bool:
        since = monotonic()
        if await self._ask(operation, *args, **kwargs) is _FAILED:
            return False
        self.note("confirmed", since=since, until=self._until(), doing=operation)
        return True

    async def _ask(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        since = monotonic()
        try:
            return await self._means.do(self.lock, operation, *args, **kwargs)
        except LockUnavailable as error:
            self.note("unavailable", since=since, doing=operation, error=str(error))
        except LockNotOwned as error:
            self.lost = True
            self.note("lost", since=since, doing=operation, error=repr(error))
        except Exception:
            self.note("failed", since=since, doing=operation, trace=traceback.format_exc())
        return _FAILED

    def _until(self) -> float:
        """Return the end of the lease as the handle promises it, early rather than late."""
        now = monotonic()  # before the handle reads the clock
        return now + self.lock.remaining
