"""The driver of the protocol under asyncio."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, TypeVar, cast

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import calls, drivers
from django_redis_lock.protocol.calls import Call, Listen, Step, Steps
from django_redis_lock.protocol.drivers import Port, begun_by, late
from django_redis_lock.support.process import Process, current_process, known_process

Result = TypeVar("Result")
LAST_CALL = 0.02
"""Seconds in which an event loop, if it was blocked, reads an answer that has arrived."""


async def arun(port: Port, steps: Steps[Result]) -> Result:
    """Carry out steps in this asyncio task, and return their result. Raises as ``Port.run`` does.

    After a cancellation the remaining steps clean up in a task of their own, which a second
    cancellation does not stop.
    """
    try:
        return await _arun(port, steps, steps.send, None, current_process())
    except BaseException as error:
        for emission in port.failed(error):
            await acarry_out(port, emission)
        raise


async def acarry_out(port: Port, step: Step) -> Any:
    """Carry out a step in this asyncio task."""
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
    port: Port,
    steps: Steps[Result],
    resume: Callable[[Any], Step],
    value: Any,
    process: Process,
    *,
    until: float | None = None,
) -> Result:
    first: Step | None = None
    try:
        while process is known_process():
            step = resume(value)
            first = first or step
            try:
                answer = await (
                    acarry_out(port, step) if until is None else _atidy(port, step, until)
                )
                resume, value = steps.send, answer
            except GeneratorExit:
                steps.close()
                raise
            except asyncio.CancelledError as cancelled:
                if until is None and process is known_process():
                    soon = monotonic() + drivers.TIDY_FOR
                    rest = _arun(port, steps, steps.throw, cancelled, process, until=soon)
                    task = retain(asyncio.ensure_future(rest))
                    # Unlike shield() of Python 3.14, it reports no error of an abandoned task.
                    await asyncio.wait([task])
                    return task.result()
                resume, value = steps.throw, cancelled
            except BaseException as error:
                resume, value = steps.throw, error
    except StopIteration as stop:
        if process is known_process():
            return cast("Result", stop.value)
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
