"""Processes in which the contenders run, each with its library set up once."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PATIENCE = 120
"""Seconds after which a worker that does not answer has failed."""


class WorkerError(Exception):
    """A function failed in a worker; the text is the type and text of its exception."""


class Worker:
    """A spawned process with a contender.

    ``before`` is the path of another checkout of the package, which is imported in place of this
    one. Without ``hiredis`` redis-py does not find it.
    """

    def __init__(self, slug: str, url: str, *, hiredis: bool = False, before: str = "") -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        arguments = (far, slug, url, hiredis, before)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        far.close()

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        """Have the worker call a function with its contender and ``args``."""
        self._pipe.send((function, args))

    def result(self) -> Any:
        """Wait for the answer to the oldest ``start``."""
        if not self._pipe.poll(PATIENCE):
            raise WorkerError(f"no answer within {PATIENCE} s")
        try:
            ok, value = self._pipe.recv()
        except EOFError:
            raise WorkerError("the process has ended") from None
        if not ok:
            raise WorkerError(value)
        return value

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        self.start(function, *args)
        return self.result()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        self._pipe.close()
        self._process.join(0.5)
        if self._process.is_alive():
            self.kill()


@contextmanager
def crew(size: int, slug: str, url: str, **options: Any) -> Any:
    """Start workers with the same contender; they end with the block."""
    workers = [Worker(slug, url, **options) for _ in range(size)]
    try:
        for worker in workers:
            worker.result()
        yield workers
    finally:
        for worker in workers:
            worker.close()


def together(workers: list[Worker], function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call a function in all workers at once; return their answers."""
    for worker in workers:
        worker.start(function, *args)
    return [worker.result() for worker in workers]


def _serve(pipe: Connection, slug: str, url: str, hiredis: bool, before: str) -> None:
    try:
        if not hiredis:
            sys.modules["hiredis"] = None  # type: ignore[assignment]
        if before:
            sys.path.insert(0, str(Path(before).resolve()))
        from benchmarks.contenders import CONTENDERS

        contender = CONTENDERS[slug](url)
        pipe.send((True, None))
        while True:
            function, rest = pipe.recv()
            try:
                answer = (True, function(contender, *rest))
            except Exception as error:
                answer = (False, f"{type(error).__name__}: {error}")
            pipe.send(answer)
    except (EOFError, OSError):
        os._exit(0)  # objects of libraries must not talk to their servers when they are collected
    except Exception as error:
        pipe.send((False, f"{type(error).__name__}: {error}"))
