"""The two drivers of the protocol: one blocks, one awaits. Neither decides anything."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from django_redis_lock.steps import Call, Emit, Listen, Pause, Post, Step, Wait

Result = TypeVar("Result")
Steps = Generator[Step, Any, Result]


class Port(Protocol):
    """What the drivers work on: a backend."""

    def call(self, call: Call) -> Any:
        """Carry out a call, once. Raises ``LockUnavailable``."""

    async def acall(self, call: Call) -> Any:
        """Carry out a call, once. Raises ``LockUnavailable``."""

    def post(self, call: Call) -> None:
        """Send a call, and don't wait for its reply. Raises ``LockUnavailable``."""

    async def apost(self, call: Call) -> None:
        """Send a call, and don't wait for its reply. Raises ``LockUnavailable``."""


def run(port: Port, steps: Steps[Result]) -> Result:
    """Carry out the steps in this thread or greenlet, and return their result."""
    resume: Callable[[Any], Step] = steps.send
    value: Any = None
    while True:
        try:
            step = resume(value)
            value = port.call(step) if isinstance(step, Call) else _perform(port, step)
            resume = steps.send
        except StopIteration as stop:
            result: Result = stop.value
            return result
        except BaseException as error:
            if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                raise  # the steps have ended with it
            resume, value = steps.throw, error  # of the call, or of a signal in between


def _perform(port: Port, step: Step) -> Any:
    if isinstance(step, Wait):
        step.hub.wait(step.waiter, step.until)
    elif isinstance(step, Post):
        port.post(step.call)
    elif isinstance(step, Listen):
        step.hub.listen(step.name)
    elif isinstance(step, Pause):
        time.sleep(step.seconds)
    elif isinstance(step, Emit):
        step.signal.send_robust(**step.arguments)
    return None


async def arun(port: Port, steps: Steps[Result]) -> Result:
    """Carry out the steps in this asyncio task, and return their result.

    After a cancellation what is left of the steps tidies up, so it runs to its end in a task of
    its own, even if this one is cancelled again.
    """
    return await _arun(port, steps, steps.send, None)


async def _arun(
    port: Port,
    steps: Steps[Result],
    resume: Callable[[Any], Step],
    value: Any,
    *,
    tidying: bool = False,
) -> Result:
    try:
        step = resume(value)
        while True:
            try:
                answer = await _aperform(port, step)
            except asyncio.CancelledError as cancelled:
                if not tidying:
                    rest = _arun(port, steps, steps.throw, cancelled, tidying=True)
                    return await asyncio.shield(_keep(asyncio.ensure_future(rest)))
                step = steps.throw(cancelled)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        result: Result = stop.value
        return result


async def _aperform(port: Port, step: Step) -> Any:
    if isinstance(step, Call):
        return await port.acall(step)
    if isinstance(step, Wait):
        await step.hub.await_(step.waiter, step.until)
    elif isinstance(step, Post):
        await port.apost(step.call)
    elif isinstance(step, Listen):
        await step.hub.alisten(step.name)
    elif isinstance(step, Pause):
        await asyncio.sleep(step.seconds)
    elif isinstance(step, Emit):
        await step.signal.asend_robust(**step.arguments)
    return None


_kept: set[asyncio.Future[Any]] = set()


def _keep(task: asyncio.Future[Result]) -> asyncio.Future[Result]:
    """Hold a reference to a task that nobody may be waiting for, and see its outcome."""

    def done(task: asyncio.Future[Any]) -> None:
        _kept.discard(task)
        if not task.cancelled():
            task.exception()

    _kept.add(task)
    task.add_done_callback(done)
    return task
