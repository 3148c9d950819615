"""The two drivers of the protocol: one blocks, one awaits. Neither decides anything."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Generator
from time import monotonic
from typing import Any, Protocol, TypeVar

from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.calls import Call, Emit, Listen, Pause, Post, Step, Wait
from django_redis_lock.support.process import Process, current_process, known_process

TIDY_FOR = 0.25
"""Seconds that an interrupted or cancelled caller waits for the server to take notice."""

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
    """Carry out the steps in this thread or greenlet, and return their result.

    After an interruption what is left of the steps tidies up. A server that does not answer soon
    counts as unavailable then, which the steps leave to the background. Raises ``LockError`` in a
    child that was forked meanwhile: the parent goes on with them.
    """
    process = current_process()
    step: Step | None = None
    resume: Callable[[Any], Step] = steps.send
    value: Any = None
    until: float | None = None  # once it tidies up
    while True:
        try:
            step = resume(value)
            if until is not None:
                value = _tidy(port, step, until)
            else:
                value = port.call(step) if isinstance(step, Call) else _perform(port, step)
            resume = steps.send
        except StopIteration as stop:
            if process is not known_process():
                raise _begun_by(process, step) from None
            result: Result = stop.value
            return result
        except BaseException as error:
            if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                raise  # the steps have ended with it
            resume, value = steps.throw, error  # of the call, or of a signal in between
            if until is None and not isinstance(error, LockError):
                until = monotonic() + TIDY_FOR
        if process is not known_process():
            steps.close()
            raise _begun_by(process, step)


def _tidy(port: Port, step: Step, until: float) -> Any:
    left = max(0.0, until - monotonic())
    if isinstance(step, Pause):
        step = Pause(min(left, step.seconds))
    if not isinstance(step, Call):
        return _perform(port, step)
    call = step
    answers: list[Any] = []
    bell = threading.Lock()
    bell.acquire()

    def carry_out() -> None:
        try:
            answers.append(port.call(call))
        except BaseException as error:
            answers.append(error)
        bell.release()

    if left:
        threading.Thread(target=carry_out, name="django-redis-lock-tidying", daemon=True).start()
    if not bell.acquire(timeout=left):
        raise _late()
    if isinstance(answers[0], BaseException):
        raise answers.pop()
    return answers[0]


def _late() -> LockUnavailable:
    return LockUnavailable(f"The server did not answer within {TIDY_FOR:g} s of the interruption")


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


def _begun_by(process: Process, step: Step | None) -> LockError:
    whose = getattr(step, "waiter", None) or getattr(step, "request", None) or step
    name = getattr(whose, "name", "")
    return LockError(
        f"What was done about lock {name!r} was begun by the parent process {process.pid}, which "
        f"goes on with it; a forked child begins anew.",
        name=name,
    )


async def arun(port: Port, steps: Steps[Result]) -> Result:
    """Carry out the steps in this asyncio task, and return their result. Raises as ``run`` does.

    After a cancellation what is left of the steps tidies up, as in ``run``, to its end in a task of
    its own, even if this one is cancelled again.
    """
    return await _arun(port, steps, steps.send, None, current_process())


async def _arun(
    port: Port,
    steps: Steps[Result],
    resume: Callable[[Any], Step],
    value: Any,
    process: Process,
    *,
    until: float | None = None,
) -> Result:
    step: Step | None = None
    try:
        while process is known_process():
            step = resume(value)
            try:
                if until is not None:
                    answer = await _atidy(port, step, until)
                else:
                    answer = await _aperform(port, step)
                resume, value = steps.send, answer
            except GeneratorExit:
                steps.close()
                raise
            except asyncio.CancelledError as cancelled:
                if until is None and process is known_process():
                    soon = monotonic() + TIDY_FOR
                    rest = _arun(port, steps, steps.throw, cancelled, process, until=soon)
                    return await asyncio.shield(_keep(asyncio.ensure_future(rest)))
                resume, value = steps.throw, cancelled
            except BaseException as error:
                resume, value = steps.throw, error
    except StopIteration as stop:
        if process is known_process():
            result: Result = stop.value
            return result
    steps.close()
    raise _begun_by(process, step)


async def _atidy(port: Port, step: Step, until: float) -> Any:
    left = max(0.0, until - monotonic())
    if isinstance(step, Pause):
        step = Pause(min(left, step.seconds))
    if not isinstance(step, Call):
        return await _aperform(port, step)
    try:
        async with asyncio.timeout(left):
            return await port.acall(step)
    except TimeoutError:
        raise _late() from None


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
