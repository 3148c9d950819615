"""What is known of one call of a guarded task, its message and its reservations.

``runs`` has those that this thread or greenlet is in.
"""

from __future__ import annotations

import contextlib
import math
import time
from contextvars import ContextVar
from dataclasses import replace
from time import monotonic
from typing import Any, TypeAlias

from celery import states
from celery.exceptions import Reject
from celery.signals import task_received
from django.dispatch import receiver

from django_redis_lock.celery import key_locks, private
from django_redis_lock.celery.key_locks import NO_HEADER, QUEUED, MessageHeader, TaskLock
from django_redis_lock.celery.options import GUARD, Arguments, Guard, Options
from django_redis_lock.celery.polling import publish_next
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.protocol.records import Holder
from django_redis_lock.signals import lock_lost, never_blocks
from django_redis_lock.support.arguments import Default, Sharing
from django_redis_lock.tasks.conflicts import logger, task_lock_lost

Entry: TypeAlias = "tuple[TaskLock | None, Any]"  # the lock to run with, or the call's result


class Run(key_locks.GuardedCall):
    """A call by a worker or an eager one, with a ``request``; or a direct call, without."""

    moment = "run"
    lock: TaskLock | None = None
    fence = 0
    retries = 0
    redelivered = False  # another delivery may have begun, also if this was sent again since
    nested = False  # made inside a run that holds its lock
    followed = False  # it has sent a message in its own place: a retry or replacement
    reserve_for: float | None = None  # seconds, if that message takes the lock over
    wait_until: float | None = None  # monotonic, once it waits for another instance
    has_ticket = False  # took what was reserved for its message, as the first delivery does
    reservation: MessageHeader | None = None  # that of a parked message, with one of the queue
    first: Holder | None = None  # another delivery of its task that it waits for ...
    first_until = 0.0  # ... until then (monotonic)
    handle_of_run: TaskLock | None = None  # the latest one

    def __init__(self, guard: Guard, task: Any, arguments: Arguments, request: Any = None) -> None:
        request, options, around = request or task.request, guard.options, runs()
        inside = (run.task_id == request.id and run.task.name == task.name for run in around)
        if request.called_directly or any(inside):  # the task calls itself
            request = None
        self.request = request
        super().__init__(options, task, request and request.id, arguments)
        if request is not None:
            self.header = key_locks.header_in(request)
            self.retries = int(request.retries or 0)
            marked = (request.delivery_info or {}).get("redelivered")
            self.redelivered = self.header.redelivered or bool(marked)
        if self.header.queued:
            self.reservation, (lock, ticket, using) = self.header, self.header.queued
            self.header = replace(self.header, lock=lock, ticket=ticket, using=using, queued=None)
        self.may_have_succeeded = self.redelivered or self.header.parked > 0  # in another delivery
        self.policy = options.run_policy
        self.can_go_back = request is not None and not request.is_eager  # a worker runs it
        self.is_known = self.header is not NO_HEADER or self.redelivered
        self.is_plain = not self.is_known and options.concurrency == 1
        try:
            self.key = guard.key(task, *arguments)
            if options.concurrency != 1:
                self.sharing = guard.sharing(task, *arguments)
            self.turn = guard.turn(task, *arguments)
        except BaseException:
            self.try_to_give_up_reservation()
            raise
        for run in around:
            holds = run.lock is not None and run.lock.is_held_here
            self.nested |= holds and run.has_key(self.key, options)

    def has_key(self, key: str, options: Options) -> bool:
        return (self.key, self.options.using) == (key, options.using)

    def lock_of_run(self) -> TaskLock:
        marks = {"retries": str(self.retries)} if self.retries else {}
        if self.options.at_least_for:
            marks[key_locks.AT_LEAST_FOR] = repr(self.options.at_least_for)
        lock = self.handle(self.name, self.options.timeout, **marks)
        lock.sharing = self.sharing
        lock.until_worker_stops = self.can_go_back
        self.handle_of_run = lock
        return lock

    def among(self, holders: list[Holder]) -> Holder | None:
        """Return the holder that has this task's id."""
        ours = (item for item in holders if item.task_id == self.task_id)
        return None if self.task_id is None else next(ours, None)

    def is_same(self, holder: Holder) -> bool:
        """Whether a holder is another delivery or attempt of this task, not only of its id."""
        if self.task_id is None or holder.task_id != self.task_id:
            return False
        ours, sent = self.header.sent, key_locks.sent_of(holder)
        if ours and sent:
            return ours == sent
        if self.redelivered or self.header.follows or self.retries:
            return True
        return not ours and not sent and key_locks.is_generated_id(self.task_id)

    def is_beside_others(self, own: Holder) -> bool:
        """Whether the lock, which it needs alone, was downgraded by a run of it, and is shared."""
        return own.shared and not self.sharing.shared and own.holders > 1

    def was_sent_by(self, holder: Holder) -> bool:
        """Whether its message was sent by the run that it meets, as its retry."""
        before = int(holder.marks.get("retries", 0))
        return holder.fence == self.header.follows or before < self.retries

    def has_succeeded(self, patience: float = 0.0) -> bool:
        """Whether another delivery stores a success in ``patience`` seconds, after its release."""
        if not self.may_have_succeeded or self.request.ignore_result:
            return False
        sent, until = self.header.sent, monotonic() + patience
        while (state := key_locks.stored_state(self.task, self.task_id, sent)) != states.SUCCESS:
            if state is None or monotonic() >= until:
                return False
            time.sleep(0.05)
        return True

    def left_to_wait(self, holder: Holder | None) -> float:
        """Return the seconds that are left of ``blocking_timeout``."""
        if self.wait_until is None:
            given = self.options.blocking_timeout
            longest = self.backend.blocking_timeout if isinstance(given, Default) else given
            left = math.inf if longest is None else longest
            if self.header.wait_until and holder and holder.fence is not None:
                left = (self.header.wait_until - key_locks.clock_at(holder)) / 1_000_000
            self.wait_until = monotonic() + left
        return max(0.0, self.wait_until - monotonic())

    def adopt(self) -> TaskLock | None:
        """Take over the lock that is reserved for the message."""
        header = self.reservation or self.header
        if not self.may_run_with(header):
            return None
        lock = self.lock_of_run()
        self.has_ticket, self.reservation = lock.take_over(header.ticket), None
        return lock if self.has_ticket else None

    def take(self, *, first: bool) -> TaskLock | None:
        """Take the lock if it is free, and not shared by another delivery of this task."""
        checks = self.sharing.shared and (self.is_known or not first)  # else ``is_first`` does
        if checks and self.among(self.holders()):
            return None
        lock = self.lock_of_run()
        return lock if lock.acquire(blocking=False) and self.is_first(lock) else None

    def is_first(self, lock: TaskLock) -> bool:
        """Whether no other delivery of this task got a permit before; else release this one."""
        if not self.sharing.shared or self.task_id is None:
            return True
        ours = (one for one in self.holders() if one.task_id == self.task_id)
        if any((one.fence or 0) < lock.fence for one in ours):
            lock.release()
            return False
        return True

    def may_run_with(self, header: MessageHeader) -> bool:
        """Whether the lock that is reserved for the message is the one of its run."""
        own = self.options.using, self.name
        return bool(header.ticket) and (header.using, header.lock) == own

    def header_to_send(self) -> MessageHeader:
        assert self.task_id is not None
        return replace(self.header, task_id=self.task_id, redelivered=self.redelivered)

    def send_back(self, countdown: float, header: MessageHeader) -> None:
        """Send this message again in ``countdown`` seconds; the current one can be acknowledged."""
        request, options = self.request, private.options_of(self.request)
        options["headers"].update(header.as_headers())
        signature = self.task.signature_from_request(
            request, countdown=countdown, eta=None, retries=request.retries, **options
        )
        try:
            signature.apply_async()
        except Exception as error:
            if not self.task.acks_late:
                raise
            self.leave_reservation()  # to this message
            raise Reject(error, requeue=True) from error
        self.leave_reservation()

    def leave_reservation(self) -> None:
        """Leave what is reserved to the message that is delivered next."""
        self.header, self.reservation = NO_HEADER, None

    def give_up_reservation(self) -> bool:
        """Release what is reserved for the message; return whether any was.

        Raises ``LockUnavailable``, unless that is on another alias than the task's.
        """
        given_up = False
        for name, ticket, using in (self.reservation or self.header).tickets:
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
        reserved = self.handle(name, 10.0, using=using)  # seconds, if the process dies now
        taken = reserved.take_over(ticket)
        for_queue = name.rpartition(key_locks.MARK)[2].startswith(QUEUED)  # is never shared
        if not taken and not for_queue and locks[using].can_share:
            reserved.sharing = Sharing(shared=True)
            taken = reserved.take_over(ticket)
        if taken:
            reserved.release()
            publish_next(reserved)
        return taken

    def try_to_give_up_reservation(self) -> None:
        with contextlib.suppress(LockError):
            self.give_up_reservation()

    def reservation_in(self, name: str) -> Holder | None:
        """Return the reservation of scope ``queue`` of this message, or of the one after it."""
        found = self.holders([name]) if name in self.reservations else []
        ours = (one for one in found if one.token_id == self.header.ticket or self.is_same(one))
        return next((one for one in ours if one.marks.get("state") == QUEUED), None)

    def overtake(self) -> None:
        """Record that this run does the work of older messages, whose arguments are out of date."""
        header, options = self.header, self.options
        if options.on_queue_conflict != "supersede" or header is NO_HEADER:
            return
        names = [*self.reservations, *([header.supersedes] if header.supersedes else [])]
        found, since = self.holders(names), key_locks.queued_since
        own = next((one for one in found if one.token_id == header.ticket), None)
        for other in found:
            state = other.marks.get("state")
            if state == key_locks.SUPERSEDING:
                self.record(other.name, key_locks.SUPERSEDED).take_over(other.token_id)
            elif own is not None and state == QUEUED and since(other) < since(own):
                name = self.record_of(other.task_id, key_locks.sent_of(other))
                self.record(name, key_locks.SUPERSEDED, other.ttl).acquire(blocking=False)
                self._end_reservation(other.name, other.token_id, options.using)

    def superseded(self, *, begins: bool = False) -> Entry | None:
        """Return the result of a task whose work a newer message does, by the record of that.

        The record goes when the message has come: when it is superseded, or ``begins``.
        """
        header = self.header
        if self.options.on_queue_conflict != "supersede" or header.lock not in self.reservations:
            return None
        name, newer, proven = self.record_of(self.task_id, header.sent), None, False
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


all_runs: ContextVar[tuple[Run, ...]] = ContextVar("django_redis_lock_runs", default=())

runs = all_runs.get  # returns those that this thread or greenlet is in, the innermost last


def current_lock(task: Any = None) -> TaskLock | None:
    """Return the lock of the innermost guarded run, or of the innermost run of a task."""
    for run in reversed(runs()):
        if run.lock is not None and (task is None or run.task.name == task.name):
            return run.lock
    return None


@receiver(lock_lost, weak=False)
@never_blocks  # no task's lock is held by asyncio code
def _on_lock_lost(lock: Any = None, **kwargs: Any) -> None:
    if isinstance(lock, TaskLock):
        task, task_id = lock.task, lock.origin["task_id"]
        logger.error("Task %s[%s] continued without its lock %r", task.name, task_id, lock.name)
        task_lock_lost.send_robust(sender=task, task_id=task_id, key=lock.name, holder=None)


@task_received.connect(weak=False)
def _on_received(request: Any, **kwargs: Any) -> None:
    """Have the request know by which serializer its message came."""
    if hasattr(request.task, GUARD):
        known, content_type = request.request_dict, request.message.content_type
        known["properties"] = {**known["properties"], "content_type": content_type}
