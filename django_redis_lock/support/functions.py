"""What kind of function a decorator was given: plain, a coroutine function or a generator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction

Result = TypeVar("Result")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call will return a coroutine, as far as can be known beforehand.

    ``asgiref.sync.markcoroutinefunction()`` marks ``sync_to_async(f)`` and asynchronous views.
    """
    return any(map(iscoroutinefunction, (function, type(function).__call__)))


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether a call will return a generator, as far as can be known beforehand."""
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in (function, type(function).__call__)
    )


def finished(function: Callable[..., Any], result: Result) -> Result:
    """Return the result of a call whose work is done.

    Raises ``TypeError`` for a coroutine, a future or a generator, which would do its work after the
    lock's release.
    """
    if inspect.isawaitable(result):
        advice = (
            "Put the lock's decorator directly above the async def, below the others; or mark the "
            "decorated function with asgiref.sync.markcoroutinefunction()"
        )
    elif inspect.isgenerator(result) or inspect.isasyncgen(result):
        advice = "Return a list"
    else:
        return result
    if isinstance(result, Coroutine | Generator):
        result.close()
    raise TypeError(
        f"{function!r} returned a {type(result).__name__}, whose work would run after the call, "
        f"without the lock. {advice}; or acquire the lock inside it, with a with statement."
    )
