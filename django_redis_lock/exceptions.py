"""Everything that taking, keeping or releasing a lock can raise."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

from django_redis_lock.support.text import without_passwords


class InvalidLockBackend(ImproperlyConfigured):
    """An entry of ``LOCKS`` can't be turned into a backend; the message says what to write.

    No password is in it, though it repeats what was written.
    """

    def __init__(self, message: str) -> None:
        super().__init__(without_passwords(message))


class LockError(Exception):
    """The base of every error about one lock; catch it to catch them all.

    Raised itself for wrong use of a handle, such as acquiring it twice.
    """

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments don't survive the default pickling; a Celery result needs them to.
        return _rebuild, (type(self), str(self), self.name)


class LockNotAcquired(LockError):
    """The wait ran out, or there was none, while another holder kept the lock."""


class LockNotOwned(LockError):
    """A release, extension or reacquisition of a lock that this handle does not hold."""


class LockLost(LockNotOwned):
    """The handle held the lock, and its lease ended or was broken before it was done."""


class StaleFence(LockError):
    """A write under a fence came after that of a later holder, and was not made.

    ``fence`` is the one that was out of date. Give up what was begun: it is the later holder's.
    """

    def __init__(self, message: str, *, name: str = "", fence: int = 0) -> None:
        super().__init__(message, name=name)
        self.fence = fence

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_stale, (str(self), self.name, self.fence)


class LockUnavailable(LockError):
    """The server could not be asked.

    It is unreachable, timed out, read-only, out of memory, or does not permit it.

    Nothing is known about the lock then. A handle that was held keeps its token, so the call
    can be made again. No password is in the message.
    """

    refused = False
    """Whether the server was reached and refused; else it is not known whether it was."""
    passing = True
    """Whether it may be over soon, so that it is worth asking again."""
    undone = False
    """Of a release by force: whether it is known that nothing was released, for each sending was
    answered with an error."""
    silent = False
    """Whether it let the call time out."""

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(without_passwords(message), name=name)


def _rebuild(kind: type[LockError], message: str, name: str) -> LockError:
    return kind(message, name=name)


def _rebuild_stale(message: str, name: str, fence: int) -> StaleFence:
    return StaleFence(message, name=name, fence=fence)
