"""Runs functions in threads of their own."""

from __future__ import annotations

import _thread
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import TypeVar

Result = TypeVar("Result")


def start_in_thread(function: Callable[[], Result]) -> Future[Result]:
    """Return the outcome of a function that runs in a thread of its own; it can't be cancelled."""
    outcome: Future[Result] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="django-redis-lock-helper", daemon=True).start()
    return outcome


def shielded(function: Callable[[], Result], until: float = math.inf) -> Result:
    """Return the result of a function that no exception from a signal handler interrupts.

    Handlers run in the main thread, so there the function gets a thread of its own. So it does if
    the caller waits no longer than ``until`` (monotonic), when ``TimeoutError`` is raised. An
    exception ends only the wait for it: the function runs on and its result is dropped.
    """
    if until == math.inf and threading.get_ident() != threading.main_thread().ident:
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
    left = -1 if until == math.inf else max(0.0, until - monotonic())
    if not done.acquire(timeout=left):
        raise TimeoutError("The server did not answer in time")
    if errors:
        raise errors.pop()
    return outcome.pop()
