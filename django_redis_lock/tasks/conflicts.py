"""A conflict between two instances of a task: its result, exception, signals and log lines."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal, TypedDict

from django.dispatch import Signal

from django_redis_lock.exceptions import LockNotAcquired
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import escape_unprintable

logger = logging.getLogger("django_redis_lock.celery")

skipped: Counter[str] = Counter()  # how many duplicates this process has skipped, by task name
parked: Counter[str] = Counter()  # how many tasks this process has parked, by task name

task_skipped = Signal()
"""A duplicate was skipped or refused. Every signal of this module is sent with ``sender`` (the
task), ``task_id``, ``key`` and ``holder`` (who holds the lock, or ``None``); this one with
``policy`` as well, see ``Conflict.policy``."""

task_waiting = Signal()
"""A task waits for its lock, or is sent back to the queue to be retried."""

task_parked = Signal()
"""A task was parked: its message waits on the lock server until the task can run."""

task_taken_over = Signal()
"""A task took its lock over from the ``holder``, an earlier delivery of itself that died."""

task_lock_lost = Signal()
"""A task lost its lock while it was running; ``holder`` is ``None``."""


class Described(TypedDict):
    """A holder as plain values."""

    task_id: str | None
    task_name: str | None
    host: str | None
    pid: int | None
    since: str | None  # when it took the lock, ISO 8601
    ttl: float | None  # seconds left of its lease; ``None`` if it never ends, or that is unknown


class TaskSkipped(TypedDict):
    """The result of a task that did not run: another was running, or its limit is 0.

    A plain dict, so every result serializer accepts it.
    """

    skipped: Literal[True]
    reason: str
    task: str  # its name
    key: str  # the name of the lock
    holder: Described | None  # ``None`` if that run had just ended, or none may run now


class TaskAlreadyRunning(LockNotAcquired):
    """Another instance of the task is waiting or running.

    ``name`` is the name of the lock, and ``holder`` describes its holder as in ``TaskSkipped``.
    Survives every result serializer.
    """

    def __init__(self, message: str, name: str = "", holder: Described | None = None) -> None:
        super().__init__(message, name=name)
        self.holder = holder
        self.args = (message, name, holder)

    @property
    def ttl(self) -> float | None:
        """Seconds that were left of the holder's lease; ``None`` if unknown."""
        return self.holder.get("ttl") if self.holder else None

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Conflict:
    """The argument of a callable ``on_conflict``, which returns the result of the call."""

    moment: str  # ``queue`` if the task is being sent, ``run`` if it is about to run
    task: Any
    task_id: str | None  # the id of the duplicate; ``None`` for a direct call
    key: str  # the name of the lock
    holder: Holder | None  # of the lock; ``None`` if it was released just now, or its limit is 0
    args: tuple[Any, ...]  # the arguments of the duplicate
    kwargs: dict[str, Any]
    when_sent: Described | None = None  # who held the lock at the sending, if that decides
    policy: str = "skip"  # the policy that applies, such as ``skip``; ``callable`` for a function
    why: str = ""  # why there is no permit, such as ``paused: limit 0, set by ada``, if known

    @property
    def described(self) -> Described | None:
        """The holder as plain values, for results and messages."""
        if self.when_sent:  # its lease has changed since
            return {**self.when_sent, "ttl": None}
        return describe(self.holder)

    @property
    def who(self) -> str:
        """The holder in one line."""
        if self.when_sent:
            return "task {task_name}[{task_id}] on {host}:{pid}".format_map(self.when_sent)
        return str(self.holder or "no task")

    @property
    def state(self) -> str:
        """What the lock is, in one line: held by whom, and why there is no permit."""
        known = self.when_sent or self.holder
        states = [f"held by {self.who}"] * bool(known) + [self.why] * bool(self.why)
        return escape_unprintable("; ".join(states) or "no longer held")

    def skip(self, reason: str = "") -> TaskSkipped:
        """Log, count and signal the duplicate, and return its result."""
        holder = self.described
        if not reason:
            reason = "another instance is running" if holder else "no instance may run now"
        name = self._count("skipped: lock %r is %s")
        return TaskSkipped(skipped=True, reason=reason, task=name, key=self.key, holder=holder)

    def error(self, why: str = "") -> TaskAlreadyRunning:
        """Log, count and signal the duplicate, and return the exception that refuses it."""
        name = self._count("refused: lock %r is %s")
        done = "run" if self.moment == "run" else "sent"
        why = why or f"lock {self.key!r} is {self.state}."
        return TaskAlreadyRunning(f"Task {name} was not {done}: {why}", self.key, self.described)

    def _count(self, text: str) -> str:
        name = name_of(self.task)
        skipped[name] += 1
        self.notify(task_skipped, text, policy=self.policy)
        return name

    def notify(self, signal: Signal, text: str, *more: object, **facts: str) -> None:
        """Log a text, formatted with the key, its state and ``more``, and send a signal."""
        text = f"Task %s[%s] {text}"
        logger.info(text, name_of(self.task), self.task_id, self.key, self.state, *more)
        known = {"task_id": self.task_id, "key": self.key, "holder": self.holder}
        signal.send_robust(sender=self.task, **known, **facts)


def name_of(task: Any) -> str:
    """Return the name of a task; of one of ``django.tasks``, or its function, the path of that."""
    function = getattr(task, "func", task)
    if isinstance(function, FunctionType):
        return f"{function.__module__}.{function.__qualname__}"
    return str(task.name)


def describe(holder: Holder | None) -> Described | None:
    if holder is None:
        return None
    return {
        "task_id": holder.task_id,
        "task_name": holder.task_name,
        "host": holder.host,
        "pid": holder.pid,
        "since": holder.acquired_at.isoformat() if holder.acquired_at else None,
        "ttl": holder.ttl,
    }
