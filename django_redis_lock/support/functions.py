"""What a decorated function does when it is called, and what it leaves for later."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction

Result = TypeVar("Result")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine, as far as can be known before it is made.

    So does a function that is marked as one, such as ``sync_to_async(f)`` and what ``as_view()``
    of an asynchronous view returns, and an object with an ``async def __call__``.
    """
    return any(iscoroutinefunction(each) for each in _called(function))


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether a call returns a generator, as far as can be known before it is made."""
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in _called(function)
    )


def finished(function: Callable[..., Any], result: Result) -> Result:
    """Return what a call returned, after which its work is done.

    Raises ``TypeError`` for a coroutine, a future or a generator, whose work would be done after
    the lock was released. A coroutine or generator is closed, so that it never runs.
    """
    if inspect.isawaitable(result):
        advice = (
            "Put the decorator of the lock directly above the async def, below the others; or mark "
            "what you decorate with asgiref.sync.markcoroutinefunction()"
        )
    elif inspect.isgenerator(result) or inspect.isasyncgen(result):
        advice = "Return a list"
    else:
        return result
    if isinstance(result, Coroutine | Generator):
        result.close()
    raise TypeError(
        f"{function!r} returned a {type(result).__name__}, which does its work after the call, and "
        f"so without the lock. {advice}; or take the lock inside of it, with a with statement."
    )


def _called(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return what a partial is made of, and the ``__call__`` of its type, which objects have."""
    while isinstance(function, partial):
        function = function.func
    return function, type(function).__call__
