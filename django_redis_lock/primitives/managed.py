"""Being a context manager and a decorator, for what is acquired and released."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from django_redis_lock.exceptions import LockError, LockNotAcquired
from django_redis_lock.support.functions import finished, is_async, is_generator

logger = logging.getLogger("django_redis_lock")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Managed(ABC):
    """A handle that can be used in ``with`` and ``async with``, and above a function."""

    name: str
    """What it is called in messages."""

    @abstractmethod
    def acquire(self) -> bool:
        """Take what the handle is for; return whether it was taken."""

    @abstractmethod
    async def aacquire(self) -> bool:
        """Take it, as ``acquire`` does."""

    @abstractmethod
    def release(self) -> None:
        """Give it up."""

    @abstractmethod
    async def arelease(self) -> None:
        """Give it up, as ``release`` does."""

    @abstractmethod
    def _fresh(self) -> Self:
        """Return another handle made with the same arguments."""

    @abstractmethod
    def _not_acquired(self) -> LockNotAcquired:
        """Return the error that says so."""

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._not_acquired()
        return self

    async def __aenter__(self) -> Self:
        if not await self.aacquire():
            raise self._not_acquired()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except LockError as failure:
            self._raise_unless_masking(failure, error)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.arelease()
        except LockError as failure:
            self._raise_unless_masking(failure, error)

    def _raise_unless_masking(self, failure: LockError, error: BaseException | None) -> None:
        """Raise the failure of a release, unless that would hide the error of the body."""
        if error is None:
            raise failure
        logger.warning("The release of lock %r failed after an error: %s", self.name, failure)

    def __call__(self, function: Decorated) -> Decorated:
        """Make every call of a function, synchronous or not, hold the lock while it runs.

        Each call uses a handle of its own. Raises ``LockNotAcquired`` from the call when the wait
        runs out, and ``TypeError`` for what does not run when it is called: at once for a generator
        function and for a class; from the call where a coroutine, a future or a generator comes
        back that could not be foreseen.
        """
        if isinstance(function, staticmethod | classmethod):
            return cast("Decorated", type(function)(self(function.__func__)))
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"A lock decorates a function or a method, not {function!r}.")
        if is_generator(function):
            raise TypeError(
                f"{function!r} is a generator, whose body runs after the call; take the lock "
                f"inside of it with a with statement."
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
