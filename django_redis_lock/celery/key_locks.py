"""The locks of one key: those that a task waits for and runs with, and reservations.

A reservation is a lock that the sender of a message has taken for it.
"""

from __future__ import annotations

import hashlib
import mmap
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from time import monotonic
from typing import Any

from celery import bootsteps
from celery.signals import worker_init, worker_shutdown, worker_shutting_down

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.celery.options import Options
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.primitives.lock import DETACHED, Lock
from django_redis_lock.protocol.calls import Step, Steps, Wait
from django_redis_lock.protocol.drivers import Result
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.records import Holder
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
"""The ``state`` of a lock that stays locked for a while after a short run."""
SINCE = "queued_since"
"""From when on the work of a reservation counts as waiting: by the server's clock in seconds, or,
with a ``+``, that many seconds after the reservation was made."""
MARK = "~~"
"""Separates a key from what the guard adds to it in the name of a lock."""
STOP_EVERY = 0.5
"""Seconds after which a wait notices at the latest that its worker is to stop."""
POLL_EVERY = 0.8
"""Seconds between checks whether the lock that a task waits for is held for a message."""

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


def until_worker_stops(steps: Steps[Result]) -> Steps[Result]:
    """Take steps, but raise ``WorkerStops`` where they would wait in a stopping worker."""
    resume: Callable[[Any], Step] = steps.send
    value: Any = None
    while True:
        try:
            step = resume(value)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        if isinstance(step, Wait):
            if _stops[0]:
                resume, value = steps.throw, WorkerStops()
                continue
            step.until = min(step.until, monotonic() + STOP_EVERY)
        try:
            resume, value = steps.send, (yield step)
        except BaseException as error:
            resume, value = steps.throw, error


class HeldForMessage(LockError):
    """A worker must not wait for this lock: its holder is a message."""


class _CheckHolder(Step):
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
    """A lock held by a task, or for its message."""

    task: Any = None
    task_id: str | None = None
    until_worker_stops = False
    """Whether a wait for it ends with ``WorkerStops`` in a worker that is to stop."""
    for_runs = False
    """Whether to wait for runs only, and to raise ``HeldForMessage`` for a message."""

    def _acquire(self, until: float | None, from_token_id: str = "") -> Steps[bool]:
        steps = super()._acquire(until, from_token_id)
        waits = until is not None and self.until_worker_stops
        return until_worker_stops(steps) if waits else steps

    def _request(self, backend: BaseLockBackend) -> Request:
        request = super()._request(backend)
        if self.for_runs:
            request.when_held = _CheckHolder(self.name)
        return request


@dataclass(eq=False)
class KeyLocks:
    """The locks of one key, for one task: as many as may run at once, and its reservations."""

    options: Options
    key: str
    _task: Any
    _task_id: str | None

    @cached_property
    def names(self) -> list[str]:
        """The locks of which a run needs one. Raises ``TypeError`` or ``ValueError``."""
        count = self.options.concurrency
        if count > 1:
            return [_marked(self.key, str(number + 1)) for number in range(count)]
        return [name_of_run(self.key)]

    @cached_property
    def reservations(self) -> tuple[str, str]:
        """The locks of waiting messages with scope ``queue``.

        The second is for a message that waits behind one which is no longer superseded. They belong
        to the task, and the lock of the run to all tasks with the key. Raises ``TypeError`` or
        ``ValueError``.
        """
        name = self._task.name
        return _marked(self.key, f"{QUEUED}:{name}"), _marked(self.key, f"{QUEUED}2:{name}")

    @property
    def backend(self) -> BaseLockBackend:
        return locks[self.options.using]

    def lock(
        self, name: str, timeout: float | Default | None, using: str = "", **metadata: str
    ) -> TaskLock:
        """Return a handle; ``using`` overrides the alias of the task."""
        lock = TaskLock(
            partial(locks.__getitem__, using or self.options.using),
            name,
            timeout,
            metadata={"worker": FAMILY, **metadata},
            task_id=self._task_id,
            task_name=self._task.name,
        )
        lock.task, lock.task_id = self._task, self._task_id
        return lock

    def take(self, handle: Callable[[str], TaskLock]) -> TaskLock | None:
        """Take a free lock by a handle for its name; return ``None`` if all are held."""
        for name in random.sample(self.names, len(self.names)):
            lock = handle(name)
            if lock.acquire(blocking=False):
                return lock
        return None

    def holders(self) -> list[Holder]:
        found = map(self.backend.holder, self.names)
        return [holder for holder in found if holder is not None]

    def in_queue(self) -> list[Holder]:
        """Return the holders of the reservations. Raises ``LockUnavailable``."""
        return list(self.backend.holders_of(self.reservations))


def name_of_run(key: str) -> str:
    """Return the name of the one lock that a run needs."""
    return _marked(key, "run") if MARK in key else key


def queued_since(reserved: Holder) -> float:
    """Return since when the work of a reservation has waited, in seconds of the server's clock."""
    text = reserved.metadata.get(SINCE, "+0")
    return float(text) + (_taken_at(reserved) if text.startswith("+") else 0.0)


def now_at(reserved: Holder) -> float:
    """Return when the server was asked for a holder, in seconds of its clock."""
    return _taken_at(reserved) + (reserved.held_for or 0.0)


def _taken_at(reserved: Holder) -> float:
    return reserved.acquired_at.timestamp() if reserved.acquired_at else 0.0


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
# wait check it every now and then, for no signal of the system or of Celery tells a child of a
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
