"""One call of a guarded task, from its start or conflict to the release of its lock.

Most calls find their lock free, and take it in one round trip. ``TABLE`` has all others.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from django_redis_lock.celery import key_locks, outbox
from django_redis_lock.celery.key_locks import QUEUED, MessageHeader, TaskLock, queued_since
from django_redis_lock.celery.polling import publish_next
from django_redis_lock.celery.private import in_worker
from django_redis_lock.celery.run import Entry, Run, all_runs, runs
from django_redis_lock.exceptions import LockError, LockLost, LockNotOwned, LockUnavailable
from django_redis_lock.primitives.held import abandon
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.functions import finished
from django_redis_lock.tasks import WorkerStops, conflicts
from django_redis_lock.tasks.conflicts import logger, task_waiting

WAIT_FOR_FIRST = 10.0  # seconds to wait for an earlier delivery: in a worker, then in the queue
WAIT_FOR_WORKER = 1.0  # seconds that a stopping worker's message waits, or it would take it again
TICKET_TURN = 0.25  # seconds between checks of a ticket that may become valid, or of permits
RESULT_PATIENCE = 2.0  # seconds for an earlier delivery to store its result after its release
RESULT_MOMENT = 0.25  # the same for a delivery that may have released it, if there was one at all

SUCCEEDED = "another delivery of {run.task_id} has succeeded"
FULL = "the queue of lock {run.key!r} is full (queue_limit={run.options.queue_limit})."
WOULD_BLOCK = (
    "lock {run.key!r} is reserved for a message, which may need the worker in which this call "
    "would wait."
)
IN_A_WORKER = (
    "lock {run.key!r} was not free, and {run.policy!r} works only in a worker, not in a direct or "
    "eager call."
)
_UNGUARDED = object()


def carry_out(run: Run, call: Callable[..., Any]) -> Any:
    """Make the call with the lock held, or return the result of the conflict."""
    args, kwargs = run.arguments
    if run.nested:
        # An eager call may stand for the message that waits until this run has ended.
        waits = run.options.scope == "queue" and run.policy in ("retry", "wait", "park")
        if run.request is None or (run.request.is_eager and waits):
            return finished(run.task.run, call(*args, **kwargs))
    before = all_runs.set((*runs(), run))
    began = -math.inf
    try:
        lock, result = _enter(run)
        if lock is None and result is not _UNGUARDED:
            return result
        try:
            if lock is not None:
                run.lock, run.fence = lock, lock.fence
            began = monotonic()
            result = call(*args, **kwargs)
            return result if result is None else finished(run.task.run, result)
        finally:
            if lock is None:
                run.try_to_give_up_reservation()  # if the server is available again
            else:
                _leave(run, lock, monotonic() - began)
    finally:
        all_runs.reset(before)


def _enter(run: Run) -> Entry:
    try:
        if run.is_plain:  # and its lock is free, most of the time
            lock = run.lock_of_run()
            if lock.acquire(blocking=False):
                return lock, None
        entry = enter(run)
    except BaseException as error:
        if run.handle_of_run is not None:  # which may hold the lock, wherever that was raised
            with contextlib.suppress(LockError):
                run.handle_of_run.release()
        if not isinstance(error, LockUnavailable):
            run.try_to_give_up_reservation()
        elif run.options.on_unavailable == "run":
            logger.warning("Started task %s[%s] unguarded: %s", run.task.name, run.task_id, error)
            return None, _UNGUARDED
        raise
    if entry[0] is None:
        run.try_to_give_up_reservation()
    return entry


def _leave(run: Run, lock: TaskLock, seconds: float) -> None:
    """Release the lock, or leave it to the next message or its rest; the task's work is done."""
    rest = run.options.at_least_for - seconds
    try:
        if run.reserve_for is not None:
            lock.backend.run(lock.detach_steps(run.reserve_for, state=QUEUED))
        elif rest >= 0.001 and not run.followed:
            lock.backend.run(lock.detach_steps(rest, late=False, state=key_locks.RESTING))
        else:
            lock.release()
    except LockError as error:
        if isinstance(error, LockLost) or not isinstance(error, LockNotOwned):
            text = "Could not release the lock of task %s[%s] after its run: %s"
            logger.error(text, run.task.name, run.task_id, error)  # noqa: TRY400 - says all
            if lock.is_held_here:  # it could not be passed on, so it is freed in the background
                abandon([lock])
    except SoftTimeLimitExceeded:
        text = "Task %s[%s] reached its soft time limit after its end, while releasing its lock"
        logger.warning(text, run.task.name, run.task_id)
    publish_next(lock)


# What a call does. Each function takes the run, and its lock or the holder of that, and returns an
# entry; or ``None`` to ask the server once more. It raises what ends the call.


def start(run: Run, lock: TaskLock, dead: bool = False) -> Entry:
    """Run with the lock that is held now, unless another delivery, not ``dead``, has succeeded."""
    takes_over = run.first is not None and not run.was_sent_by(run.first)
    patience = RESULT_PATIENCE if takes_over or run.wait_until is not None else RESULT_MOMENT
    if takes_over:
        run.may_have_succeeded = not dead
    if not run.may_run_with(run.header):
        run.overtake()
        if run.give_up_reservation():
            run.has_ticket = True
        elif (superseded := run.superseded(begins=True)) is not None:
            lock.release()
            return superseded
    if run.has_succeeded(0.0 if run.has_ticket else patience):
        end(run, lock, SUCCEEDED)
    key_locks.forget_earlier(run.task, run.task_id, run.header.sent)
    if takes_over:
        text = "took over lock %r, which was %s"
        run.conflict(run.first).notify(conflicts.task_taken_over, text)
    return lock, None


def answer(run: Run, duplicate_of: Any) -> Entry:
    conflict = replace(run.conflict(None, run.options.queue_policy), when_sent=duplicate_of)
    policy = run.options.on_queue_conflict
    if callable(policy):
        return None, policy(conflict)
    if policy == "raise":
        raise conflict.error()
    return None, conflict.skip("another instance was waiting or running when it was sent")


def skip_superseded(run: Run, entry: Entry) -> Entry:
    return entry


# The same task, in another delivery.


def take_over(run: Run, own: Holder) -> Entry | None:
    lock = run.lock_of_run()
    if key_locks.leave_to_rest(run.backend, own) or not lock.take_over(own.token_id):
        return None
    run.first = own
    return start(run, lock, dead=True)


def end(run: Run, _: Any, why: str) -> Entry:
    raise Ignore(why.format(run=run))


def go_back(run: Run, own: Holder) -> Entry:
    return _send_again(run, own, run.header_to_send(), run.options.countdown)


def wait_for_it(run: Run, own: Holder) -> Entry | None:
    if run.first is None:
        text = "began to wait: lock %r is %s, another delivery of the same task"
        run.conflict(own).notify(task_waiting, text)
        run.first_until = monotonic() + WAIT_FOR_FIRST
    run.first = own
    turn = TICKET_TURN if run.may_run_with(run.header) else WAIT_FOR_FIRST
    return _wait_in_turn(run, own, min(turn, max(0.0, run.first_until - monotonic())))


def send_back(run: Run, own: Holder) -> Entry:
    header = run.header_to_send()
    begun = header.redelivered or not run.was_sent_by(own)
    run.send_back(WAIT_FOR_FIRST, replace(header, redelivered=begun))
    raise Ignore(f"another delivery of {run.task_id} runs; this one is sent again")


# Another instance.


def call_it(run: Run, holder: Holder | None) -> Entry:
    return None, run.options.on_run_conflict(run.conflict(holder))  # type: ignore[operator]


def skip(run: Run, holder: Holder | None, why: str = "") -> Entry:
    return None, run.conflict(holder).skip(why.format(run=run))


def refuse(run: Run, holder: Holder | None, why: str = "") -> Entry:
    raise run.conflict(holder).error(why.format(run=run))


def retry(run: Run, holder: Holder | None) -> Entry:
    header, most = run.header_to_send(), run.options.max_retries
    attempts = header.attempts + 1
    if most is not None and attempts > most:
        refuse(run, holder, f"lock {{run.key!r}} was held at each of {attempts} attempts.")
    return _send_again(run, holder, header, run.options.countdown)


def park(run: Run, holder: Holder | None) -> Entry | None:
    if outbox.park(run, holder):
        run.leave_reservation()
        raise Ignore(f"lock {run.key!r} is held, and {run.task_id} is parked")
    full = {"raise": refuse, "skip": skip}.get(run.policy)  # "retry" has a row of its own
    return full(run, holder, FULL) if full else None


def wait(run: Run, holder: Holder | None) -> Entry | None:
    if run.wait_until is None:
        run.conflict(holder).notify(task_waiting, "began to wait: lock %r is %s")
    entry = _wait_in_turn(run, holder, run.left_to_wait(holder))
    if entry is None and not run.left_to_wait(holder):
        refuse(run, next(iter(run.holders()), None))
    return entry


def _wait_in_turn(run: Run, holder: Holder | None, seconds: float) -> Entry | None:
    lock = run.lock_of_run()
    with contextlib.suppress(key_locks.HeldForMessage):
        if run.sharing.shared and holder and run.among([holder]):  # the queue might give a permit
            lock.check_wait()
            time.sleep(min(TICKET_TURN, seconds))
        elif lock.acquire(blocking_timeout=seconds) and run.is_first(lock):
            return start(run, lock)
    return None


def wait_in_queue(run: Run, holder: Holder) -> Entry:
    left, header = run.left_to_wait(holder), run.header_to_send()
    if not left:
        refuse(run, holder)
    if left < math.inf:
        header = replace(header, wait_until=header.wait_until or key_locks.clock_at(holder, left))
    return _send_again(run, holder, header, min(run.options.countdown, left))


def _send_again(run: Run, holder: Holder | None, header: MessageHeader, countdown: float) -> Entry:
    """Send the message again, with its reservation if it has one."""
    conflict, reserved = run.conflict(holder), None
    own = run.reservation_in(header.lock)
    if own is not None:
        marks = {**own.marks, key_locks.SINCE: f"{queued_since(own):.6f}"}  # it loses no time
        reserved = run.handle(header.lock, run.options.queue_timeout + countdown, **marks)
        header = header.naming(reserved)
    elif (superseded := run.superseded()) is not None:
        return superseded
    text = "will be retried: lock %r is %s, next try in %g s"
    conflict.notify(task_waiting, text, countdown)
    run.send_back(countdown, replace(header, attempts=header.attempts + 1))
    if own is not None and reserved is not None:
        try:
            reserved.take_over(own.token_id)
        except LockError as error:
            text = "Sent task %s[%s] again; its reservation may end in %s s: %s"
            logger.warning(text, run.task.name, run.task_id, own.ttl, error)
    when: Any = countdown  # the types of Celery know no float here
    raise Retry(message=f"lock {conflict.key!r} is {conflict.state}", when=when)


def _without_result(run: Run, act: Callable[[], Entry | None]) -> Entry | None:
    """Act on a conflict with a task of the same id, whose result is the one to store."""
    try:
        entry = act()
    except Retry as error:
        raise Ignore(str(error)) from None
    except (Ignore, Reject, LockUnavailable, WorkerStops):
        raise
    except Exception as error:
        if not isinstance(error, conflicts.TaskAlreadyRunning):
            text = "Did not store the failure of task %s[%s]: another task with its id runs"
            logger.exception(text, run.task.name, run.task_id)
        run.task.backend.mark_as_failure(
            run.task_id, error, request=run.request, store_result=False
        )
        raise Ignore(str(error)) from None
    if entry is not None and entry[0] is None:
        run.request.ignore_result = True
    return entry


class Row(NamedTuple):
    """What a call does if all this is true of it, and of none of the rows before."""

    call: str
    lock: str
    policy: str  # for a run that finds another one
    then: Callable[..., Entry | None]
    why: tuple[str, ...] = ()  # a format of the run, where ``then`` takes one


ANY = "any"
ANSWER = "is sent for its result only"
KNOWN = "has a header, or is redelivered"
INSIDE = "is made inside a run with its key"
CALL = "is direct or eager"

SUPERSEDED = "superseded, on the record of a newer message"
FREE = "free, or reserved for it"
DEAD = "held by a dead run of this task"
SENT_AGAIN = "queued for another message of this task"
RESERVED = "held for a message of this task"
FIRST = "held by a run of this task"
FIRST_LASTS = "the same after ten seconds"
DONE = "held by another, and this task has succeeded"
OTHER = "held by another"
MESSAGES = "held for messages that need this worker"

TABLE = (
    Row(ANSWER, ANY, ANY, answer),
    Row(ANY, SUPERSEDED, ANY, skip_superseded),
    Row(ANY, FREE, ANY, start),
    Row(ANY, DEAD, ANY, take_over),
    Row(KNOWN, SENT_AGAIN, ANY, end, ("{run.task_id} was sent again, and waits in the queue",)),
    Row(ANY, RESERVED, ANY, go_back),
    Row(ANY, FIRST_LASTS, ANY, send_back),
    Row(ANY, FIRST, ANY, wait_for_it),
    Row(ANY, DONE, ANY, end, (SUCCEEDED,)),
    Row(ANY, OTHER, "callable", call_it),
    Row(ANY, OTHER, "skip", skip),
    Row(ANY, OTHER, "raise", refuse),
    Row(INSIDE, OTHER, ANY, refuse, ("it would wait for the run that calls it.",)),
    Row(CALL, OTHER, "retry", refuse, (IN_A_WORKER,)),
    Row(ANY, OTHER, "retry", retry),
    Row(CALL, OTHER, "park", refuse, (IN_A_WORKER,)),
    Row(ANY, OTHER, "park", park),
    Row(CALL, MESSAGES, "wait", refuse, (WOULD_BLOCK,)),
    Row(ANY, MESSAGES, "wait", wait_in_queue),
    Row(ANY, OTHER, "wait", wait),
)


def enter(run: Run) -> Entry:
    """Return the lock that the task may run with, or its result without a run."""
    facts = {
        ANSWER: run.header.duplicate_of is not None,
        KNOWN: run.is_known,
        INSIDE: run.nested,
        CALL: not run.can_go_back,
    }
    call, first, again = {ANY, *filter(facts.get, facts)}, True, False
    try:
        while True:
            lock, found = _ask(run, first=first, again=again)
            first, again = False, not lock
            if again:
                continue  # it came free just now
            policies = (ANY, run.policy)
            fits = (row for row in TABLE if row.call in call and row.lock in lock)
            row = next(row for row in fits if row.policy in policies)
            act = partial(row.then, run, found, *row.why)
            if ANSWER in call:
                namesake = found.get("task_id") == run.task_id
            else:
                namesake = OTHER in lock and run.can_go_back and found and run.among([found])
            entry = _without_result(run, act) if namesake else act()
            if entry is not None:
                return entry
    except WorkerStops:
        run.send_back(WAIT_FOR_WORKER, run.header_to_send())
        raise Ignore(f"its worker stops while {run.task_id} waits; it is sent again") from None


def _ask(run: Run, *, first: bool, again: bool) -> tuple[set[str], Any]:
    """Take the lock if it is free; return what ``TABLE`` says about it, and it or a holder.

    That is nothing if it came free just now; ``again`` it is paused, or refused for else.
    """
    if run.header.duplicate_of is not None:
        return {ANY}, run.header.duplicate_of
    # A message that is superseded must not get in the way of one that is not.
    if first and not run.redelivered and (superseded := run.superseded()) is not None:
        return {SUPERSEDED}, superseded
    lock = run.adopt() or (None if first and run.is_plain else run.take(first=first))
    if lock is not None:
        return {FREE}, lock
    holders = run.holders()
    own = run.among(holders)
    run.share_as(own)
    # A run that sent it may have left it the lock since ``adopt``.
    left = own is not None and own.token_id == run.header.ticket and not run.is_beside_others(own)
    if not again and (left or not holders):
        return set(), None
    if own is not None and run.is_same(own):
        return _facts_of_own(run, own), own
    run.first, facts = None, {OTHER}
    holder = own or min(holders, key=key_locks.is_for_message, default=None)  # a run, if any
    if run.has_succeeded():
        facts = {DONE}
    elif holder and key_locks.is_for_message(holder) and in_worker():  # then no run has a permit
        facts |= {MESSAGES}
    return facts, holder


def _facts_of_own(run: Run, own: Holder) -> set[str]:
    if run.is_beside_others(own):
        return {RESERVED}
    if key_locks.is_dead(own) or key_locks.RECEIVED in own.marks:
        return {DEAD}
    if key_locks.is_for_message(own):
        return {RESERVED, SENT_AGAIN} if own.marks.get("state") == QUEUED else {RESERVED}
    lasts = run.first is not None and monotonic() >= run.first_until
    return {FIRST, FIRST_LASTS} if lasts else {FIRST}
