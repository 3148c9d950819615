"""What handles have in common, and ``defer``, the one gate of every exit from a hold."""

from __future__ import annotations

import logging
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from time import monotonic
from typing import Any, NoReturn, Self, TypeVar, cast

from django.db import connections

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.exceptions import LockError, LockNotAcquired, LockNotOwned, LockUnavailable
from django_redis_lock.primitives import held as holds
from django_redis_lock.primitives.held import Held, Leave, register
from django_redis_lock.protocol.calls import Steps
from django_redis_lock.protocol.lease import Lease, milliseconds
from django_redis_lock.support import arguments
from django_redis_lock.support.arguments import DEFAULT, Default, OnUnavailable, Seconds
from django_redis_lock.support.django_private import is_of_test_case, savepoint_in_test
from django_redis_lock.support.functions import finished, is_async, is_generator
from django_redis_lock.support.process import Identity

logger = logging.getLogger("django_redis_lock")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Handle(ABC):
    """A handle of one lock, or of several as one: a context manager and a decorator."""

    do_not_call_in_templates = True  # Django's templates read its attributes
    on_unavailable: OnUnavailable = "raise"
    """Whether to raise ``LockUnavailable`` or to run without the lock, if it can't be acquired."""
    _blocking_timeout: Seconds = DEFAULT
    _attempt: weakref.ref[Identity] | None = None  # of the caller that is acquiring

    def __init__(self, name: str, *, blocking: bool, blocking_timeout: Seconds) -> None:
        self.name = name
        self.blocking = blocking if blocking is True else arguments.check_blocking(blocking)
        if not isinstance(blocking_timeout, Default):
            self._blocking_timeout = arguments.check_wait(blocking_timeout)

    @property
    def guarded(self) -> bool:
        """Whether the lock, or all locks of a group, are held; False if the block runs without."""
        return all(each.is_held_here for each in self._locks())

    @property
    def backend(self) -> BaseLockBackend:
        return self._locks()[0].backend

    @property
    def blocking_timeout(self) -> float | None:
        """How many seconds to wait at most; ``None`` for no limit."""
        given = self._blocking_timeout
        return self.backend.blocking_timeout if isinstance(given, Default) else given

    def acquire(self, blocking: bool | None = None, blocking_timeout: Seconds = DEFAULT) -> bool:
        """Acquire the lock, or all locks of a group or none; return whether that succeeded.

        ``blocking`` (a bool) and ``blocking_timeout`` (seconds in all, ``None`` for no limit)
        override those of the handle. Raises ``LockError`` if the handle already holds a lock, which
        it keeps, and ``LockUnavailable``, or returns True with ``on_unavailable="run"``.
        """
        began = monotonic()
        try:
            return self.backend.run(self._acquire(self._until(blocking, blocking_timeout)))
        except BaseException as error:
            if not self._run_without(error, began):
                raise
            return True

    async def aacquire(
        self, blocking: bool | None = None, blocking_timeout: Seconds = DEFAULT
    ) -> bool:
        """Asynchronous version of ``acquire``."""
        began = monotonic()
        try:
            return await self.backend.arun(self._acquire(self._until(blocking, blocking_timeout)))
        except BaseException as error:
            if not self._run_without(error, began):
                raise
            return True

    def release(self) -> None:
        """Release the lock, or all locks of a group; each goes to its longest waiter.

        Raises ``LockLost`` if one was lost, after releasing the others; ``LockNotOwned`` if none is
        held; and ``LockUnavailable``. In the last case the release is retried in the background,
        and can be called again. If the block runs without the lock, nothing happens.
        """
        try:
            self.backend.run(self._release())
        except BaseException as error:
            if not self._leave_unguarded(error):
                raise

    async def arelease(self) -> None:
        """Asynchronous version of ``release``."""
        try:
            await self.backend.arun(self._release())
        except BaseException as error:
            if not self._leave_unguarded(error):
                raise

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Add seconds to the remaining lease, or with ``replace_ttl`` replace it.

        Returns True. Raises ``LockLost``, ``LockNotOwned``, ``LockUnavailable``, and ``LockError``
        for a lock that never expires.
        """
        return self.backend.run(self._extend(additional_time, replace_ttl=replace_ttl))

    async def aextend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Asynchronous version of ``extend``."""
        return await self.backend.arun(self._extend(additional_time, replace_ttl=replace_ttl))

    def reacquire(self) -> bool:
        """Reset each lease to its full length. Returns and raises as ``extend`` does."""
        return self.backend.run(self._extend(None, replace_ttl=True))

    async def areacquire(self) -> bool:
        """Asynchronous version of ``reacquire``."""
        return await self.backend.arun(self._extend(None, replace_ttl=True))

    def ensure_held(self) -> None:
        """Ask the server whether the lock, or every lock of a group, is still held.

        Raises ``LockLost``, ``LockNotOwned`` if it was not acquired, and ``LockUnavailable``.
        """
        self.backend.run(holds.confirm(self._locks()))

    async def aensure_held(self) -> None:
        """Asynchronous version of ``ensure_held``."""
        await self.backend.arun(holds.confirm(self._locks()))

    def owned(self) -> bool:
        """Ask the server if this handle holds its locks. Raises ``LockUnavailable``."""
        return self.backend.run(self._owned())

    async def aowned(self) -> bool:
        """Asynchronous version of ``owned``."""
        return await self.backend.arun(self._owned())

    def __enter__(self) -> Self:
        began = monotonic()
        try:
            acquired = self.acquire()
        except BaseException as error:
            self._abandon(error, began)
            raise
        if not acquired:
            raise self.backend.run(self._not_acquired())
        return self

    async def __aenter__(self) -> Self:
        began = monotonic()
        try:
            acquired = await self.aacquire()
        except BaseException as error:
            self._abandon(error, began)
            raise
        if not acquired:
            raise await self.backend.arun(self._not_acquired())
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.release()
        except BaseException as failure:
            if not self._tolerates(error, failure):
                raise

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.arelease()
        except BaseException as failure:
            if not self._tolerates(error, failure):
                raise

    def __call__(self, function: Decorated) -> Decorated:
        """Decorate a function, synchronous or not, to hold the lock during each call.

        Every call uses a new handle, and raises ``LockNotAcquired`` if the lock is not acquired.
        Raises ``TypeError`` for work that happens after the call has returned: at once for a class
        or a generator function, and from the call if it returns a coroutine, future or generator.
        """
        if isinstance(function, staticmethod | classmethod):
            return cast("Decorated", type(function)(self(function.__func__)))
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"A lock can decorate only a function or a method, not {function!r}.")
        code = getattr(function, "__code__", None)
        named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else ()
        if any(f"{{{each}}}" in self.name for each in named):
            raise ValueError(
                f"The name of {self._label} is not a template: it would be the same for all calls. "
                f"Use a with statement inside {function!r}, with an f-string as the name."
            )
        if is_generator(function):
            raise TypeError(
                f"{function!r} is a generator, whose body runs after the call: acquire the lock "
                f"inside it, with a with statement."
            )
        if is_async(function):

            @wraps(function)
            async def alocked(*args: Any, **kwargs: Any) -> Any:
                async with self._fresh():
                    return finished(function, await function(*args, **kwargs))

            return cast("Decorated", alocked)

        @wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with self._fresh():
                return finished(function, function(*args, **kwargs))

        return cast("Decorated", locked)

    def __bool__(self) -> bool:
        raise TypeError(
            f"A handle is neither true nor false. To acquire {self._label}, use a with statement, "
            f"or test the result of acquire()."
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} can't be pickled or copied. Create a handle of the same name for each "
            f"caller. To pass a held lock to another process, send it the ticket that detach() "
            f"returns, and call take_over() there."
        )

    @abstractmethod
    def _fresh(self) -> Self:
        """Return a new handle with the same arguments."""

    @abstractmethod
    def _locks(self) -> Sequence[Held]: ...

    @abstractmethod
    def _acquire(self, until: float | None) -> Steps[bool]:
        """Acquire the locks, waiting ``until`` (monotonic), or not at all for ``None``."""

    @abstractmethod
    def _not_acquired(self) -> Steps[LockNotAcquired]:
        """Return the error about the lock that could not be acquired."""

    @property
    def _label(self) -> str:
        names = [repr(each.name) for each in self._locks()]
        return f"{'lock' if len(names) == 1 else 'locks'} {', '.join(names)}"

    def _acquired(self) -> Sequence[Held]:
        """Return the locks that are held, lost or not; if none is, the first, which says so."""
        locks = self._locks()
        return [each for each in locks if each.lease is not None] or locks[:1]

    def _to_release(self) -> Sequence[Held]:
        """Return the locks to release: of a group, those that were not released by themselves."""
        held = self._acquired()
        left = [each for each in held if not each.deferred]
        for each in left or held:
            each.lease_to_release()
        return left

    def _until(self, blocking: bool | None, blocking_timeout: Seconds) -> float | None:
        default = isinstance(blocking_timeout, Default)
        wait = self.blocking_timeout if default else arguments.check_wait(blocking_timeout)
        waits = self.blocking if blocking is None else arguments.check_blocking(blocking)
        if not waits or wait == 0:
            return None
        return math.inf if wait is None else monotonic() + wait

    def _occupy(self) -> Identity:
        """Let no other caller acquire while the result is referred to, so not forever."""
        attempt = Identity()
        with register.mutex:
            if self._attempt is None or self._attempt() is None:
                self._attempt = weakref.ref(attempt)
                return attempt
        text = f"This handle is already acquiring {self._label}: create one for each caller."
        raise self._locks()[0].misuse(text)

    def _release(self) -> Steps[None]:
        held = self._to_release()
        if held and not defer(held, holds.finish):
            yield from (holds.release(held[0]) if len(held) == 1 else holds.release_all(held))

    def _run_without(self, error: BaseException, began: float) -> bool:
        """Whether a block runs without the locks, since the server was unavailable."""
        self._abandon(error, began)
        if self.on_unavailable == "raise" or not isinstance(error, LockUnavailable):
            return False
        logger.warning("Entered a block without %s: %s", self._label, error)
        for each in self._locks():
            each.unguarded += 1
        return True

    def _leave_unguarded(self, error: BaseException) -> bool:
        """Whether a release failed because the block that ends has run without the locks."""
        self._abandon(error)
        ended = [each for each in self._locks() if each.unguarded and type(error) is LockNotOwned]
        for each in ended:
            each.unguarded -= 1
        return bool(ended)

    def _extend(self, seconds: float | None, *, replace_ttl: bool) -> Steps[bool]:
        held = self._acquired()
        if held[0].lease_to_set().timeout is None:
            text = "has no lease to extend: it was acquired with timeout=None."
            raise held[0].misuse(f"Lock {held[0].name!r} {text}")
        if seconds is not None:
            arguments.check_timeout(seconds, "additional_time")

        def lease_ms(lease: Lease) -> int:
            more = seconds or lease.timeout or 0.0
            return milliseconds(more if replace_ttl else lease.remaining + more)

        yield from holds.set_leases(held, lease_ms)
        return True

    def _owned(self) -> Steps[bool]:
        try:
            yield from holds.confirm(self._locks())
        except LockNotOwned:
            return False
        return True

    def _abandon(self, error: BaseException, since: float = 0.0) -> None:
        """Release in the background what an interruption left, unless it is from before."""
        held = [each for each in self._locks() if each.lease and each.lease.began >= since]
        left = [each for each in held if not each.deferred and each.held_lease().entries <= 1]
        if left and not (isinstance(error, LockError) or defer(left, holds.finish)):
            holds.abandon(left)

    def _tolerates(self, error: BaseException | None, failure: BaseException) -> bool:
        """Whether a failed release raises nothing: it masks an error, or the lock is optional."""
        self._abandon(failure)
        optional = self.on_unavailable == "run" and isinstance(failure, LockUnavailable)
        if not isinstance(failure, LockError) or (error is None and not optional):
            return False
        logger.warning("Could not release %s after the block: %s", self._label, failure)
        return True


def defer(held: Sequence[Held], leave: Leave, *, ends: bool = True) -> bool:
    """Have ``leave`` carry out an exit from holds after this thread's transactions; False if now.

    A downgrade does not end the holds.
    """
    databases = [each for each in connections.all(initialized_only=True) if _in_transaction(each)]
    if not databases:
        return False
    from django_redis_lock.primitives import exits

    return exits.defer(held, leave, databases, ends=ends)


def _in_transaction(connection: Any) -> bool:
    """Whether a transaction is open, other than that of a ``TestCase``."""
    if connection.connection is None or connection.closed_in_transaction:
        return False
    if not connection.in_atomic_block:
        return not connection.autocommit
    blocks = connection.atomic_blocks
    in_test = bool(blocks) and is_of_test_case(blocks[0])
    return not in_test or savepoint_in_test(connection) is not None
