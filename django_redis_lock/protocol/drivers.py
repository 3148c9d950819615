"""The drivers of the protocol, with blocking calls and under asyncio.

They carry out the steps of a generator, and handle interruption, cancellation and forks.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call, Listen, Result, Step, Steps
from django_redis_lock.support.process import Process, current_process, known_process
from django_redis_lock.support.threads import InThread

TIDY_FOR = 0.25  # seconds that an interrupted or cancelled caller waits for the server to clean up
LAST_CALL = 0.02  # seconds in which an event loop that was blocked reads an answer that has arrived
PASSED_OVER = {"django_redis_lock", "contextlib"}  # packages that call on behalf of the caller


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
                    result: Result = stop.value
                    return result
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

    async def arun(self, steps: Steps[Result]) -> Result:
        """Carry out steps in this asyncio task, and return their result. Raises as ``run`` does.

        After a cancellation the remaining steps clean up in a task of their own, which a second
        cancellation does not stop.
        """
        try:
            return await _arun(self, steps, current_process(), None)
        except BaseException as error:
            for emission in self.failed(error):
                await acarry_out(self, emission)
            raise


def carry_out(port: Port, step: Step) -> Any:
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
        "A blocking call waits for a lock and stops the event loop of this thread: its other "
        "tasks can neither run nor release the lock. Use 'async with', or await aacquire().",
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


async def acarry_out(port: Port, step: Step) -> Any:
    match step:
        case Listen():
            await _in_time(step, step.registry.alisten(step.name))
        case calls.Wait():
            await step.registry.await_(step.waiter, step.until)
        case calls.Pause():
            await asyncio.sleep(step.seconds)
        case calls.Emit():
            await step.signal.asend_robust(**step.arguments)
        case calls.BeginToWait():
            pass
        case Call():
            return await _in_time(step, port.acall(step))
        case _:
            return await port.acall(step)
    return None


async def _in_time(call: Call, answer: Awaitable[Result]) -> Result:
    if call.until == math.inf:
        return await answer
    loop, left = asyncio.get_running_loop(), max(0.0, call.until - monotonic())
    try:
        async with asyncio.timeout(None) as limit:
            timer = loop.call_later(left, lambda: limit.reschedule(loop.time() + LAST_CALL))
            try:
                return await answer
            finally:
                timer.cancel()
    except TimeoutError:
        raise LockUnavailable("The server did not answer in time", name=call.lock_name) from None


async def _arun(
    port: Port, steps: Steps[Result], process: Process, value: Any, until: float | None = None
) -> Result:
    # The value is ``None`` to begin with, or the cancellation after which the steps clean up.
    resume: Callable[[Any], Step] = steps.send if value is None else steps.throw
    first: Step | None = None
    try:
        while process is known_process():
            step = resume(value)
            first = first or step
            try:
                done = acarry_out(port, step) if until is None else _atidy(port, step, until)
                resume, value = steps.send, await done
            except GeneratorExit:
                steps.close()
                raise
            except asyncio.CancelledError as cancelled:
                if until is None and process is known_process():
                    soon = monotonic() + TIDY_FOR
                    rest = _arun(port, steps, process, cancelled, soon)
                    task = retain(asyncio.ensure_future(rest))
                    # Unlike shield() of Python 3.14, it reports no error of an abandoned task.
                    await asyncio.wait([task])
                    return task.result()
                resume, value = steps.throw, cancelled
            except BaseException as error:
                resume, value = steps.throw, error
    except StopIteration as stop:
        if process is known_process():
            result: Result = stop.value
            return result
    finally:
        value = None  # else an error keeps this frame, and the frame the error
    steps.close()
    raise begun_by(process, first)


async def _atidy(port: Port, step: Step, until: float) -> Any:
    left = max(0.0, until - monotonic())
    if isinstance(step, calls.Pause):
        step = calls.Pause(min(left, step.seconds))
    if not isinstance(step, Call):
        return await acarry_out(port, step)
    try:
        async with asyncio.timeout(left):
            return await acarry_out(port, step)
    except TimeoutError:
        raise late() from None


_retained: set[asyncio.Future[Any]] = set()


def retain(task: asyncio.Future[Result]) -> asyncio.Future[Result]:
    """Retain a task that nothing may be awaiting, and retrieve its exception."""
    _retained.add(task)
    task.add_done_callback(_retained.discard)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


def late() -> LockUnavailable:
    return LockUnavailable(f"The server did not answer within {TIDY_FOR:g} s of the interruption")


def begun_by(process: Process, first: Step | None) -> LockError:
    name = "" if first is None else first.lock_name  # pauses and signals have none
    return LockError(
        f"The parent process {process.pid} began this operation on lock {name!r} and continues "
        f"it. Begin a new one in the forked child.",
        name=name,
    )
