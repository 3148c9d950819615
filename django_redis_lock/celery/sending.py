"""The guard around the sending of a task: one message waits, the others are told of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from celery import current_task, states, uuid

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
from django_redis_lock.celery.private import check_arguments, execution_options
from django_redis_lock.celery.results import stored_state
from django_redis_lock.celery.running import Run, runs
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.records import Holder

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
    if task.app.conf.task_always_eager or (run is None and _passes(options, call)):
        return call.publish(**message)
    check_arguments(task, call.args, call.kwargs)
    result = _send_guarded(options, make_key, call, run)
    if run is not None:
        run.followed = True
    return result


def _passes(options: Options, call: Call) -> bool:
    """Whether a message needs no place: its scope has none, or it was let through once."""
    return (
        options.scope == RUN
        or bool(call.message.get("retries"))
        or Slip.of(call.message.get("headers"), call.task_id) is not None
    )


def _run_to_follow(call: Call) -> Run | None:
    """Return the run in hand that sends this message in its own place: to retry, or be replaced."""
    if call.task_id is None:
        return None
    return next((run for run in runs() if run.lock and run.task_id == call.task_id), None)


def _send_guarded(
    options: Options, make_key: Callable[..., str], call: Call, run: Run | None
) -> Any:
    task_id = call.task_id or uuid()
    sending, lock, holder = None, None, None
    try:
        key = make_key(call.task, call.args, call.kwargs)
        follows = run is not None and run.has_key(key, options)
        if not follows and options.scope != RUN:
            sending = _Sending(options, key, call, task_id)
            lock, holder = sending.take()
    except Exception as error:
        unguarded = isinstance(error, LockUnavailable) and options.on_unavailable == "run"
        # A worker that goes on with a chain must not fail for it the task that succeeded; the run
        # of the next one meets the error again.
        if not unguarded and not (call.awaited and current_task):
            raise
        logger.warning("Task %s[%s] is sent unguarded: %s", call.task.name, task_id, error)
        return _publish(call, Slip(task_id))
    if sending is not None:
        return sending.publish(lock) if lock is not None else sending.settle(holder)
    if run is not None and follows:
        return _send_follow_up(run, Places(options, key, call.task, task_id), call)
    return _publish(call, Slip(task_id))


def _send_follow_up(run: Run, places: Places, call: Call) -> Any:
    """Send the next message of a run's own key, which takes its lock along with the scope for it.

    It needs no place otherwise, for the task was let through once.
    """
    assert run.task_id is not None
    slip, lock = Slip(run.task_id, follows=run.fence), run.lock
    if (
        places.options.scope != QUEUE_AND_RUN
        or lock is None
        or lock.name not in places.names
        or not lock.remaining
    ):
        return _publish(call, slip)
    taken_along = replace(slip, lock=lock.name, ticket=lock.ticket, using=places.options.using)
    result = _publish(call, taken_along)
    run.kept_for = _lease(places.options, call)
    return result


def _publish(call: Call, slip: Slip) -> Any:
    headers = {**(call.message.get("headers") or {}), **slip.header()}
    return call.publish(**{**call.message, "task_id": slip.task_id, "headers": headers})


class _Sending:
    """One message that is to be the only one of its key."""

    def __init__(self, options: Options, key: str, call: Call, task_id: str) -> None:
        self._options = options
        self._call = call
        self._task_id = task_id
        self._places = Places(options, key, call.task, task_id)
        if options.scope == QUEUE:
            self._places.names = [self._places.waiting]

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
            slip = Slip(self._task_id, duplicate_of=dict(describe(holder) or {}))
            return _publish(call, slip)
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
            holders = self._places.holders()
            if not holders:
                continue  # it came free just now
            holder = next(filter(self._may_be_replaced, holders), None)
            if holder is None:
                return None, holders[0]
            newest = self._places.lock(holder.name, lease, state=QUEUED)
            if newest.take_over(holder.token_id):
                return newest, None

    def _may_be_replaced(self, holder: Holder) -> bool:
        """Whether a place is that of an older message, or of one that won't come any more."""
        if self._options.on_queue_conflict == SUPERSEDE:
            return True
        if holder.metadata.get("state") != QUEUED:
            return False
        app = self._call.task.app
        task = app.tasks.get(holder.task_name, self._call.task)
        return stored_state(task, holder.task_id) in states.READY_STATES

    def publish(self, lock: TaskLock) -> Any:
        """Send the message, with what its run takes the lock over by."""
        slip = Slip(self._task_id).naming(lock, _lease(self._options, self._call))
        try:
            return _publish(self._call, slip)
        except BaseException:
            with contextlib.suppress(LockError):
                lock.release()
            raise


def _lease(options: Options, call: Call) -> float:
    """Return for how many seconds a message may keep its lock while it waits in the queue."""
    settings = {**execution_options(call.task), **call.message}
    seconds = seconds_until_due(settings) + options.queue_timeout
    expiry = seconds_until_expiry(settings)
    return seconds if expiry is None else min(seconds, expiry + EXPIRY_SLACK)
