"""Worker processes that run functions on an object of their own."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Self

PATIENCE = 120
"""Seconds after which a worker that does not answer has failed."""


class WorkerError(Exception):
    """A function failed in a worker process; the text is the type and text of its exception."""


class Worker:
    """A spawned process, which shares no connection with this one, with the object `make(*args)`.

    The first `result` tells whether the object could be made.
    """

    def __init__(self, make: Callable[..., Any], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, make, args), daemon=True)
        # It inherits the ignored signal: only this process decides how a run ends.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        far.close()

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        """Send a function to the worker, which calls it with its object and `args`."""
        self._pipe.send((function, args))

    def result(self, patience: float | None = PATIENCE) -> Any:
        """Wait for the answer to the oldest `start`."""
        if not self._pipe.poll(patience):
            self.close()
            raise WorkerError(f"no answer within {patience} s")
        try:
            ok, value = self._pipe.recv()
        except EOFError:
            raise WorkerError("the process has ended") from None
        if not ok:
            raise WorkerError(value)
        return value

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function in the worker and return its answer."""
        self.start(function, *args)
        return self.result()

    def interrupt(self) -> None:
        """Send SIGTERM to the worker."""
        self._process.terminate()

    def close(self) -> None:
        self._pipe.close()
        self._process.join(0.5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class Crew:
    """Workers with equal objects."""

    def __init__(self, size: int, make: Callable[..., Any], *args: Any) -> None:
        self.workers = [Worker(make, *args) for _ in range(size)]

    def ready(self) -> Self:
        """Wait until every worker has made its object."""
        for worker in self.workers:
            worker.result()
        return self

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function in the first worker and return its answer."""
        return self.workers[0].call(function, *args)

    def turn(self, number: int) -> Worker:
        """Return the worker whose turn it is.

        The same code runs at slightly different speeds in equal processes, so that a small
        difference is measured in several.
        """
        return self.workers[number % len(self.workers)]

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

    def __exit__(self, *_error: object) -> None:
        self.close()


def _serve(pipe: Connection, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        held = make(*args)
        pipe.send((True, None))
        while True:
            function, rest = pipe.recv()
            try:
                answer = (True, function(held, *rest))
            except Exception as error:
                answer = (False, _text(error))
            pipe.send(answer)
    except (EOFError, OSError):
        os._exit(0)  # objects of libraries must not talk to their servers when they are collected
    except Exception as error:
        pipe.send((False, _text(error)))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
