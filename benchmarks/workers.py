"""Worker processes, each with one contender, that run functions when told to."""

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from threading import Thread
from types import TracebackType
from typing import Any, Self

from .contenders import EVERYONE, AsyncContender, Contender, Handle

PATIENCE = 120
"""Seconds after which a worker that does not answer is given up."""


class WorkerError(Exception):
    """A function failed in a worker process; the text is the type and text of what it raised."""


class Seat:
    """What a worker process keeps between two calls."""

    def __init__(self, contender: Contender | AsyncContender) -> None:
        self.contender: Any = contender
        self.handles: list[Handle] = []
        self.threads: list[Thread] = []
        self.notes: list[Any] = []


class Worker:
    """A process started afresh (never forked, so that it shares no connection) for a contender."""

    def __init__(self, slug: str, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, slug, url), daemon=True)
        self._process.start()
        far.close()

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        """Send a function of this package to the worker and do not wait for it."""
        self._pipe.send((function, args))

    def result(self) -> Any:
        """Wait for the answer to the oldest `start`, or to the start of the process itself."""
        if not self._pipe.poll(PATIENCE):
            self.close()
            raise WorkerError(f"no answer within {PATIENCE} s")
        try:
            ok, value = self._pipe.recv()
        except EOFError:
            raise WorkerError("the process is gone") from None
        if not ok:
            raise WorkerError(value)
        return value

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function in the worker and return its answer."""
        self.start(function, *args)
        return self.result()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(0.5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class Crew:
    """Workers of one contender, ready when the `with` block is entered; ended when it is left."""

    def __init__(self, slug: str, url: str, size: int = 1) -> None:
        self.slug = slug
        self.workers = [Worker(slug, url) for _ in range(size)]

    def ready(self) -> Self:
        """Wait until every process has set up its contender; raise if one could not."""
        for worker in self.workers:
            worker.result()
        return self

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function in the first worker and return its answer."""
        return self.workers[0].call(function, *args)

    def together(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run a function in all workers at once and return their answers."""
        for worker in self.workers:
            worker.start(function, *args)
        return [worker.result() for worker in self.workers]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def __enter__(self) -> Self:
        try:
            return self.ready()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def warm(seat: Seat, name: str = "warm") -> None:
    """Open the connection and load the scripts, so that no measurement pays for it."""
    for number in range(3):
        handle = seat.contender.lock(f"{name}:{number}")
        handle.acquire()
        handle.release()


def _serve(pipe: Connection, slug: str, url: str) -> None:
    """Answer calls until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    try:
        seat = Seat(EVERYONE[slug](url))
    except Exception as error:
        pipe.send((False, _told(error)))
        return
    pipe.send((True, None))
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, function(seat, *args))
        except Exception as error:
            answer = (False, _told(error))
        pipe.send(answer)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
