"""Event loops on the virtual clock, asyncio's own in virtual threads, and what their tasks call.

An actor is a greenlet here, too. What it asks of a backend, a task of the loop awaits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any

import redis
from greenlet import getcurrent, greenlet

from tests.simulation import threads
from tests.simulation.clients import SOCKET_TIMEOUT, parse, too_late, words_of
from tests.simulation.network import Fate, Site, broken
from tests.simulation.threads import Killed

_running: ContextVar[Tasklet] = ContextVar("running")


class Loop(asyncio.BaseEventLoop):
    """The event loop of a process, in a thread that ends with the process."""

    def __init__(self, process: Any) -> None:
        super().__init__()
        self.set_debug(False)  # its checks read the clock
        self._selector = self
        self._tasklets: list[Tasklet] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._failure: Exception | None = None
        self.set_task_factory(self._make_task)
        self.thread = threads.Thread(self._work, f"loop of {process}", process=process)
        # The package asks in a task, which may be one that cleans up for the actor's.
        self.thread.requested = lambda request: _running.get().requested(request)
        self.thread.start()

    def start(self, target: Callable[[], object], name: str) -> Tasklet:
        """Start an actor in a task of its own."""
        tasklet = Tasklet(self, target, name)
        self._tasklets.append(tasklet)
        self.call_soon_threadsafe(tasklet.begin)
        return tasklet

    def fail(self, error: Exception) -> None:
        """End the loop, and with it the schedule."""
        self._failure = error
        self.stop()

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
        return task

    # What an event loop has to provide.

    def time(self) -> float:
        return threads.machine.read_clock()

    def select(self, timeout: float | None) -> list[Any]:
        """Block until the loop is woken, or for some seconds."""
        if timeout is None or timeout > 0:
            threads.machine.block(None if timeout is None else threads.machine.now + timeout)
        return []

    def _process_events(self, events: list[Any]) -> None:
        """Do nothing: there are no files."""

    def _write_to_self(self) -> None:
        threads.machine.wake(self.thread)


class Tasklet(greenlet):
    """An actor in an event loop, with what it has in common with a virtual thread."""

    requested: Callable[[Any], object]

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
        """Whether its task waits for something."""
        return bool(self)

    def interrupt(self, error: BaseException, first: Callable[[], object]) -> None:
        """Cancel its task, after calling ``first``; the actor gets ``error`` then."""

        def cancel() -> None:
            first()
            self._error = error
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


class LoopClient:
    """Stands for ``AsyncClient``: the calls of the tasks of one process over one connection."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._open()

    def _open(self) -> None:
        self._pending: list[asyncio.Future[Any]] = []
        self._out, self._in = object(), object()

    async def call(self, packed: Any) -> Any:
        """Send a call and return its reply."""
        packed.sending()
        reply = await self._write(words_of(packed))
        completion = packed.completed(reply)
        try:
            command = next(completion)
            while True:
                command = completion.send(await self._write(parse(command)))
        except StopIteration as stop:
            reply = stop.value
        if isinstance(reply, Exception):
            raise reply
        return reply

    def post(self, packed: Any) -> None:
        """Send a call; nobody waits for its reply."""
        packed.sending()
        self._write(parse(packed.pack(with_source=True)))

    def _write(self, words: Sequence[bytes]) -> asyncio.Future[Any]:
        """Send a command; return the future of its reply."""
        site, pending, back = self._site, self._pending, self._in
        loop = asyncio.get_running_loop()
        thread: threads.Thread = getcurrent()
        fate, delay = site.network.fate(site)
        reply = loop.create_future()
        reply.add_done_callback(lambda reply: reply.cancelled() or reply.exception())
        pending.append(reply)
        timer = loop.call_later(SOCKET_TIMEOUT, self._break, pending, too_late())

        def arrive() -> None:
            answer = broken()
            if site.up and fate is not Fate.LOST:
                result = site.execute(words)
                if fate is not Fate.UNANSWERED:
                    answer = result

            def land() -> threads.Thread | None:
                if reply not in pending or loop.is_closed():
                    return None
                timer.cancel()
                if isinstance(answer, redis.exceptions.ConnectionError):
                    self._break(pending, answer)
                else:
                    pending.remove(reply)
                    if not reply.done():
                        reply.set_result(answer)
                site.network.machine.wake(thread)
                return thread

            late = delay if fate is Fate.ANSWERED_LATE else 0.0
            site.network.send(land, "reply", line=back, site=site, delay=late)

        late = delay if fate is Fate.LATE else 0.0
        site.network.send(arrive, "call", line=self._out, site=site, delay=late)
        return reply

    def _break(self, pending: list[asyncio.Future[Any]], error: Exception) -> None:
        """Close the connection and fail all calls on it; the next call opens another."""
        if self._pending is pending:
            self._open()
        while pending:
            reply = pending.pop(0)
            if not reply.done():
                reply.set_exception(error)

    def close(self) -> None:
        """There is nothing to close."""


def put_on_loops(backend: Any) -> None:
    """Let actors in event loops carry out the steps of a backend in their tasks."""
    block = backend.run

    def run(steps: Any) -> Any:
        actor = getcurrent()
        return actor.wait_for(backend.arun(steps)) if isinstance(actor, Tasklet) else block(steps)

    backend.run = run
