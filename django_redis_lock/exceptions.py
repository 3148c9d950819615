"""The exceptions that operations on locks raise."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

from django_redis_lock.support.text import without_passwords


class InvalidLockBackend(ImproperlyConfigured):
    """An alias of ``LOCKS`` is invalid; the message says how to correct it.

    The message quotes the settings without passwords.
    """

    def __init__(self, message: str) -> None:
        super().__init__(without_passwords(message))


class LockError(Exception):
    """The base class of all errors about locks.

    Raised directly for wrong use of a handle, such as acquiring it twice.
    """

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class LockNotAcquired(LockError):
    """The lock was not acquired: it stayed held until the wait ended, or its queue was full."""

    paused = False
    """Whether the lock is a semaphore with the limit 0."""


class LockNotOwned(LockError):
    """The handle does not hold the lock that it should release, extend or check."""


class LockLost(LockNotOwned):
    """The handle held the lock, but its lease expired or an operator released it."""


class StaleFence(LockError):
    """A fenced write was rejected because a later holder has written already.

    ``fence`` is the outdated fence. Give up the work: it belongs to the later holder.
    """

    def __init__(self, message: str, *, name: str = "", fence: int = 0) -> None:
        super().__init__(message, name=name)
        self.fence = fence


class LockUnavailable(LockError):
    """The server is unreachable, timed out, read-only, out of memory, or refused permission.

    The state of the lock is unknown then. A handle that held the lock keeps its token, so the call
    can be repeated. The message contains no password.
    """

    refused = False
    """Whether the server was reached and refused."""
    passing = True
    """Whether the failure may be temporary, so that a retry makes sense."""
    not_applied = False
    """Of a forced release: whether nothing was released, as the server answered with errors."""
    silent = False
    """Whether the server let the call time out."""

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(without_passwords(message), name=name)
