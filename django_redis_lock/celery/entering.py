"""How a call of a task comes to its lock, or what becomes of it where it does not.

Each function returns the lock, or ``None`` and the result of the call; or it raises what ends the
call. All raise ``LockUnavailable``.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from time import monotonic
from typing import Any

from celery import states
from celery.exceptions import Ignore, Retry

from django_redis_lock.celery import conflicts
from django_redis_lock.celery.conflicts import Conflict
from django_redis_lock.celery.delivery import Delivery
from django_redis_lock.celery.family import is_dead
from django_redis_lock.celery.options import IGNORE, QUEUE, RAISE, RETRY, SKIP
from django_redis_lock.celery.places import QUEUED, TaskLock
from django_redis_lock.celery.results import stored_state
from django_redis_lock.exceptions import LockError
from django_redis_lock.protocol.records import Holder

PATIENCE = 10.0
"""Seconds for which a delivery waits in a worker for an earlier one of the same task to end; then
it goes back to the queue and comes again after as many."""
TICKET_TURN = 0.25
"""Seconds between looks at a lock whose ticket may become good."""
RESULT_PATIENCE = 2.0
"""Seconds that an earlier delivery has to store its result after it was seen to let go of its
lock."""
RESULT_MOMENT = 0.25
"""The same for one that may have let go of it, if there was one at all."""

Entry = tuple[TaskLock | None, Any]


def enter(call: Delivery) -> Entry:
    """Return the lock with which the task may run."""
    slip, places = call.slip, call.places
    if slip is not None and slip.duplicate_of is not None:
        return None, _answer_duplicate(call, slip.duplicate_of)
    lock = _adopt(call)
    while lock is None:
        # With several places to run at, a free one says nothing about other deliveries.
        if call.options.concurrency == 1 or not call.among(places.holders()):
            lock = _take(call)
        if lock is None:
            holders = places.holders()
            own = call.among(holders)
            if own is not None:
                return _after(call, own)
            if holders:
                return _settle(call, holders[0])
    return _start(call, lock)


def _answer_duplicate(call: Delivery, holder: Any) -> Any:
    """Return the result of a task that was sent only so that its id gets one."""
    conflict = replace(call.conflict(None), when_sent=holder)
    policy = call.options.on_queue_conflict
    if callable(policy):
        return policy(conflict)
    if policy == RAISE:
        raise conflict.error()
    return conflict.skip("another instance was waiting or running when it was sent")


def _adopt(call: Delivery) -> TaskLock | None:
    """Take over the lock that was taken when the task was sent."""
    if call.slip is None or not call.adoptable:
        return None
    lock = call.lock(call.slip.lock)
    if not lock.take_over(call.slip.ticket):
        return None
    call.may_have_succeeded = False
    return lock


def _take(call: Delivery) -> TaskLock | None:
    lock = call.places.take(call.options.timeout, **call.marks())
    if lock is None or call.options.concurrency == 1 or call.task_id is None:
        return lock
    fence = lock.fence
    for holder in call.places.holders():
        if holder.task_id == call.task_id and (holder.fence or 0) < fence:
            lock.release()  # another delivery of this task came first, at another place
            return None
    return lock


def _start(call: Delivery, lock: TaskLock, patience: float = RESULT_MOMENT) -> Entry:
    """Give up the place in the queue, with the lock of the run in hand.

    ``patience``: seconds to wait for the result of an earlier delivery.
    """
    try:
        if not call.adoptable:
            if call.give_up_place():
                call.may_have_succeeded = False
            elif (superseded := call.superseded(lock.fence)) is not None:
                lock.release()
                return None, superseded
        _end_if_succeeded(call, patience)
    except BaseException:
        with contextlib.suppress(LockError):
            lock.release()
        raise
    return lock, None


# This very task, in another delivery.


def _after(call: Delivery, own: Holder) -> Entry:
    """Wait for another delivery of this task to end, and begin where it did not finish."""
    conflict = call.conflict(own)
    until = monotonic() + PATIENCE
    turn = TICKET_TURN if call.adoptable else PATIENCE
    told = False
    while True:
        lock = call.lock(own.name)
        dead = is_dead(own)
        if dead and lock.take_over(own.token_id):
            break
        if (adopted := _adopt(call)) is not None:
            return _start(call, adopted)
        if _is_carried_on(call, own):
            raise Ignore(f"{call.task_id} was sent again, and waits in the queue")
        if not told and not dead:
            words = "waits: lock %r is held by another delivery of it, %s"
            conflict.tell(conflicts.task_waiting, words)
            told = True
        if lock.acquire(blocking_timeout=min(turn, max(0.0, until - monotonic()))):
            break
        holder = call.places.backend.holder(own.name)
        if holder is not None and holder.task_id != call.task_id:
            return _settle(call, holder)
        own = holder or own
        if monotonic() >= until:
            call.send_back(PATIENCE, call.slip_to_send())
            raise Ignore(f"another delivery of {call.task_id} runs; this one comes again")
    return _begin_after(call, lock, own, dead)


def _is_carried_on(call: Delivery, own: Holder) -> bool:
    """Whether the lock is kept for another message of this task, a retry that waits.

    One that was sent by the task's name alone may stand for the very message that is kept for.
    """
    known = call.slip is not None or call.redelivered
    return known and own.metadata.get("state") == QUEUED


def _begin_after(call: Delivery, lock: TaskLock, own: Holder, dead: bool) -> Entry:
    """Begin with the lock that another delivery of this task had."""
    if own.fence == call.follows or _retries_of(own) < call.retries:
        return _start(call, lock)  # the run that sent this message has ended
    call.may_have_succeeded = not dead
    entry = _start(call, lock, RESULT_PATIENCE)
    if entry[0] is not None:
        call.conflict(own).tell(conflicts.task_taken_over, "takes over lock %r from %s")
    return entry


def _retries_of(holder: Holder) -> int:
    text = holder.metadata.get("retries", "0")
    return int(text) if text.isdigit() else 0


def _end_if_succeeded(call: Delivery, patience: float = 0.0) -> None:
    """End the call if another delivery has stored a success, as it does after it let go."""
    if not call.may_have_succeeded or call.task.ignore_result or call.request.ignore_result:
        return
    until = monotonic() + patience
    while (state := stored_state(call.task, call.task_id)) != states.SUCCESS:
        if state is None or monotonic() >= until:
            return
        time.sleep(0.05)
    raise Ignore(f"another delivery of {call.task_id} has succeeded")


# Another instance.


def _settle(call: Delivery, holder: Holder) -> Entry:
    """Do about another instance that runs what the options say."""
    _end_if_succeeded(call)
    conflict, options = call.conflict(holder), call.options
    policy = options.on_run_conflict
    if callable(policy):
        return None, policy(conflict)
    if policy == SKIP:
        return None, conflict.skip()
    if policy == RAISE:
        raise conflict.error()
    if policy == IGNORE:
        return None, _ignore(call, conflict)
    if call.nested:
        raise conflict.error("it would wait for the run that it is called in.")
    if policy == RETRY:
        return None, _come_again(call, conflict, holder)
    conflict.tell(conflicts.task_waiting, "waits: lock %r is held by %s")
    lock = call.places.wait(options.timeout, options.blocking_timeout, **call.marks())
    if lock is None:
        raise call.conflict(next(iter(call.places.holders()), None)).error()
    return _start(call, lock, RESULT_PATIENCE)


def _ignore(call: Delivery, conflict: Conflict) -> Any:
    request = call.request
    if request is None:
        return conflict.skip()
    if request.chord or request.group or request.chain or request.callbacks:
        raise conflict.error(
            "on_conflict='ignore' would leave its chord, group, chain or link waiting for ever; "
            "use 'skip'."
        )
    conflict.skip("ignored")
    if not request.is_eager and not call.task.ignore_result:
        # In place of Celery's own state for it, IGNORED, for which get() would wait for ever.
        call.task.backend.mark_as_revoked(call.task_id, "ignored", request)
    raise Ignore(f"lock {conflict.key!r} is held by {conflict.holder}")


def _come_again(call: Delivery, conflict: Conflict, holder: Holder) -> Any:
    """Send the message once more, to arrive later; its place in the queue is kept."""
    options = call.options
    if call.request is None or call.request.is_eager:
        raise conflict.error("it can't be sent again, for no worker runs it.")
    slip = call.slip_to_send()
    attempts = slip.attempts + 1
    if options.max_retries is not None and attempts > options.max_retries:
        raise conflict.error(f"lock {conflict.key!r} was held at each of {attempts} attempts.")
    if options.scope == QUEUE and slip.lock == call.places.waiting:
        lease = options.queue_timeout + options.countdown
        waiting = call.lock(slip.lock, lease, QUEUED)
        if waiting.take_over(slip.ticket):
            slip = slip.naming(waiting, lease)
        elif (superseded := call.superseded(holder.fence or 0)) is not None:
            return superseded
    words = "comes again: lock %r is held by %s, next try in %g s"
    conflict.tell(conflicts.task_waiting, words, options.countdown)
    call.send_back(options.countdown, replace(slip, attempts=attempts))
    raise Retry(message=f"lock {conflict.key!r} is held by {holder}", when=options.countdown)
