"""Runs functions in threads of their own."""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def run_in_thread(
    function: Callable[[], Result], *, discard: Callable[[Result], object] | None = None
) -> Result:
    """Return the result of a blocking function without blocking the event loop.

    It does not use the loop's default executor, which is the application's: its threads may all be
    busy, or even be waiting for a lock that the awaiting task holds.

    If the caller is cancelled the function runs on, and its result is passed to ``discard``.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()

    def tell(result: Result | None, error: BaseException | None) -> None:
        if not outcome.done():
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)  # type: ignore[arg-type]
        elif error is None and discard is not None:
            discard(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(tell, result, error)
        except RuntimeError:  # the loop was closed
            if error is None and discard is not None:
                discard(result)  # type: ignore[arg-type]

    threading.Thread(target=run, name="django-redis-lock-thread", daemon=True).start()
    return await outcome


def shielded(function: Callable[[], Result]) -> Result:
    """Return the result of a function that no exception from a signal handler interrupts.

    Handlers run in the main thread, so there the function gets a thread of its own. An exception
    ends only the wait for it: the function runs on and its result is dropped.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return function()
    outcome: list[Result] = []
    errors: list[BaseException] = []
    done = threading.Lock()

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            errors.append(error)
        done.release()

    done.acquire()
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # the interpreter shuts down
        return function()
    done.acquire()
    if errors:
        raise errors.pop()
    return outcome.pop()
