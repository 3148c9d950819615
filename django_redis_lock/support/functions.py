"""What kind of function a decorator was given: plain, a coroutine function or a generator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction

Result = TypeVar("Result")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call will return a coroutine, as far as can be known beforehand.

    True also for functions marked with ``asgiref.sync.markcoroutinefunction()``, such as
    ``sync_to_async(f)`` or the ``as_view()`` of an asynchronous view, and for objects with an
    ``async def __call__``.
    """
    return any(iscoroutinefunction(each) for each in _called(function))


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether a call will return a generator, as far as can be known beforehand."""
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in _called(function)
    )


def finished(function: Callable[..., Any], result: Result) -> Result:
    """Return the result of a call whose work is done.

    Raises ``TypeError`` for a coroutine, a future or a generator, which would do its work after the
    lock's release. A coroutine or generator is closed, so that it never runs.
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
        f"{function!r} returned a {type(result).__name__}, which does its work after the call and "
        f"without the lock. {advice}; or take the lock inside it, with a with statement."
    )


def _called(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the function below any partial, and the ``__call__`` of its type."""
    while isinstance(function, partial):
        function = function.func
    return function, type(function).__call__
