"""The driver of the protocol with blocking calls; ``async_driver`` is the one for asyncio.

Both carry out the steps of a generator, one after the other, and send back the results. They handle
interruption, cancellation and forks.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import warnings
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any, TypeVar, cast

from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call, Listen, Step, Steps
from django_redis_lock.support.process import Process, current_process, known_process
from django_redis_lock.support.threads import InThread

Result = TypeVar("Result")
TIDY_FOR = 0.25
"""Seconds that an interrupted or cancelled caller waits for the server to clean up."""
PASSED_OVER = {"django_redis_lock", "contextlib"}
"""Packages that call on behalf of the caller."""


class Port:
    """What carries out calls: a backend, or what sends the parts of one call."""

    def call(self, call: Any) -> Any:
        """Carry out one call. Raises ``LockUnavailable``."""
        raise NotImplementedError

    async def acall(self, call: Any) -> Any:
        """Carry out one call under asyncio. Raises ``LockUnavailable``."""
        return self.call(call)

    def failed(self, error: BaseException) -> Sequence[calls.Emit]:
        """Return the steps to take before an operation raises an error."""
        return ()

    def run(self, steps: Steps[Result]) -> Result:
        """Carry out steps in this thread or greenlet, and return their result.

        After an interruption the remaining steps clean up, for a short time. Raises ``LockError``
        in a child that was forked meanwhile, since the parent continues with the steps.
        """
        first: Step | None
        raised: BaseException | None  # by a step, or by a signal handler at any moment
        until: float | None  # set once it cleans up
        process, first, raised, until = current_process(), None, None, None
        while process is known_process():
            try:
                step = next(steps) if raised is None else steps.throw(raised)
                first, raised = first or step, None
                while True:
                    answer = carry_out(self, step) if until is None else _tidy(self, step, until)
                    if process is not known_process():
                        break
                    step = steps.send(answer)
            except StopIteration as stop:
                if process is known_process():
                    return cast("Result", stop.value)
            except BaseException as error:
                if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                    raised = None  # else the error keeps this frame, and the frame the error
                    for emission in self.failed(error):
                        carry_out(self, emission)
                    raise
                raised = error
                if until is None and not isinstance(error, LockError):
                    until = monotonic() + TIDY_FOR
        steps.close()
        raise begun_by(process, first)


def carry_out(port: Port, step: Step) -> Any:
    """Carry out a step, blocking this thread or greenlet."""
    if isinstance(step, Call) and not isinstance(step, Listen):
        return port.call(step)
    match step:
        case Listen():
            step.registry.listen(step.name, step.until)
        case calls.Wait():
            step.registry.wait(step.waiter, step.until)
        case calls.Pause():
            time.sleep(step.seconds)
        case calls.Emit():
            step.signal.send_robust(**step.arguments)
        case calls.BeginToWait():
            _warn_event_loop()
        case _:
            return port.call(step)
    return None


def _warn_event_loop() -> None:
    """Warn a caller whose wait blocks the event loop of this thread, if there is one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    level, frame = 1, inspect.currentframe()  # the warning is for who called this package
    while frame and frame.f_globals.get("__name__", "").split(".")[0] in PASSED_OVER:
        level, frame = level + 1, frame.f_back
    warnings.warn(  # with a text that names no lock, so that Python shows it once a place
        "A lock is waited for with a blocking call, which stops the event loop of this thread: "
        "its other tasks can neither run nor release the lock. Use 'async with', or await "
        "aacquire().",
        RuntimeWarning,
        stacklevel=level,
    )


def _tidy(port: Port, step: Step, until: float) -> Any:
    """Carry out a step of a clean-up, which no caller waits for longer."""
    left = max(0.0, until - monotonic())
    if isinstance(step, calls.Pause):
        step = calls.Pause(min(left, step.seconds))
    if not isinstance(step, Call):
        return carry_out(port, step)
    if not left:
        raise late()
    try:
        return InThread(partial(carry_out, port, step)).result(until)
    except TimeoutError:
        raise late() from None


def late() -> LockUnavailable:
    return LockUnavailable(f"The server did not answer within {TIDY_FOR:g} s of the interruption")


def begun_by(process: Process, first: Step | None) -> LockError:
    name = "" if first is None else first.lock_name  # pauses and signals have none
    return LockError(
        f"This operation on lock {name!r} was begun by the parent process {process.pid}, which "
        f"continues it. Begin a new one in the forked child.",
        name=name,
    )
