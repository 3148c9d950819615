"""The guard around the sending of a task: one message waits, the others are told of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celery import current_task, uuid

from django_redis_lock.celery.conflicts import Conflict, describe
from django_redis_lock.celery.message import (
    Slip,
    seconds_until_due,
    seconds_until_expiry,
)
from django_redis_lock.celery.options import (
    IGNORE,
    QUEUE,
    QUEUE_AND_RUN,
    RAISE,
    RUN,
    SUPERSEDE,
    Options,
)
from django_redis_lock.celery.places import QUEUED, Places, TaskLock
from django_redis_lock.celery.running import Run, runs
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.records import Holder

logger = logging.getLogger("django_redis_lock.celery")

EXPIRY_SLACK = 5.0
"""Seconds for which the lock of an expired message is kept, for the clocks of two machines."""
_AWAITED = ("task_id", "link", "link_error", "chain", "chord", "group_id")


@dataclass(frozen=True)
class Call:
    """One call of ``apply_async``."""

    task: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    message: dict[str, Any]
    """Its further arguments."""
    publish: Callable[..., Any]
    """Celery's own way to carry it out, given the message."""

    @property
    def task_id(self) -> str | None:
        """The id, where somebody knows it already."""
        return self.message.get("task_id")

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for an answer under this very id, a chord for one."""
        return any(self.message.get(name) for name in _AWAITED)


def send(options: Options, make_key: Callable[..., str], call: Call) -> Any:
    """Send a task, unless its like waits already. Returns an ``AsyncResult``."""
    task, message = call.task, call.message
    if message.get("chord") and options.on_run_conflict == IGNORE:
        raise ValueError(
            f"Task {task.name} has on_conflict='ignore' and can't be part of a chord, which would "
            f"wait for it for ever; use 'skip'."
        )
    run = _run_to_follow(call)
    if run is not None:
        return _send_follow_up(run, call)
    if (
        options.scope == RUN
        or task.app.conf.task_always_eager
        or message.get("retries")  # it was let through once
        or Slip.of(message.get("headers"), call.task_id) is not None
    ):
        return call.publish(**message)
    if task.typing and hasattr(task, "__header__"):  # which a task that is a class has not
        task.__header__(*call.args, **call.kwargs)
    task_id = call.task_id or uuid()
    try:
        sending = _Sending(options, make_key(task, call.args, call.kwargs), call, task_id)
        lock, holder = sending.take()
    except Exception as error:
        unguarded = isinstance(error, LockUnavailable) and options.on_unavailable == "run"
        # A worker that goes on with a chain must not fail for it the task that succeeded; the run
        # of the next one meets the error again.
        if not unguarded and not (call.awaited and current_task):
            raise
        logger.warning("Task %s[%s] is sent unguarded: %s", task.name, task_id, error)
        return call.publish(**{**message, "task_id": task_id})
    return sending.publish(lock) if lock is not None else sending.settle(holder)


def _run_to_follow(call: Call) -> Run | None:
    """Return the run in hand whose own next message this is: its retry or its replacement."""
    for run in runs():
        if call.task_id is not None and run.task_id == call.task_id:
            return run if run.task.name == call.task.name else None
    return None


def _send_follow_up(run: Run, call: Call) -> Any:
    message = call.message
    if run.task_id and run.lock is not None and run.options.scope != RUN:
        kept = run.options.scope == QUEUE_AND_RUN
        slip = Slip(run.task_id, run.lock.name, run.lock.ticket) if kept else Slip(run.task_id)
        message = _with_header(message, slip)
    result = call.publish(**message)
    run.follow_up = _lease(run.options, call)
    return result


class _Sending:
    """One message that is to be the only one of its key."""

    def __init__(self, options: Options, key: str, call: Call, task_id: str) -> None:
        self._options = options
        self._call = call
        self._task_id = task_id
        self._message = {**call.message, "task_id": task_id}
        self._places = Places(options, key, call.task, task_id)
        if options.scope == QUEUE:
            self._places.names = [f"{key}:{QUEUED}"]

    def settle(self, holder: Holder | None) -> Any:
        """Do about the conflict what is to be done."""
        call, policy = self._call, self._options.on_queue_conflict
        conflict = Conflict(
            QUEUE, call.task, self._task_id, self._places.key, holder, call.args, call.kwargs
        )
        if callable(policy) and not call.awaited:
            return policy(conflict)
        if call.awaited or holder is None or holder.task_id is None:
            # It is sent to give an answer to those who wait for one, and not to run.
            slip = Slip(self._task_id, duplicate_of=describe(holder) or {})
            return call.publish(**_with_header(self._message, slip))
        if policy == RAISE:
            raise conflict.error()
        conflict.skip()
        return call.task.AsyncResult(holder.task_id)

    def take(self) -> tuple[TaskLock | None, Holder | None]:
        """Take the place in the queue; return its lock, or else who has it."""
        lease = _lease(self._options, self._call)
        while True:
            lock = self._places.take(lease, state=QUEUED)
            if lock is not None:
                return lock, None
            holder = next(iter(self._places.holders()), None)
            if holder is None:
                continue  # it came free just now
            if self._options.on_queue_conflict != SUPERSEDE:
                return None, holder
            newest = self._places.lock(holder.name, lease, state=QUEUED)
            if newest.take_over(holder.token_id):
                return newest, None

    def publish(self, lock: TaskLock) -> Any:
        """Send the message, with what its run takes the lock over by."""
        slip = Slip.naming(self._task_id, lock, _lease(self._options, self._call))
        try:
            return self._call.publish(**_with_header(self._message, slip))
        except BaseException:
            with contextlib.suppress(LockError):
                lock.release()
            raise


def _with_header(message: Mapping[str, Any], slip: Slip) -> dict[str, Any]:
    return {**message, "headers": {**(message.get("headers") or {}), **slip.header()}}


def _lease(options: Options, call: Call) -> float:
    """Return for how many seconds a message may keep its lock while it waits in the queue."""
    settings = {**call.task._get_exec_options(), **call.message}
    seconds = seconds_until_due(settings) + options.queue_timeout
    expiry = seconds_until_expiry(settings)
    return seconds if expiry is None else min(seconds, expiry + EXPIRY_SLACK)
