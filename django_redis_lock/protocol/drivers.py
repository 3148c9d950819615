"""The drivers that carry out generators of steps, blocking or under asyncio.

``run`` and ``arun`` handle interruption, cancellation and forks. They carry out what a caller asked
for, and within that the steps of a call which has some of its own. A ``Runner`` is what calls are
carried out on: a backend.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from django_redis_lock import signals
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.calls import Call, Emit, Pause, Step, Steps
from django_redis_lock.support.process import InThread, Process, current_process, known_process

logger = logging.getLogger("django_redis_lock")
Result = TypeVar("Result")
TIDY_FOR = 0.25
"""Seconds that an interrupted or cancelled caller waits for the server to clean up."""


def run(port: Any, steps: Steps[Result]) -> Result:
    """Carry out steps in this thread or greenlet, and return their result.

    After an interruption the remaining steps clean up. A server that does not answer soon then
    counts as unavailable, and the clean-up is left to the background. Raises ``LockError`` in a
    child that was forked meanwhile, since the parent continues with the steps.
    """
    process = current_process()
    first: Step | None = None
    try:
        first = step = next(steps)
        while True:
            answer = step.do(port)
            if process is not known_process():
                break
            step = steps.send(answer)
    except StopIteration as stop:
        if process is known_process():
            result: Result = stop.value
            return result
    except BaseException as error:  # of a step, or of a signal handler at any moment
        if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
            raise
        return _run_on(port, steps, error, process, first)
    steps.close()
    raise _begun_by(process, first)


def _run_on(
    port: Any,
    steps: Steps[Result],
    raised: BaseException | None,
    process: Process,
    first: Step | None,
) -> Result:
    """Let the steps handle an error, and carry out those that they take then."""
    answer: Any = None
    until: float | None = None  # set once it cleans up
    while True:
        if process is not known_process():
            steps.close()
            raise _begun_by(process, first)
        if until is None and not isinstance(raised, LockError | None):
            until = monotonic() + TIDY_FOR
        try:
            step = steps.send(answer) if raised is None else steps.throw(raised)
            raised = None
            answer = step.do(port) if until is None else _tidy(port, step, until)
        except StopIteration as stop:
            if process is not known_process():
                raise _begun_by(process, first) from None
            result: Result = stop.value
            return result
        except BaseException as error:
            if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                raised = None  # else the error keeps this frame, and the frame the error
                raise
            raised = error


def _tidy(port: Any, step: Step, until: float) -> Any:
    left, step = _limited(step, until)
    if not isinstance(step, Call):
        return step.do(port)
    if not left:
        raise _late()
    try:
        return InThread(partial(step.do, port)).result(until)
    except TimeoutError:
        raise _late() from None


def _limited(step: Step, until: float) -> tuple[float, Step]:
    left = max(0.0, until - monotonic())
    return left, Pause(min(left, step.seconds)) if isinstance(step, Pause) else step


def _late() -> LockUnavailable:
    return LockUnavailable(f"The server did not answer within {TIDY_FOR:g} s of the interruption")


def _begun_by(process: Process, first: Step | None) -> LockError:
    name = "" if first is None else first.lock_name  # pauses and signals have none
    return LockError(
        f"This operation on lock {name!r} was begun by the parent process {process.pid}, which "
        f"continues it. Begin a new one in the forked child.",
        name=name,
    )


async def arun(port: Any, steps: Steps[Result]) -> Result:
    """Carry out steps in this asyncio task, and return their result. Raises as ``run`` does.

    After a cancellation the remaining steps clean up as in ``run``. They do so in a task of their
    own, so a second cancellation does not stop them.
    """
    return await _arun(port, steps, steps.send, None, current_process())


async def _arun(
    port: Any,
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
                answer = await (step.ado(port) if until is None else _atidy(port, step, until))
                resume, value = steps.send, answer
            except GeneratorExit:
                steps.close()
                raise
            except asyncio.CancelledError as cancelled:
                if until is None and process is known_process():
                    soon = monotonic() + TIDY_FOR
                    rest = _arun(port, steps, steps.throw, cancelled, process, until=soon)
                    task = retain(asyncio.ensure_future(rest))
                    # Unlike shield() of Python 3.14, it reports no error that nobody awaits.
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
    raise _begun_by(process, first)


async def _atidy(port: Any, step: Step, until: float) -> Any:
    left, step = _limited(step, until)
    if not isinstance(step, Call):
        return await step.ado(port)
    try:
        async with asyncio.timeout(left):
            return await step.ado(port)
    except TimeoutError:
        raise _late() from None


_retained: set[asyncio.Future[Any]] = set()


def retain(task: asyncio.Future[Result]) -> asyncio.Future[Result]:
    """Retain a task that nothing may be awaiting, and retrieve its exception."""
    _retained.add(task)
    task.add_done_callback(_retained.discard)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


class Runner:
    """Carries out the steps of the protocol, with the calls that a subclass carries out."""

    alias: str

    def call(self, call: Call) -> Any:
        """Carry out one call. Raises ``LockUnavailable``."""
        raise NotImplementedError

    async def acall(self, call: Call) -> Any:
        """Carry out one call under asyncio. Raises ``LockUnavailable``."""
        return self.call(call)

    def post(self, call: Call) -> None:
        """Send a call whose reply is not needed. Raises ``LockUnavailable``.

        By default it waits for the reply; a backend that can send without waiting overrides it.
        """
        self.call(call)

    async def apost(self, call: Call) -> None:
        """Send a call whose reply is not needed, under asyncio."""
        await self.acall(call)

    def run(self, steps: Steps[Result]) -> Result:
        """Carry out steps of the protocol, blocking."""
        try:
            return run(self, steps)
        except LockUnavailable as error:
            for emission in self.unavailable(error):
                emission.do(self)
            raise

    async def arun(self, steps: Steps[Result]) -> Result:
        """Carry out steps of the protocol under asyncio."""
        try:
            return await arun(self, steps)
        except LockUnavailable as error:
            for emission in self.unavailable(error):
                await emission.ado(self)
            raise

    def unavailable(self, error: LockUnavailable) -> tuple[Emit, ...]:
        """Send ``lock_unavailable`` as ``emit`` does."""
        return self.emit(signals.lock_unavailable, error.name, error=error)

    def emit(self, signal: signals.LockSignal, name: str, **facts: Any) -> tuple[Emit, ...]:
        """Send a signal about a lock: at once, or by the step to take if a receiver may block."""
        arguments = {"sender": type(self), "using": self.alias, "name": name, **facts}
        if signal.may_block:
            return (Emit(signal, arguments),)
        for receiver in signal.quick:  # a further call would take as long as the receiver
            try:
                receiver(signal=signal, **arguments)
            except Exception:
                logger.exception("The receiver %r of a signal failed", receiver)
        return ()
