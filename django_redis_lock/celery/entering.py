"""How a call of a task gets its lock, or its result without a run.

Each function returns the lock, or ``None`` and the result of the call, or raises what ends the
call. All raise ``LockUnavailable``.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from celery import states
from celery.exceptions import Ignore, Reject, Retry

from django_redis_lock.celery import conflicts
from django_redis_lock.celery.conflicts import Conflict, TaskAlreadyRunning
from django_redis_lock.celery.delivery import Delivery
from django_redis_lock.celery.message import Slip, clock_at, forget_earlier, stored_state
from django_redis_lock.celery.places import (
    QUEUED,
    HeldForMessage,
    TaskLock,
    WorkerStops,
    is_dead,
    is_for_message,
)
from django_redis_lock.celery.private import in_worker
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.records import Holder

logger = logging.getLogger("django_redis_lock.celery")

WAIT_FOR_FIRST = 10.0
"""Seconds for which a delivery waits in a worker for an earlier one of the same task to end. Then
it goes back to the queue for as long."""
WAIT_FOR_WORKER = 1.0
"""Seconds for which a message stays in the queue that a stopping worker has sent again. Until the
worker has stopped to take messages, it would take the same one again and again."""
TICKET_TURN = 0.25
"""Seconds between checks of a ticket that may become valid."""
RESULT_PATIENCE = 2.0
"""Seconds for an earlier delivery to store its result after it was seen to release its lock."""
RESULT_MOMENT = 0.25
"""The same for a delivery that may have released it, if there was one at all."""

Entry = tuple[TaskLock | None, Any]


def enter(delivery: Delivery) -> Entry:
    """Return the lock that the task may run with."""
    try:
        return _enter(delivery)
    except WorkerStops:
        delivery.send_back(WAIT_FOR_WORKER, delivery.slip_to_send())
        raise Ignore(f"its worker stops while {delivery.task_id} waits; it is sent again") from None


def _enter(delivery: Delivery) -> Entry:
    slip, places = delivery.slip, delivery.places
    if slip is not None and slip.duplicate_of is not None:
        answer = partial(_answer_duplicate, delivery, slip.duplicate_of)
        same_id = slip.duplicate_of.get("task_id") == delivery.task_id
        return _without_result(delivery, answer) if same_id else answer()
    # A message that is superseded must not get in the way of one that is not.
    if not delivery.redelivered and (superseded := delivery.superseded()) is not None:
        return None, superseded
    lock = _adopt(delivery)
    while lock is None:
        # With several locks, a free one says nothing about other deliveries.
        if delivery.options.concurrency == 1 or not delivery.among(places.holders()):
            lock = _take(delivery)
        if lock is None:
            holders = places.holders()
            own = delivery.among(holders)
            if own is not None and delivery.is_same(own):
                return _after(delivery, own)
            if holders:
                return _settle(delivery, own or holders[0])
    return _start(delivery, lock, RESULT_MOMENT)


def _answer_duplicate(delivery: Delivery, holder: Any) -> Entry:
    """Return the result of a task that was sent only to give its id a result."""
    conflict = replace(delivery.conflict(None, delivery.options.queue_policy), when_sent=holder)
    policy = delivery.options.on_queue_conflict
    if callable(policy):
        return None, policy(conflict)
    if policy == "raise":
        raise conflict.error()
    return None, conflict.skip("another instance was waiting or running when it was sent")


def _adopt(delivery: Delivery) -> TaskLock | None:
    if delivery.slip is None or not delivery.adoptable:
        return None
    lock = delivery.lock_of_run(delivery.slip.lock)
    if not lock.take_over(delivery.slip.ticket):
        return None
    delivery.may_have_succeeded = False
    return lock


def _take(delivery: Delivery) -> TaskLock | None:
    options = delivery.options
    lock = delivery.places.take(options.timeout, **delivery.marks())
    if lock is None or options.concurrency == 1 or delivery.task_id is None:
        return lock
    fence = lock.fence
    for holder in delivery.places.holders():
        if holder.task_id == delivery.task_id and (holder.fence or 0) < fence:
            lock.release()  # another delivery of this task took one of the other locks first
            return None
    return lock


def _start(delivery: Delivery, lock: TaskLock, patience: float) -> Entry:
    """Give up the place in the queue once the lock of the run is held.

    ``patience``: seconds to wait for the result of an earlier delivery.
    """
    try:
        if not delivery.adoptable:
            delivery.overtake()
            if delivery.give_up_place():
                delivery.may_have_succeeded = False
            elif (superseded := delivery.superseded(lock.fence)) is not None:
                lock.release()
                return None, superseded
        _end_if_succeeded(delivery, patience)
        forget_earlier(delivery.task, delivery.task_id, delivery.sent)
    except BaseException:
        with contextlib.suppress(LockError):
            lock.release()
        raise
    return lock, None


# The same task, in another delivery.


def _after(delivery: Delivery, own: Holder) -> Entry:
    """Wait for another delivery of this task to end, and start if it did not finish."""
    until = monotonic() + WAIT_FOR_FIRST
    turn = TICKET_TURN if delivery.adoptable else WAIT_FOR_FIRST
    told = False
    while True:
        lock = delivery.lock_of_run(own.name)
        dead = is_dead(own)
        if dead and lock.take_over(own.token_id):
            break
        if (adopted := _adopt(delivery)) is not None:
            return _start(delivery, adopted, RESULT_MOMENT)
        # A message without a slip may itself be the one that the lock is held for.
        known = delivery.slip is not None or delivery.redelivered
        if known and own.metadata.get("state") == QUEUED:
            raise Ignore(f"{delivery.task_id} was sent again, and waits in the queue")
        if is_for_message(own):
            slip, countdown = delivery.slip_to_send(), delivery.options.countdown
            return None, _go_back(delivery, delivery.conflict(own), own, slip, countdown)
        if monotonic() >= until:
            slip = delivery.slip_to_send()
            begun = slip.redelivered or not _sent_this(own, delivery)
            delivery.send_back(WAIT_FOR_FIRST, replace(slip, redelivered=begun))
            raise Ignore(f"another delivery of {delivery.task_id} runs; this one is sent again")
        if not told and not dead:
            text = "waits: lock %r is held by another delivery of the same task, %s"
            delivery.conflict(own).tell(conflicts.task_waiting, text)
            told = True
        lock.for_runs = in_worker()
        with contextlib.suppress(HeldForMessage):
            if lock.acquire(blocking_timeout=min(turn, max(0.0, until - monotonic()))):
                break
        holder = delivery.places.backend.holder(own.name)
        if holder is not None and not delivery.is_same(holder):
            return _settle(delivery, holder)
        own = holder or own
    return _start_after(delivery, lock, own, dead)


def _start_after(delivery: Delivery, lock: TaskLock, own: Holder, dead: bool) -> Entry:
    """Start with the lock that another delivery of this task had."""
    if _sent_this(own, delivery):
        return _start(delivery, lock, RESULT_MOMENT)
    delivery.may_have_succeeded = not dead
    entry = _start(delivery, lock, RESULT_PATIENCE)
    if entry[0] is not None:
        delivery.conflict(own).tell(conflicts.task_taken_over, "takes over lock %r from %s")
    return entry


def _sent_this(own: Holder, delivery: Delivery) -> bool:
    """Whether a message was sent by the run that it meets, as its retry."""
    return own.fence == delivery.follows or int(own.metadata.get("retries", 0)) < delivery.retries


def _end_if_succeeded(delivery: Delivery, patience: float = 0.0) -> None:
    """End the call if another delivery has stored a success, as it does after its release."""
    task = delivery.task
    if not delivery.may_have_succeeded or task.ignore_result or delivery.request.ignore_result:
        return
    until = monotonic() + patience
    while (state := stored_state(task, delivery.task_id, delivery.sent)) != states.SUCCESS:
        if state is None or monotonic() >= until:
            return
        time.sleep(0.05)
    raise Ignore(f"another delivery of {delivery.task_id} has succeeded")


# Another instance.


def _settle(delivery: Delivery, holder: Holder) -> Entry:
    """Apply the policy for a conflict with another instance that runs."""
    _end_if_succeeded(delivery)
    settle = partial(_apply_policy, delivery, holder)
    request = delivery.request
    if request is None or request.is_eager or holder.task_id != delivery.task_id:
        return settle()
    return _without_result(delivery, settle)


def _without_result(delivery: Delivery, settle: Callable[[], Entry]) -> Entry:
    """Settle a conflict with a task of the same id, whose result is the one to store.

    A canvas that the message belongs to goes on, or fails, as without that.
    """
    try:
        entry = settle()
    except Retry as error:
        raise Ignore(str(error)) from None
    except (Ignore, Reject, LockUnavailable, WorkerStops):
        raise
    except Exception as error:
        if not isinstance(error, TaskAlreadyRunning):
            text = "Task %s[%s] failed, and stores no result: another task with its id runs"
            logger.exception(text, delivery.task.name, delivery.task_id)
        delivery.task.backend.mark_as_failure(
            delivery.task_id, error, request=delivery.request, store_result=False
        )
        raise Ignore(str(error)) from None
    if entry[0] is None:
        delivery.request.ignore_result = True
    return entry


def _apply_policy(delivery: Delivery, holder: Holder) -> Entry:
    conflict, options = delivery.conflict(holder), delivery.options
    policy = options.on_run_conflict
    if callable(policy):
        return None, policy(conflict)
    if policy == "skip":
        return None, conflict.skip()
    if policy == "raise":
        raise conflict.error()
    if delivery.nested:
        raise conflict.error("it would wait for the run that it is called in.")
    if policy == "retry":
        return None, _retry(delivery, conflict, holder)
    if holder.task_id == delivery.task_id:
        delivery.places.names = [holder.name]  # one id does not run twice at a time
    return _wait(delivery, conflict, holder)


def _wait(delivery: Delivery, conflict: Conflict, holder: Holder) -> Entry:
    """Wait for runs, and go back to the queue while a message has the lock.

    That message needs a worker, perhaps this one.
    """
    places, options, for_runs = delivery.places, delivery.options, in_worker()
    left = delivery.left_to_wait(holder)
    until = None if left is None else monotonic() + left
    if not (for_runs and places.for_messages()):
        conflict.tell(conflicts.task_waiting, "waits: lock %r is held by %s")
        with contextlib.suppress(HeldForMessage):
            lock = places.wait(options.timeout, left, for_runs=for_runs, **delivery.marks())
            if lock is None:
                raise delivery.conflict(next(iter(places.holders()), None)).error()
            return _start(delivery, lock, RESULT_PATIENCE)
        left = None if until is None else until - monotonic()
    return None, _wait_in_queue(delivery, next(iter(places.holders()), holder), left)


def _wait_in_queue(delivery: Delivery, holder: Holder, left: float | None) -> Any:
    """Come again as long as there are seconds left to wait for a message."""
    conflict = delivery.conflict(holder)
    if not delivery.can_go_back:
        raise conflict.error(
            f"lock {conflict.key!r} is held for a message, which may need the worker that this "
            f"call would wait in."
        )
    if left is not None and left <= 0:
        raise conflict.error()
    slip, countdown = delivery.slip_to_send(), delivery.options.countdown
    if left is not None:
        countdown = min(countdown, left)
        slip = replace(slip, wait_until=slip.wait_until or clock_at(holder, left))
    return _go_back(delivery, conflict, holder, slip, countdown)


def _retry(delivery: Delivery, conflict: Conflict, holder: Holder) -> Any:
    options = delivery.options
    if not delivery.can_go_back:
        raise conflict.error("it can't be sent again, because no worker runs it.")
    slip = delivery.slip_to_send()
    attempts = slip.attempts + 1
    if options.max_retries is not None and attempts > options.max_retries:
        raise conflict.error(f"lock {conflict.key!r} was held at each of {attempts} attempts.")
    return _go_back(delivery, conflict, holder, slip, options.countdown)


def _go_back(
    delivery: Delivery, conflict: Conflict, holder: Holder, slip: Slip, countdown: float
) -> Any:
    """Send the message again, with its place if it has one."""
    options, places = delivery.options, delivery.places
    if options.scope != "run" and slip.lock in {places.waiting, places.behind}:
        lease = options.queue_timeout + countdown
        waiting = delivery.place(slip.lock, lease)
        if waiting.take_over(slip.ticket):
            slip = slip.naming(waiting, lease)
        elif (superseded := delivery.superseded(holder.fence or 0)) is not None:
            return superseded
    text = "comes again: lock %r is held by %s, next try in %g s"
    conflict.tell(conflicts.task_waiting, text, countdown)
    delivery.send_back(countdown, replace(slip, attempts=slip.attempts + 1))
    when: Any = countdown  # the types of Celery know no float here
    raise Retry(message=f"lock {conflict.key!r} is held by {holder}", when=when)
