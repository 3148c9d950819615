"""The handle with which a caller takes, keeps and releases one lock."""

from __future__ import annotations

from collections.abc import Mapping

from django_redis_lock.exceptions import LockNotAcquired
from django_redis_lock.primitives.holding import DEFAULT, Default, Handle
from django_redis_lock.primitives.managed import Managed
from django_redis_lock.support.arguments import check_token_id


class Lock(Handle, Managed):
    """A handle for one lock; held at most once at a time, by whoever calls ``acquire``.

    It is a context manager and a decorator, for synchronous and for asynchronous code, and can be
    released from another thread than the one that acquired it. Its vocabulary is that of
    redis-py's ``Lock``. Made by ``django_redis_lock.lock()``, which explains the arguments.
    """

    def acquire(
        self, blocking: bool | None = None, blocking_timeout: float | Default | None = DEFAULT
    ) -> bool:
        """Take the lock; return whether it was taken.

        ``blocking`` and ``blocking_timeout`` (seconds, ``None`` without limit) stand in for what
        the handle was made with. Raises ``LockError`` when the handle holds the lock already,
        which it keeps, and ``LockUnavailable``.
        """
        return self.backend.run(self._acquire(self._until(blocking, blocking_timeout)))

    async def aacquire(
        self, blocking: bool | None = None, blocking_timeout: float | Default | None = DEFAULT
    ) -> bool:
        """Take the lock, as ``acquire`` does."""
        return await self.backend.arun(self._acquire(self._until(blocking, blocking_timeout)))

    def take_over(self, token_id: str) -> bool:
        """Take the lock from the holder with this ``token_id``, before all who wait.

        Returns False where that holder has it no more; then nothing has changed. The former
        holder finds its lock lost. With a ``ticket`` or the ``token_id`` of a lock that somebody
        acquired or detached for this purpose, a lock passes from process to process without ever
        being free. Raises as ``acquire`` does.
        """
        return self.backend.run(self._acquire(None, check_token_id(token_id)))

    async def atake_over(self, token_id: str) -> bool:
        """Take the lock from another holder, as ``take_over`` does."""
        return await self.backend.arun(self._acquire(None, check_token_id(token_id)))

    def detach(self, seconds: float, metadata: Mapping[str, str] | None = None) -> str:
        """Leave the lock held by nobody for some seconds, and return its ``ticket``.

        It comes free at the end of that time, unless somebody takes it over before. The handle
        holds nothing then. ``metadata`` is added to that of the handle. Raises ``LockLost``,
        ``LockNotOwned``, ``LockUnavailable``, after which the lock is still held, and
        ``LockError`` for a reentrant lock that was entered more than once.
        """
        return self.backend.run(self._detach(seconds, metadata))

    async def adetach(self, seconds: float, metadata: Mapping[str, str] | None = None) -> str:
        """Leave the lock held by nobody for a time, as ``detach`` does."""
        return await self.backend.arun(self._detach(seconds, metadata))

    def release(self) -> None:
        """Give the lock up; the longest waiting gets it.

        Raises ``LockLost`` when it was lost meanwhile, ``LockNotOwned`` when it is not held, and
        ``LockUnavailable``: then it goes on in the background, and can be called again.
        """
        self.backend.run(self._release())

    async def arelease(self) -> None:
        """Give the lock up, as ``release`` does."""
        await self.backend.arun(self._release())

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Add seconds to the lease; with ``replace_ttl`` let it end in so many seconds from now.

        Returns True. Raises ``LockLost``, ``LockNotOwned``, ``LockUnavailable``, and ``LockError``
        for a lock that never expires.
        """
        return self.backend.run(self._extend(additional_time, replace_ttl=replace_ttl))

    async def aextend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Lengthen the lease, as ``extend`` does."""
        return await self.backend.arun(self._extend(additional_time, replace_ttl=replace_ttl))

    def reacquire(self) -> bool:
        """Let the lease begin again with its whole length. Returns and raises as ``extend``."""
        return self.backend.run(self._extend(None, replace_ttl=True))

    async def areacquire(self) -> bool:
        """Let the lease begin again, as ``reacquire`` does."""
        return await self.backend.arun(self._extend(None, replace_ttl=True))

    def ensure_held(self) -> None:
        """Ask the server whether the lock is still held; raise ``LockLost`` when it is not.

        Raises ``LockNotOwned`` when it was not held at all, and ``LockUnavailable``.
        """
        self.backend.run(self._ensure_held())

    async def aensure_held(self) -> None:
        """Ask the server, as ``ensure_held`` does."""
        await self.backend.arun(self._ensure_held())

    def owned(self) -> bool:
        """Ask the server whether this handle holds the lock. Raises ``LockUnavailable``."""
        return self.backend.run(self._owned())

    async def aowned(self) -> bool:
        """Ask the server whether this handle holds the lock. Raises ``LockUnavailable``."""
        return await self.backend.arun(self._owned())

    def locked(self) -> bool:
        """Ask the server whether anybody holds the lock. Raises ``LockUnavailable``."""
        return self.backend.run(self._locked())

    async def alocked(self) -> bool:
        """Ask the server whether anybody holds the lock. Raises ``LockUnavailable``."""
        return await self.backend.arun(self._locked())

    def _not_acquired(self) -> LockNotAcquired:
        wait = self.blocking_timeout
        tried = f"within {wait:g} s" if self.blocking and wait else "at once"
        return LockNotAcquired(
            f"Lock {self.name!r} could not be acquired {tried}; another holder has it.",
            name=self.name,
        )
