"""Waking and starting threads so that no exception of a signal handler does harm."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
Value = TypeVar("Value")


class cached_property_atomic(Generic[Value]):  # noqa: N801 - is used as a decorator, like property
    """A cached property of which all threads get the same value; two may be made, and one dropped.

    That of ``functools`` may stay locked in a forked child, or give each thread its own (3.12).
    """

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self.__doc__ = make.__doc__
        self._make = make

    def __get__(self, instance: Any, owner: type) -> Value:
        if instance is None:
            return self  # type: ignore[return-value]
        value: Value = instance.__dict__.setdefault(self._make.__name__, self._make(instance))
        return value


def from_below(*kinds: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the kinds, for an ``except`` clause that must not catch what a handler raises."""
    return () if struck(sys.exception()) else kinds


def struck(error: BaseException | None) -> bool:
    """Whether a signal handler raised an error. It was passed the frame that it interrupted."""
    trace = error and error.__traceback__
    while trace and trace.tb_next:
        interrupted, trace = trace.tb_frame, trace.tb_next
        frame = trace.tb_frame  # one of ours would keep what is read of it
        if not frame.f_globals.get("__name__", "").startswith("django_redis_lock."):
            for value in [*frame.f_locals.values()]:  # a handler with ``*args`` has it in a tuple
                items = value if type(value) is tuple else [value]
                if any(item is interrupted for item in items):
                    return True
    return False


LONGEST_SLEEP = 3600.0  # seconds of one sleep at most. A wait without limit sleeps again after that


class OneShotEvent:
    """Wakes one thread, once. ``threading.Event`` may hide what a signal handler raises in it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End the wait, or the one to come."""
        with contextlib.suppress(RuntimeError):  # it has rung before
            self._lock.release()

    def wait(self, until: float) -> None:
        """Block until it rings, or until ``until`` (monotonic), or for an hour."""
        self._lock.acquire(timeout=_seconds_to(until))


class AsyncOneShotEvent:
    """Wakes one asyncio task, once, from any thread."""

    __slots__ = ("_loop", "_woken")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()

    def ring(self) -> bool:
        """End the wait, or the one to come; return False if the event loop has been closed."""
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            return False
        return True

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, until: float) -> None:
        await asyncio.wait([self._woken], timeout=_seconds_to(until))


def _seconds_to(until: float) -> float:
    return min(max(0.0, until - monotonic()), LONGEST_SLEEP)


def start_thread(function: Callable[[], object]) -> None:
    """Run a function in a new thread. Raises ``RuntimeError`` if the interpreter shuts down.

    With Python 3.11, an exception for the thread that starts it (``PyThreadState_SetAsyncExc``, by
    which task queues end a job) may strike the new one first of all, and must not end it.
    """

    def begin() -> Iterator[None]:
        try:
            yield  # it strikes here
        except GeneratorExit:  # the thread was not started
            return
        except BaseException:  # noqa: S110 - it is about a job of the other thread
            pass
        function()

    begun = begin()
    next(begun)
    _thread.start_new_thread(next, (begun, None))


class InThread(Generic[Result]):
    """A function that runs in a thread. An interruption of any caller ends only that one's wait."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self.done = False
        self._function = function
        self._error: BaseException | None = None
        self._result: Result
        self._callbacks: list[Callable[[], object]] = []
        try:
            start_thread(self._run)
        except RuntimeError:  # the interpreter shuts down
            self._run()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error.with_traceback(None)  # else it keeps this frame, and the frame it
        self.done = True
        for callback in [*self._callbacks]:
            callback()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call a function at the end, in any thread; it may be called twice."""
        self._callbacks.append(callback)
        if self.done:
            callback()

    def result(self, until: float = math.inf) -> Result:
        """Return or raise what the function does; ``TimeoutError`` if that is after ``until``."""
        event = OneShotEvent()
        self.when_done(event.ring)
        event.wait(until)
        if not self.done:
            raise TimeoutError("The server did not answer in time")
        try:
            if self._error is not None:
                raise self._error
            return self._result
        finally:
            del self  # else the error keeps this frame, and the frame it

    async def aresult(self) -> Result:
        """Return or raise the same, without blocking the event loop or using its executor."""
        event = AsyncOneShotEvent()
        self.when_done(event.ring)
        await event.wait(math.inf)
        try:
            return self.result()
        finally:
            del self


IDLE = 5.0  # seconds after which a thread with nothing to do ends


class Background:
    """Calls ``work`` in a thread of its own, while it has something to do.

    Callers use bare locks, because an exception that a signal handler raises in the Python code of
    ``threading`` would leave a condition locked forever, or mark a running thread as ended.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """Forget the thread, which a forked child does not have."""
        self.runs = False
        self.wakes_at = math.inf
        """When (monotonic) the thread wakes by itself; infinite while it is awake, or ended."""
        self._wanted_at = 0.0  # when it was last asked to be awake
        self._event = OneShotEvent()
        self._mutex = threading.RLock()  # a signal handler may call while its thread has it
        self._at_work = threading.Lock()  # which the thread holds

    def work(self) -> float:
        """Do what is due; return when (monotonic) to go on, infinity if there is nothing to do."""
        raise NotImplementedError

    def ended(self) -> None:
        """Note that the thread ends."""

    def wake(self, due: float) -> None:
        """Have the thread awake at a moment (monotonic). Raises ``RuntimeError`` if none starts."""
        self._wanted_at = due
        with self._mutex:
            if not self.runs:
                start_thread(self._begin)
                # If a signal handler raises here, a second thread is started, and ends at once.
                self.runs = True
        self._event.ring()

    def _begin(self) -> None:
        # ``Thread.start`` is Python code in which a signal handler may raise, so it runs in a
        # thread that gets no signals.
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:  # the process has begun to end: this thread has to do
            self._run()

    def _run(self) -> None:
        if not self._at_work.acquire(blocking=False):
            return
        try:
            self._work_on()
        finally:
            self.wakes_at = math.inf
            with self._mutex:
                self.runs = False
                self._at_work.release()
                self.ended()
        if self.work() < math.inf:  # something was added while it ended
            with contextlib.suppress(RuntimeError):
                self.wake(0.0)

    def _work_on(self) -> None:
        woken = True
        while True:
            self.wakes_at = math.inf  # so that a caller that adds something now wakes it
            due, now = self.work(), monotonic()
            if due == math.inf and not woken:
                return
            if due > now:
                # If what it woke for is done, it sleeps on until that would have been due. Then
                # short holds wake it now and then, rather than each time.
                early = self._wanted_at if self._wanted_at > now else due
                self.wakes_at = min(now + IDLE, due, early)
                self._event.wait(self.wakes_at)
                woken = monotonic() < self.wakes_at
