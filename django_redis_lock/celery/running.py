"""One call of a guarded task, from its start or conflict to the release of its lock.

Most calls find their lock free and take it, in one round trip. What becomes of all others is in
``TABLE``.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from celery import states
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from django.dispatch import receiver

from django_redis_lock.celery import key_locks, parking
from django_redis_lock.celery.key_locks import (
    MARK,
    NO_SLIP,
    QUEUED,
    RESTING,
    SINCE,
    GuardedCall,
    HeldForMessage,
    Slip,
    TaskLock,
    WorkerStops,
    clock_at,
    forget_earlier,
    is_dead,
    is_for_message,
    is_made_up,
    queued_since,
    sent_of,
    slip_in,
    stored_state,
)
from django_redis_lock.celery.options import Arguments, Options
from django_redis_lock.celery.private import in_worker
from django_redis_lock.exceptions import LockError, LockLost, LockNotOwned, LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.primitives.held import abandon
from django_redis_lock.protocol.records import Holder
from django_redis_lock.signals import lock_lost, never_blocks
from django_redis_lock.support.arguments import Default, Sharing
from django_redis_lock.support.functions import finished
from django_redis_lock.tasks.conflicts import (
    TaskAlreadyRunning,
    logger,
    task_lock_lost,
    task_taken_over,
    task_waiting,
)

if TYPE_CHECKING:
    from django_redis_lock.celery.guard import Guard

GIVE_UP_LEASE = 10.0
"""Seconds of lease while a reservation is given up, in case the process dies in between."""
WAIT_FOR_FIRST = 10.0
"""Seconds for which a delivery waits in a worker for an earlier one of the same task to end. Then
it goes back to the queue for as long."""
WAIT_FOR_WORKER = 1.0
"""Seconds for which a stopping worker's message stays in the queue, or it would take it again."""
TICKET_TURN = 0.25
"""Seconds between checks of a ticket that may become valid, or of one permit among several."""
RESULT_PATIENCE = 2.0
"""Seconds for an earlier delivery to store its result after it was seen to release its lock."""
RESULT_MOMENT = 0.25
"""The same for a delivery that may have released it, if there was one at all."""

SUCCEEDED = "another delivery of {run.task_id} has succeeded"
FULL = "lock {run.key!r} is held, and queue_limit={run.options.queue_limit} lets no more wait."
WOULD_BLOCK = (
    "lock {run.key!r} is held for a message, which may need the worker that this call would wait "
    "in."
)

Entry: TypeAlias = "tuple[TaskLock | None, Any]"
"""The lock that the task may run with, or ``None`` and the result of the call."""
_UNGUARDED = object()
_runs: ContextVar[tuple[Run, ...]] = ContextVar("django_redis_lock_runs", default=())

runs = _runs.get
"""Returns the guarded runs that this thread or greenlet is in, the innermost last."""


def current_lock(task: Any = None) -> TaskLock | None:
    """Return the lock of the innermost guarded run, or of the innermost run of a task."""
    for run in reversed(runs()):
        if run.lock is not None and (task is None or run.task.name == task.name):
            return run.lock
    return None


class Run(GuardedCall):
    """A call by a worker or an eager one, with a ``request``; or a direct call, without.

    Passes on what ``guard`` raises; the message ends then and gives up its reservation.
    """

    moment = "run"
    lock: TaskLock | None = None
    fence = 0
    retries = 0
    redelivered = False
    """Whether another delivery may have begun, also if this one was sent again since."""
    nested = False
    """Whether it is made inside a run that holds its lock."""
    followed = False
    """Whether it has sent a message in its own place: a retry or replacement."""
    reserve_for: float | None = None
    """Seconds for which the lock is reserved for that message, if it takes the lock over."""
    wait_until: float | None = None
    """When its wait for another instance ends (monotonic), once it has begun."""
    place: Slip | None = None
    """The slip of a message that was parked, and has a reservation of its own in the queue."""
    first: Holder | None = None
    """Another delivery of its task that it waits for, until ``first_until`` (monotonic)."""
    first_until = 0.0
    _handle: TaskLock | None = None

    def __init__(self, guard: Guard, task: Any, arguments: Arguments) -> None:
        request, options = task.request, guard.options
        inside = (run.task_id == request.id and run.task.name == task.name for run in runs())
        if request.called_directly or any(inside):  # the task calls itself
            request = None
        self.request = request
        super().__init__(options, task, request and request.id, arguments)
        if request is not None:
            self.slip = slip_in(request)
            self.retries = int(request.retries or 0)
            marked = (request.delivery_info or {}).get("redelivered")
            self.redelivered = self.slip.redelivered or bool(marked)
        if self.slip.queued:
            self.place, (lock, ticket, using) = self.slip, self.slip.queued
            self.slip = replace(self.slip, lock=lock, ticket=ticket, using=using, queued=None)
        self.may_have_succeeded = self.redelivered or self.slip.parked > 0
        """Whether another delivery may have run the task already."""
        self.policy = options.run_policy
        self.can_go_back = request is not None and not request.is_eager
        """Whether a worker carries it out, so that it can be sent again."""
        self.is_plain = self.slip is NO_SLIP and not self.redelivered and options.concurrency == 1
        """Whether its message says nothing about its lock, which only one may have."""
        try:
            self.key = guard.key(task, *arguments)
            if options.concurrency != 1:
                self.sharing = guard.sharing(task, *arguments)
        except BaseException:
            self.try_to_give_up_reservation()
            raise
        for run in runs():
            holds = run.lock is not None and run.lock.is_held_here
            self.nested |= holds and run.has_key(self.key, options)

    def has_key(self, key: str, options: Options) -> bool:
        """Whether it has this key, on the alias that these options name."""
        return (self.key, self.options.using) == (key, options.using)

    def carry_out(self, call: Callable[..., Any]) -> Any:
        """Make the call with the lock held, or return the result of the conflict."""
        args, kwargs = self.arguments
        if self.nested:
            # An eager call may stand for the message that waits until this run has ended.
            waits = self.options.scope == "queue" and self.policy in ("retry", "wait", "park")
            if self.request is None or (self.request.is_eager and waits):
                return finished(self.task.run, call(*args, **kwargs))
        before = _runs.set((*runs(), self))
        began = -math.inf
        try:
            lock, result = self._enter()
            if lock is None and result is not _UNGUARDED:
                return result
            try:
                if lock is not None:
                    self.lock, self.fence = lock, lock.fence
                began = monotonic()
                result = call(*args, **kwargs)
                return result if result is None else finished(self.task.run, result)
            finally:
                if lock is None:
                    self.try_to_give_up_reservation()  # if the server is available again
                else:
                    self._leave(lock, monotonic() - began)
        finally:
            _runs.reset(before)

    def _enter(self) -> Entry:
        try:
            if self.is_plain:  # and its lock is free, most of the time
                lock = self.lock_of_run()
                if lock.acquire(blocking=False):
                    return lock, None
            entry = enter(self)
        except BaseException as error:
            if self._handle is not None:  # which may hold the lock, wherever that was raised
                with contextlib.suppress(LockError):
                    self._handle.release()
            if not isinstance(error, LockUnavailable):
                self.try_to_give_up_reservation()
            elif self.options.on_unavailable == "run":
                text = "Task %s[%s] runs unguarded: %s"
                logger.warning(text, self.task.name, self.task_id, error)
                return None, _UNGUARDED
            raise
        if entry[0] is None:
            self.try_to_give_up_reservation()
        return entry

    def _leave(self, lock: TaskLock, seconds: float) -> None:
        """Release the lock, or leave it to the task's next message or its rest.

        The task's work is done, so neither a failure here nor a soft time limit fails the task.
        """
        rest = self.options.at_least_for - seconds
        try:
            if self.reserve_for is not None:
                lock.backend.run(lock._detach(self.reserve_for, state=QUEUED))
            elif rest >= 0.001 and not self.followed:
                lock.backend.run(lock._detach(rest, late=False, state=RESTING))
            else:
                lock.release()
        except LockError as error:
            if isinstance(error, LockLost) or not isinstance(error, LockNotOwned):
                text = "Task %s[%s] ran, but its lock was not released: %s"
                logger.error(text, self.task.name, self.task_id, error)  # noqa: TRY400 - says all
                if lock.is_held_here:  # it could not be passed on, so it is freed in the background
                    abandon([lock])
        except SoftTimeLimitExceeded:
            text = "Task %s[%s] had ended when its soft time limit struck"
            logger.warning(text, self.task.name, self.task_id)
        parking.pass_on(self, lock)

    # What is known of the call, and of the holder that it meets.

    def lock_of_run(self) -> TaskLock:
        """Return a handle with the lease of a run, whose marks say which attempt it is."""
        marks = {"retries": str(self.retries)} if self.retries else {}
        lock = self.handle(self.name, self.options.timeout, **marks)
        lock.sharing = self.sharing
        lock.until_worker_stops = self.can_go_back
        self._handle = lock
        return lock

    def among(self, holders: list[Holder]) -> Holder | None:
        """Return the holder that has this task's id."""
        ours = (item for item in holders if item.task_id == self.task_id)
        return None if self.task_id is None else next(ours, None)

    def is_same(self, holder: Holder) -> bool:
        """Whether a holder is another delivery or attempt of this task.

        Otherwise it may have the same id, if that was chosen by who sent both.
        """
        if self.task_id is None or holder.task_id != self.task_id:
            return False
        ours, sent = self.slip.sent, sent_of(holder)
        if ours and sent:
            return ours == sent
        if self.redelivered or self.slip.follows or self.retries:
            return True
        return not ours and not sent and is_made_up(self.task_id)

    def is_beside_others(self, own: Holder) -> bool:
        """Whether the lock, which it needs alone, was downgraded by a run of it, and is shared."""
        return own.shared and not self.sharing.shared and own.holders > 1

    def was_sent_by(self, holder: Holder) -> bool:
        """Whether its message was sent by the run that it meets, as its retry."""
        before = int(holder.marks.get("retries", 0))
        return holder.fence == self.slip.follows or before < self.retries

    def has_succeeded(self, patience: float = 0.0) -> bool:
        """Whether another delivery has stored a success, as it does after its release.

        ``patience``: the seconds to wait for that.
        """
        if not self.may_have_succeeded or self.request.ignore_result:
            return False
        sent, until = self.slip.sent, monotonic() + patience
        while (state := stored_state(self.task, self.task_id, sent)) != states.SUCCESS:
            if state is None or monotonic() >= until:
                return False
            time.sleep(0.05)
        return True

    def left_to_wait(self, holder: Holder | None) -> float:
        """Return the seconds that are left of ``blocking_timeout``; infinity for no limit."""
        if self.wait_until is None:
            given = self.options.blocking_timeout
            longest = self.backend.blocking_timeout if isinstance(given, Default) else given
            left = math.inf if longest is None else longest
            if self.slip.wait_until and holder and holder.fence is not None:
                left = (self.slip.wait_until - clock_at(holder)) / 1_000_000
            self.wait_until = monotonic() + left
        return max(0.0, self.wait_until - monotonic())

    # The message, and the lock that was reserved for it when it was sent.

    def may_run_with(self, slip: Slip) -> bool:
        """Whether the task may run with the lock that is reserved for its message.

        Otherwise it gives that up: it is of scope ``queue``, or of other options than the worker's.
        """
        ours = bool(slip.ticket) and slip.using == self.options.using
        return ours and slip.lock == self.name

    def slip_to_send(self) -> Slip:
        assert self.task_id is not None
        return replace(self.slip, task_id=self.task_id, redelivered=self.redelivered)

    def send_back(self, countdown: float, slip: Slip) -> None:
        """Send this message again in ``countdown`` seconds; the current one can be acknowledged."""
        request = self.request
        headers = {**(request.headers or {}), **slip.header()}
        signature = self.task.signature_from_request(
            request, countdown=countdown, eta=None, retries=request.retries, headers=headers
        )
        try:
            signature.apply_async()
        except Exception as error:
            if not self.task.acks_late:
                raise
            self.slip, self.place = NO_SLIP, None  # it goes on with this message
            raise Reject(error, requeue=True) from error
        self.slip, self.place = NO_SLIP, None  # it goes on with that message

    def give_up_reservation(self) -> bool:
        """Release the lock that was reserved when the message was sent, if it still is.

        Returns whether it was. Does nothing if the message was sent back. Raises
        ``LockUnavailable``, unless the lock is on another alias than the task's: its lease ends.
        """
        given_up = False
        slip = self.place or self.slip
        for name, ticket, using in slip.tickets:
            if using in locks.settings:
                try:
                    given_up |= self._end_reservation(name, ticket, using)
                    if not given_up and (own := self.reservation_in(name)):
                        given_up |= self._end_reservation(name, own.token_id, using)
                except LockUnavailable:
                    if using == self.options.using:
                        raise
        return given_up

    def _end_reservation(self, name: str, ticket: str, using: str) -> bool:
        reserved = self.handle(name, GIVE_UP_LEASE, using=using)
        taken = reserved.take_over(ticket)
        is_place = name.rpartition(MARK)[2].startswith(QUEUED)  # which nobody shares
        if not taken and not is_place and locks[using].can_share:
            reserved.sharing = Sharing(shared=True)
            taken = reserved.take_over(ticket)
        if taken:
            reserved.release()
            parking.pass_on(self, reserved)
        return taken

    def try_to_give_up_reservation(self) -> None:
        with contextlib.suppress(LockError):
            self.give_up_reservation()

    def reservation_in(self, name: str) -> Holder | None:
        """Return what the message holds in a place of scope ``queue``.

        Its ticket is that of the message, or of the one that was sent in this one's place.
        """
        found = self.holders([name]) if name in self.reservations else []
        ours = (one for one in found if one.token_id == self.slip.ticket or self.is_same(one))
        return next((one for one in ours if one.marks.get("state") == QUEUED), None)

    def overtake(self) -> None:
        """Record that this run, which has begun, does the work of older messages, and end them.

        Their arguments must not come after these. Raises ``LockUnavailable``.
        """
        slip, options = self.slip, self.options
        if options.on_queue_conflict != "supersede" or slip is NO_SLIP:
            return
        names = [*self.reservations, *([slip.supersedes] if slip.supersedes else [])]
        found = self.holders(names)
        own = next((one for one in found if one.token_id == slip.ticket), None)
        for other in found:
            state = other.marks.get("state")
            if state == key_locks.SUPERSEDING:
                self.record(other.name, key_locks.SUPERSEDED).take_over(other.token_id)
            elif own is not None and state == QUEUED and queued_since(other) < queued_since(own):
                name = self.record_of(other.task_id, sent_of(other))
                self.record(name, key_locks.SUPERSEDED, other.ttl).acquire(blocking=False)
                self._end_reservation(other.name, other.token_id, options.using)

    def superseded(self, *, begins: bool = False) -> Entry | None:
        """Return the result of a task whose work a newer message does, else ``None``.

        Only the record of that counts. A reservation that is gone proves nothing. The record goes
        when the message has come: when it is superseded, or ``begins``.
        """
        slip = self.slip
        if self.options.on_queue_conflict != "supersede" or slip.lock not in self.reservations:
            return None
        name, newer, proven = self.record_of(self.task_id, slip.sent), None, False
        for _ in range(10):  # its sender may just change it
            newer = self.backend.holder(name)
            proven = newer is not None and newer.marks.get("state") == key_locks.SUPERSEDED
            if newer is None or not (proven or begins):
                return None
            if self._end_reservation(name, newer.token_id, self.options.using):
                break
        if newer is None or not proven:
            return None
        if newer.task_id == self.task_id:
            self.request.ignore_result = True  # the id is that of the newer one
        return None, self.conflict(newer, "supersede").skip("superseded by newer arguments")


# What a call does, by what its message and the server say. Each function takes the run, and its
# lock or the holder of that, and returns an entry; or ``None`` to ask the server once more. It
# raises what ends the call. All raise ``LockUnavailable``.


def start(run: Run, lock: TaskLock, dead: bool = False) -> Entry:
    """Run with the lock that is held now, unless another delivery has succeeded.

    ``dead``: whether the delivery that had the lock has died.
    """
    takes_over = run.first is not None and not run.was_sent_by(run.first)
    patience = RESULT_PATIENCE if takes_over or run.wait_until is not None else RESULT_MOMENT
    if takes_over:
        run.may_have_succeeded = not dead
    if not run.may_run_with(run.slip):
        run.overtake()
        if run.give_up_reservation():
            run.may_have_succeeded = False
        elif (superseded := run.superseded(begins=True)) is not None:
            lock.release()
            return superseded
    if run.has_succeeded(patience):
        end(run, lock, SUCCEEDED)
    forget_earlier(run.task, run.task_id, run.slip.sent)
    if takes_over:
        run.conflict(run.first).notify(task_taken_over, "takes over lock %r, which was %s")
    return lock, None


def answer(run: Run, duplicate_of: Any) -> Entry:
    """Return the result of a task that was sent only to give its id a result."""
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
    if not lock.take_over(own.token_id):
        return None
    run.first = own
    return start(run, lock, dead=True)


def end(run: Run, _: Any, why: str) -> Entry:
    """End the call without a result of its own."""
    raise Ignore(why.format(run=run))


def go_back(run: Run, own: Holder) -> Entry:
    return _send_again(run, own, run.slip_to_send(), run.options.countdown)


def wait_for_it(run: Run, own: Holder) -> Entry | None:
    """Wait for another delivery of this task to end, a while."""
    if run.first is None:
        text = "waits: lock %r is %s, another delivery of the same task"
        run.conflict(own).notify(task_waiting, text)
        run.first_until = monotonic() + WAIT_FOR_FIRST
    run.first = own
    turn = TICKET_TURN if run.may_run_with(run.slip) else WAIT_FOR_FIRST
    return _wait_in_turn(run, own, min(turn, max(0.0, run.first_until - monotonic())))


def send_back(run: Run, own: Holder) -> Entry:
    """Come again as a later delivery, so that other tasks can run meanwhile."""
    slip = run.slip_to_send()
    begun = slip.redelivered or not run.was_sent_by(own)
    run.send_back(WAIT_FOR_FIRST, replace(slip, redelivered=begun))
    raise Ignore(f"another delivery of {run.task_id} runs; this one is sent again")


# Another instance.


def call_it(run: Run, holder: Holder | None) -> Entry:
    return None, run.options.on_run_conflict(run.conflict(holder))  # type: ignore[operator]


def skip(run: Run, holder: Holder | None, why: str = "") -> Entry:
    return None, run.conflict(holder).skip(why.format(run=run))


def refuse(run: Run, holder: Holder | None, why: str = "") -> Entry:
    raise run.conflict(holder).error(why.format(run=run))


def retry(run: Run, holder: Holder | None) -> Entry:
    """Come again, up to ``max_retries`` times."""
    slip, most = run.slip_to_send(), run.options.max_retries
    attempts = slip.attempts + 1
    if most is not None and attempts > most:
        refuse(run, holder, f"lock {{run.key!r}} was held at each of {attempts} attempts.")
    return _send_again(run, holder, slip, run.options.countdown)


def park(run: Run, holder: Holder | None) -> Entry | None:
    """Leave the message to the queue of the lock, and the worker to other tasks."""
    if parking.park(run, holder):
        run.slip, run.place = NO_SLIP, None  # it goes on with the parked message
        raise Ignore(f"lock {run.key!r} is held, and {run.task_id} is parked")
    match run.policy:
        case "raise":
            return refuse(run, holder, FULL)
        case "skip":
            return skip(run, holder, FULL)
        case "retry":
            return retry(run, holder)
    return None


def wait(run: Run, holder: Holder | None) -> Entry | None:
    """Wait for a run to end."""
    if run.wait_until is None:
        run.conflict(holder).notify(task_waiting, "waits: lock %r is %s")
    entry = _wait_in_turn(run, holder, run.left_to_wait(holder))
    if entry is None and not run.left_to_wait(holder):
        refuse(run, next(iter(run.holders()), None))
    return entry


def _wait_in_turn(run: Run, holder: Holder | None, seconds: float) -> Entry | None:
    """Wait in the queue of the lock, and start with it.

    A permit may be free, but not for a task of which another delivery has one. It waits a moment.
    """
    lock = run.lock_of_run()
    with contextlib.suppress(HeldForMessage):
        if run.sharing.shared and holder and run.among([holder]):
            lock.check_wait()
            time.sleep(min(TICKET_TURN, seconds))
        elif lock.acquire(blocking_timeout=seconds) and _is_first(run, lock):
            return start(run, lock)
    return None


def wait_in_queue(run: Run, holder: Holder) -> Entry:
    """Come again, as long as there are seconds left to wait for a message."""
    left, slip = run.left_to_wait(holder), run.slip_to_send()
    if not left:
        refuse(run, holder)
    if left < math.inf:
        slip = replace(slip, wait_until=slip.wait_until or clock_at(holder, left))
    return _send_again(run, holder, slip, min(run.options.countdown, left))


def _send_again(run: Run, holder: Holder | None, slip: Slip, countdown: float) -> Entry:
    """Send the message again, with its reservation if it has one."""
    conflict, reserved = run.conflict(holder), None
    own = run.reservation_in(slip.lock)
    if own is not None:
        marks = {**own.marks, SINCE: f"{queued_since(own):.6f}"}  # it loses no time
        reserved = run.handle(slip.lock, run.options.queue_timeout + countdown, **marks)
        slip = slip.naming(reserved)
    elif (superseded := run.superseded()) is not None:
        return superseded
    text = "comes again: lock %r is %s, next try in %g s"
    conflict.notify(task_waiting, text, countdown)
    run.send_back(countdown, replace(slip, attempts=slip.attempts + 1))
    if own is not None and reserved is not None:
        try:
            reserved.take_over(own.token_id)
        except LockError as error:
            text = "Task %s[%s] was sent again, and has its place in the queue for %s s: %s"
            logger.warning(text, run.task.name, run.task_id, own.ttl, error)
    when: Any = countdown  # the types of Celery know no float here
    raise Retry(message=f"lock {conflict.key!r} is {conflict.state}", when=when)


def _without_result(run: Run, act: Callable[[], Entry | None]) -> Entry | None:
    """Act on a conflict with a task of the same id, whose result is the one to store.

    A canvas that the message belongs to goes on, or fails, as without that.
    """
    try:
        entry = act()
    except Retry as error:
        raise Ignore(str(error)) from None
    except (Ignore, Reject, LockUnavailable, WorkerStops):
        raise
    except Exception as error:
        if not isinstance(error, TaskAlreadyRunning):
            text = "Task %s[%s] failed, and stores no result: another task with its id runs"
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
    policy: str
    """The policy for a run that finds another one."""
    then: Callable[..., Entry | None]
    why: tuple[str, ...] = ()
    """The reason, a format of the run, where ``then`` takes one."""


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
    Row(INSIDE, OTHER, ANY, refuse, ("it would wait for the run that it is called in.",)),
    Row(CALL, OTHER, "retry", refuse, ("it can't be sent again, because no worker runs it.",)),
    Row(ANY, OTHER, "retry", retry),
    Row(CALL, OTHER, "park", refuse, ("it can't be parked, because no worker runs it.",)),
    Row(ANY, OTHER, "park", park),
    Row(CALL, MESSAGES, "wait", refuse, (WOULD_BLOCK,)),
    Row(ANY, MESSAGES, "wait", wait_in_queue),
    Row(ANY, OTHER, "wait", wait),
)
"""What a call does, by what is true of it and of its lock; the first row that fits counts."""


def enter(run: Run) -> Entry:
    """Return the lock that the task may run with, or its result without a run."""
    facts = {
        ANSWER: run.slip.duplicate_of is not None,
        KNOWN: run.slip is not NO_SLIP or run.redelivered,
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
        run.send_back(WAIT_FOR_WORKER, run.slip_to_send())
        raise Ignore(f"its worker stops while {run.task_id} waits; it is sent again") from None


def _ask(run: Run, *, first: bool, again: bool) -> tuple[set[str], Any]:
    """Take the lock if it is free; return what ``TABLE`` says about it, and what it comes with.

    That is the lock or one of its holders, if there are any. It says nothing of what is free now.
    If it is so ``again``, the lock is refused although it has no holder, as while it is paused.
    """
    if run.slip.duplicate_of is not None:
        return {ANY}, run.slip.duplicate_of
    # A message that is superseded must not get in the way of one that is not.
    if first and not run.redelivered and (superseded := run.superseded()) is not None:
        return {SUPERSEDED}, superseded
    lock = _adopt(run) or (None if first and run.is_plain else _take(run, first=first))
    if lock is not None:
        return {FREE}, lock
    holders = run.holders()
    own = run.among(holders)
    run.share_as(own)
    # A run that sent it may have left it the lock since ``_adopt``.
    left_now = own is not None and own.token_id == run.slip.ticket and not run.is_beside_others(own)
    if not again and (left_now or not holders):
        return set(), None
    if own is not None and run.is_same(own):
        return _facts_of_own(run, own), own
    run.first, facts = None, {OTHER}
    holder = own or min(holders, key=is_for_message, default=None)  # a run, if there is one
    if run.has_succeeded():
        facts = {DONE}
    elif holder and is_for_message(holder) and in_worker():  # then no run has a permit
        facts |= {MESSAGES}
    return facts, holder


def _facts_of_own(run: Run, own: Holder) -> set[str]:
    """Return what ``TABLE`` says about a lock that this task has itself."""
    if run.is_beside_others(own):
        return {RESERVED}
    if is_dead(own):
        return {DEAD}
    if is_for_message(own):
        return {RESERVED, SENT_AGAIN} if own.marks.get("state") == QUEUED else {RESERVED}
    lasts = run.first is not None and monotonic() >= run.first_until
    return {FIRST, FIRST_LASTS} if lasts else {FIRST}


def _adopt(run: Run) -> TaskLock | None:
    """Take over the lock that is reserved for the message."""
    slip = run.place or run.slip
    if not run.may_run_with(slip):
        return None
    lock = run.lock_of_run()
    taken, run.place = lock.take_over(slip.ticket), None
    if not taken:
        return None
    run.may_have_succeeded = False
    return lock


def _take(run: Run, *, first: bool) -> TaskLock | None:
    """Take the lock if it is free, and not shared by another delivery of this task."""
    only = first and run.slip is NO_SLIP and not run.redelivered  # it seems; so it looks afterwards
    if run.sharing.shared and not only and run.among(run.holders()):
        return None
    lock = run.lock_of_run()
    return lock if lock.acquire(blocking=False) and _is_first(run, lock) else None


def _is_first(run: Run, lock: TaskLock) -> bool:
    """Whether no other delivery of this task got a permit before; otherwise release this one."""
    if run.sharing.shared and run.task_id is not None:
        fence = lock.fence
        if any(one.task_id == run.task_id and (one.fence or 0) < fence for one in run.holders()):
            lock.release()
            return False
    return True


@receiver(lock_lost, weak=False)
@never_blocks  # no task's lock is held by asyncio code
def _on_lock_lost(lock: Any = None, **kwargs: Any) -> None:
    if not isinstance(lock, TaskLock):
        return
    logger.error("Task %s[%s] runs on without its lock %r", lock.task.name, lock.task_id, lock.name)
    task_lock_lost.send_robust(sender=lock.task, task_id=lock.task_id, key=lock.name, holder=None)
