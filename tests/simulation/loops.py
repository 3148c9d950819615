"""Event loops on the virtual clock, asyncio's own in virtual threads, and what their tasks call. An
actor is a greenlet here, too. What it asks of a backend, a task of the loop awaits for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any

from greenlet import getcurrent, greenlet
from redis.exceptions import RedisError

from django_redis_lock.exceptions import LockError
from tests.simulation import threads
from tests.simulation.threads import Killed

_running: ContextVar[Tasklet] = ContextVar("running")


class Loop(asyncio.BaseEventLoop):
    """The event loop of a process, in a thread that ends with the process."""

    def __init__(self, process: Any) -> None:
        super().__init__()
        self.set_debug(False)  # its checks read the clock
        self._selector = self
        self._selects = False
        self._tasklets: list[Tasklet] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._failure: Exception | None = None
        self.set_task_factory(self._make_task)
        self.thread = threads.Thread(self._work, f"loop of {process}", process=process)
        # The package asks in a task, which may be one that cleans up for the actor's.
        self.thread.requested = lambda request: _running.get().requested(request)
        self.thread.start()

    def start(self, target: Callable[[], object], name: str) -> Tasklet:
        tasklet = Tasklet(self, target, name)
        self._tasklets.append(tasklet)
        self.call_soon_threadsafe(tasklet.begin)
        return tasklet

    def fail(self, error: Exception) -> None:
        """End the loop, and with it the schedule."""
        self._failure = self._failure or error
        self.stop()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if isinstance(error := context.get("exception"), Exception):
            self.fail(error)

    def _work(self) -> None:
        try:
            self.run_forever()
        finally:
            self._abandon()
        if self._failure is not None:
            raise self._failure

    def _abandon(self) -> None:
        """Unwind all actors and tasks, as the loop does not run any more."""
        for tasklet in self._tasklets:
            if tasklet:
                tasklet.throw(Killed())
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(Exception, Killed):  # nothing that they do counts
                    task.get_coro().close()  # type: ignore[union-attr]
        self.close()

    def _make_task(self, loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        self._tasks = [item for item in self._tasks if not item.done()]
        self._tasks.append(task)
        task.add_done_callback(self._check)
        return task

    def _check(self, task: asyncio.Task[Any]) -> None:
        """Fail with what nobody may see, as a task that cleans up has raised it."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not isinstance(error, LockError | RedisError):
            self.fail(error)

    # What an event loop has to provide.

    def time(self) -> float:
        return threads.machine.read_clock()

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None or timeout > 0:
            self._selects = True
            try:
                threads.machine.block(None if timeout is None else threads.machine.now + timeout)
            finally:
                self._selects = False
        return []

    def _process_events(self, events: list[Any]) -> None:
        """Do nothing: there are no files."""

    def add_reader(self, connection: Any, callback: Callable[..., object], *args: Any) -> None:
        connection.watched_by(self, partial(callback, *args))

    def remove_reader(self, connection: Any) -> None:
        """Do nothing: it is not read any more."""

    remove_writer = remove_reader

    def _write_to_self(self) -> None:
        if self._selects:  # and is not blocked by a lock
            threads.machine.wake(self.thread)


class Tasklet(greenlet):
    """An actor in an event loop, with what it has in common with a virtual thread."""

    requested: Callable[[Any], object]
    interruption: BaseException | None = None
    """What it was interrupted with in the middle of an operation."""

    def __init__(self, loop: Loop, target: Callable[[], object], name: str) -> None:
        super().__init__(self._bootstrap, loop.thread)
        self.name = name
        self.process = loop.thread.process
        self._loop = loop
        self._target = target
        self._task: asyncio.Task[None]
        self._error: BaseException

    def begin(self) -> None:
        self._task = self._loop.create_task(self._carry())

    @property
    def blocked(self) -> bool:
        """Whether it has begun, so that its task waits for something, or is about to go on."""
        return bool(self)

    def interrupt(self, error: BaseException, first: Callable[[], object]) -> None:
        """Cancel its task, after calling ``first``; the actor gets ``error`` then."""

        def cancel() -> None:
            first()
            self.interruption = self._error = error
            self._task.cancel()

        self._loop.call_soon_threadsafe(cancel)

    def sleep(self, seconds: float) -> None:
        self.wait_for(asyncio.sleep(seconds))

    def wait_for(self, steps: Coroutine[Any, Any, Any]) -> Any:
        """Return what the task gets for it."""
        if not self._loop.is_running():
            steps.close()
            raise Killed
        return self._loop.thread.switch(steps)

    async def _carry(self) -> None:
        """Await what the actor waits for, until it has ended."""
        _running.set(self)
        awaitable = self.switch()
        while not self.dead:
            try:
                result = await awaitable
            except asyncio.CancelledError:
                self._task.uncancel()
                awaitable = self.throw(self._error)
            except Exception as error:
                awaitable = self.throw(error)
            else:
                awaitable = self.switch(result)

    def _bootstrap(self) -> None:
        try:
            self._target()
        except Killed:
            pass
        except Exception as error:
            self._loop.fail(error)


def put_on_loops(backend: Any) -> None:
    """Let actors in event loops carry out the steps of a backend in their tasks."""
    block = backend.run

    def run(steps: Any) -> Any:
        actor = getcurrent()
        return actor.wait_for(backend.arun(steps)) if isinstance(actor, Tasklet) else block(steps)

    backend.run = run
