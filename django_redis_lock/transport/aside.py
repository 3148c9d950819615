"""Runs functions in threads of their own."""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def aside(
    function: Callable[[], Result], *, unwanted: Callable[[Result], object] | None = None
) -> Result:
    """Return what a function that blocks returns, without blocking the loop.

    The default executor of the loop is the application's. Where its threads are all busy, a lock
    would wait for one; and where they wait for a lock that the awaiting task holds, for ever.

    The function runs on where the caller is cancelled; ``unwanted`` is then called with its result.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()

    def tell(result: Result | None, error: BaseException | None) -> None:
        if not outcome.done():
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)  # type: ignore[arg-type]
        elif error is None and unwanted is not None:
            unwanted(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(tell, result, error)
        except RuntimeError:  # the loop was closed
            if error is None and unwanted is not None:
                unwanted(result)  # type: ignore[arg-type]

    threading.Thread(target=run, name="django-redis-lock-aside", daemon=True).start()
    return await outcome


def unmet_by_signals(function: Callable[[], Result]) -> Result:
    """Return what the function returns, which no exception from a signal handler interrupts.

    Such an exception meets the main thread alone, and ends the wait there. The function then runs
    on, and what it returns is dropped.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return function()
    outcome: list[Result] = []
    errors: list[BaseException] = []
    bell = threading.Lock()

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            errors.append(error)
        bell.release()

    bell.acquire()
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # the interpreter shuts down
        return function()
    bell.acquire()
    if errors:
        raise errors.pop()
    return outcome.pop()
