"""End the waits for locks in a worker that is to stop, so that their messages go back.

The worker's parent says so in memory that it shares with its children. Those that wait look at it
every now and then, for no signal of the system or of Celery tells a child of a warm shutdown.
"""

from __future__ import annotations

import mmap
from collections.abc import Generator
from time import monotonic
from typing import Any

from celery import bootsteps
from celery.signals import worker_init, worker_shutdown, worker_shutting_down

from django_redis_lock.protocol.calls import Step, Wait
from django_redis_lock.protocol.drivers import Result, Steps

LOOK_EVERY = 0.5
"""Seconds after which a wait notices at the latest that its worker is to stop."""

_stops = mmap.mmap(-1, 1)


class WorkerStops(Exception):
    """The worker in which a task waits for its lock is to stop."""


class UntilWorkerStops(Generator[Step, Any, Result]):
    """Steps in which ``WorkerStops`` is raised where they would wait in a stopping worker."""

    def __init__(self, steps: Steps[Result]) -> None:
        self._steps = steps

    def send(self, value: Any) -> Step:
        return self._limited(self._steps.send(value))

    def throw(self, error: Any, value: Any = None, traceback: Any = None) -> Step:
        return self._limited(self._steps.throw(error))

    def _limited(self, step: Step) -> Step:
        if isinstance(step, Wait):
            if _stops[0]:
                return self.throw(WorkerStops())
            step.until = min(step.until, monotonic() + LOOK_EVERY)
        return step


class Stopping(bootsteps.StartStopStep):
    """Ends the waits before the pool waits for its tasks, however the worker came to stop."""

    def close(self, worker: Any) -> None:
        _end_waits()


def _end_waits(**kwargs: Any) -> None:
    _stops[0] = 1


def _on_init(sender: Any = None, **kwargs: Any) -> None:
    sender.app.steps["worker"].add(Stopping)


def _on_shutdown(**kwargs: Any) -> None:
    _stops[0] = 0  # another worker may start in this process


worker_init.connect(_on_init, weak=False)
worker_shutting_down.connect(_end_waits, weak=False)
worker_shutdown.connect(_on_shutdown, weak=False)
