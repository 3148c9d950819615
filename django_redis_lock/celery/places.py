"""The locks of one key: those that a task waits for and runs with, and those of messages."""

from __future__ import annotations

import hashlib
import mmap
import random
import secrets
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import Any

from celery import bootsteps
from celery.signals import worker_init, worker_shutdown, worker_shutting_down

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.celery.options import Options
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.primitives.lock import DETACHED, Lock
from django_redis_lock.protocol.calls import Step, Wait
from django_redis_lock.protocol.drivers import Result, Steps
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.records import Holder
from django_redis_lock.protocol.waiting import POLL_EVERY
from django_redis_lock.support.arguments import MAX_NAME_LENGTH, Default, check_name
from django_redis_lock.support.process import current_process, state_of

FAMILY = secrets.token_hex(8)
"""Shared by a worker and the children that it forks, and by no other process.

A process id says whether a process lives only within a family: machines and containers may share a
host name, and each has its own process ids.
"""
QUEUED = "queued"
"""The ``state`` in the metadata of a lock that is held for a message in a queue."""
RESTING = "resting"
"""The ``state`` of a lock that is kept for a while after a short run."""
SINCE = "queued_since"
"""From when on the work of a place counts as waiting: by the server's clock in seconds, or, with a
``+``, that many seconds after the place was taken."""
MARK = "~~"
"""Separates a key from what the guard adds to it in the name of a lock."""
TURN = 1.0
"""Seconds to wait for one of several locks before trying the others."""

STOP_EVERY = 0.5
"""Seconds after which a wait notices at the latest that its worker is to stop."""

_stops = mmap.mmap(-1, 1)


def is_for_message(holder: Holder) -> bool:
    """Whether a lock is held for a message, which needs a worker before it can end."""
    return holder.metadata.get("state") in (QUEUED, DETACHED)


def is_dead(holder: Holder) -> bool:
    """Whether a task's holder is known to have died: its process, on this host, is gone.

    A lock with a ``state`` is held for a message or a rest, and by no process.
    """
    family, here = holder.metadata.get("worker"), current_process()
    if not family or holder.metadata.get("state") or holder.host != here.host:
        return False
    ours = family == FAMILY or (here.pid_space and holder.pid_space == here.pid_space)
    return bool(ours) and not state_of(holder.pid, holder.pid_began)


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
            step.until = min(step.until, monotonic() + STOP_EVERY)
        return step


class HeldForMessage(LockError):
    """A worker must not wait for this lock: its holder is a message."""


class _LookAtHolder(Step):
    """Raises ``HeldForMessage`` if that is what a lock is."""

    __slots__ = ("due", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.due = 0.0

    def do(self, port: BaseLockBackend) -> None:
        if monotonic() < self.due:  # a waiter that polls comes by more often
            return
        self.due = monotonic() + POLL_EVERY
        try:
            holder = port.holder(self.name)
        except LockUnavailable:  # which a waiter tolerates for a while
            return
        if holder is not None and is_for_message(holder):
            raise HeldForMessage(f"Lock {self.name!r} is held for a message.", name=self.name)


class TaskLock(Lock):
    """A lock held by a task."""

    task: Any = None
    task_id: str | None = None
    until_worker_stops = False
    """Whether a wait for it ends with ``WorkerStops`` in a worker that is to stop."""
    for_runs: bool = False
    """Whether to wait for runs only, and to raise ``HeldForMessage`` for a message."""

    def _acquire(self, until: float | None, from_token_id: str = "") -> Steps[bool]:
        steps = super()._acquire(until, from_token_id)
        waits = until is not None and self.until_worker_stops
        return (yield from UntilWorkerStops(steps) if waits else steps)

    def _request(self, backend: BaseLockBackend) -> Request:
        request = super()._request(backend)
        if self.for_runs:
            request.when_held = _LookAtHolder(self.name)
        return request


@dataclass(eq=False)
class Places:
    """The locks of one key, for one task: as many as may run at once."""

    options: Options
    key: str
    _task: Any
    _task_id: str | None
    _until_worker_stops: bool = False
    """Whether waits for these locks end in a worker that is to stop."""

    @cached_property
    def names(self) -> list[str]:
        """The locks of which a run needs one. Raises ``TypeError`` or ``ValueError``."""
        count = self.options.concurrency
        if count > 1:
            return [_marked(self.key, str(number + 1)) for number in range(count)]
        return [_marked(self.key, "run") if MARK in self.key else self.key]

    @cached_property
    def waiting(self) -> str:
        """The lock that a waiting message holds with scope ``queue``.

        It belongs to the task, and the lock of the run to all tasks with the key. Raises
        ``TypeError`` or ``ValueError``.
        """
        return _marked(self.key, f"{QUEUED}:{self._task.name}")

    @cached_property
    def behind(self) -> str:
        """The same for a second message, while one waits that is no longer superseded."""
        return _marked(self.key, f"{QUEUED}2:{self._task.name}")

    @property
    def backend(self) -> BaseLockBackend:
        return locks[self.options.using]

    def lock(
        self, name: str, timeout: float | Default | None, using: str = "", **metadata: str
    ) -> TaskLock:
        """Return a handle; ``using`` overrides the alias of the task."""
        lock = TaskLock(
            lambda: locks[using or self.options.using],
            name,
            timeout,
            metadata={"worker": FAMILY, **metadata},
            task_id=self._task_id,
            task_name=self._task.name,
        )
        lock.task, lock.task_id = self._task, self._task_id
        lock.until_worker_stops = self._until_worker_stops
        return lock

    def take(self, timeout: float | Default | None, **metadata: str) -> TaskLock | None:
        """Take a free lock; return ``None`` if all are held. Raises ``LockUnavailable``."""
        for name in random.sample(self.names, len(self.names)):
            lock = self.lock(name, timeout, **metadata)
            if lock.acquire(blocking=False):
                return lock
        return None

    def wait(
        self,
        timeout: float | Default | None,
        seconds: float | None,
        *,
        for_runs: bool,
        **metadata: str,
    ) -> TaskLock | None:
        """Wait in the queue of a lock; return ``None`` when the time is up.

        With ``for_runs`` it raises ``HeldForMessage`` as soon as messages hold all the locks.
        """
        until = None if seconds is None else monotonic() + seconds
        several = len(self.names) > 1
        while True:
            left = None if until is None else max(0.0, until - monotonic())
            if several:
                left = TURN if left is None else min(TURN, left)
            lock = self.lock(random.choice(self.names), timeout, **metadata)
            lock.for_runs = for_runs
            try:
                if lock.acquire(blocking_timeout=left):
                    return lock
            except HeldForMessage:
                if self.for_messages():
                    raise
            if until is not None and monotonic() >= until:
                return None
            if several and (free := self.take(timeout, **metadata)):
                return free

    def for_messages(self) -> bool:
        """Whether all locks are held, and for messages."""
        holders = self.holders()
        return len(holders) == len(self.names) and all(map(is_for_message, holders))

    def holders(self) -> list[Holder]:
        found = map(self.backend.holder, self.names)
        return [holder for holder in found if holder is not None]

    def in_queue(self) -> list[Holder]:
        """Return the holders of the places of waiting messages. Raises ``LockUnavailable``."""
        return list(self.backend.holders_of([self.waiting, self.behind]))


def queued_since(place: Holder) -> float:
    """Return from when on the work of a place has waited, in seconds of the server's clock."""
    text = place.metadata.get(SINCE, "+0")
    return float(text) + (_taken_at(place) if text.startswith("+") else 0.0)


def now_at(place: Holder) -> float:
    """Return when the server was asked for a place, in seconds of its clock."""
    return _taken_at(place) + (place.held_for or 0.0)


def _taken_at(place: Holder) -> float:
    return place.acquired_at.timestamp() if place.acquired_at else 0.0


def _marked(key: str, part: str) -> str:
    """Return the name of a lock that differs from every key, and for every key and part.

    A key that has the mark itself is never the name of its run's lock, so the part after the last
    mark tells the names apart.
    """
    name = f"{check_name(key)}{MARK}{part}"
    if len(name) <= MAX_NAME_LENGTH and part.isprintable() and MARK not in part:
        return name
    digest = "#" + hashlib.sha256(f"{key}\0{part}".encode()).hexdigest()[:32]
    return key[: MAX_NAME_LENGTH - len(MARK) - len(digest)] + MARK + digest


# A worker that is to stop says so to its children in memory that it shares with them. Those that
# wait look at it every now and then, for no signal of the system or of Celery tells a child of a
# warm shutdown.


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
