"""One call of a guarded task: what is known of it, and what its message allows to do."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

from celery import states
from celery.exceptions import Reject

from django_redis_lock.celery.conflicts import Conflict
from django_redis_lock.celery.message import (
    Slip,
    clock_at,
    headers_of,
    is_made_up,
    sent_mark,
    sent_of,
    stored_state,
)
from django_redis_lock.celery.options import Arguments, Options
from django_redis_lock.celery.places import QUEUED, SINCE, Places, TaskLock, queued_since
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.protocol.records import Holder

GIVE_UP_LEASE = 10.0
"""Seconds of lease while a place is given up, in case the process dies in between."""


class Delivery:
    """A call by a worker or an eager one, with a ``request``; or a direct call, without."""

    def __init__(self, options: Options, task: Any, arguments: Arguments, request: Any) -> None:
        self.options = options
        self.task = task
        self.key = ""
        self.request = request
        self.task_id: str | None = request.id if request else None
        self.slip = Slip.of(headers_of(request), self.task_id) if request else None
        self.retries = int((request.retries if request else 0) or 0)
        self.nested = False
        """Whether it is made inside a run that holds its lock."""
        self.may_have_succeeded = self.redelivered
        """Whether another delivery may have run the task already."""
        self._arguments = arguments
        self._sent_back = False

    @cached_property
    def places(self) -> Places:
        return Places(self.options, self.key, self.task, self.task_id, self.can_go_back)

    @property
    def can_go_back(self) -> bool:
        """Whether a worker carries it out, so that it can be sent again."""
        return self.request is not None and not self.request.is_eager

    def lock_of_run(self, name: str) -> TaskLock:
        """Return a handle with the lease of a run."""
        return self.places.lock(name, self.options.timeout, **self.marks())

    def place(self, name: str, lease: float) -> TaskLock:
        """Return a handle for the place of its message, taken anew with a lease in seconds."""
        marks = sent_mark(self.sent)
        if self.options.on_queue_conflict == "supersede":  # it loses no time
            before = self.places.backend.holder(name)
            marks |= {} if before is None else {SINCE: f"{queued_since(before):.6f}"}
        return self.places.lock(name, lease, state=QUEUED, **marks)

    def marks(self) -> dict[str, str]:
        """Return this attempt's part of the holder's metadata."""
        marks = {"retries": str(self.retries)} if self.retries else {}
        return {**marks, **sent_mark(self.sent)}

    def conflict(self, holder: Holder | None, policy: str = "") -> Conflict:
        """Return a conflict, by default about a run."""
        return Conflict(
            "run",
            self.task,
            self.task_id,
            self.key,
            holder,
            *self._arguments,
            policy=policy or self.options.run_policy,
        )

    def among(self, holders: list[Holder]) -> Holder | None:
        """Return the holder that has this task's id."""
        if self.task_id is None:
            return None
        return next((item for item in holders if item.task_id == self.task_id), None)

    def is_same(self, holder: Holder) -> bool:
        """Whether a holder is another delivery or attempt of this task.

        Otherwise it may have the same id, if that was chosen by who sent both.
        """
        if self.task_id is None or holder.task_id != self.task_id:
            return False
        sent = sent_of(holder)
        if self.sent and sent:
            return self.sent == sent
        if self.redelivered or self.follows or self.retries:
            return True
        return not self.sent and not sent and is_made_up(self.task_id)

    # The message, and the lock that was taken when it was sent.

    @property
    def adoptable(self) -> bool:
        """Whether the task may run with the lock that was taken when it was sent.

        Otherwise that lock is a place to give up: the one of scope ``queue``, or one that the
        sender's options name and the worker's options do not.
        """
        slip = self.slip
        return (
            slip is not None
            and bool(slip.ticket)
            and slip.using == self.options.using
            and slip.lock in self.places.names
        )

    @property
    def follows(self) -> int:
        """The fence of the run that sent this message in its own place; 0 for none."""
        return self.slip.follows if self.slip else 0

    @property
    def sent(self) -> float:
        """When the task was sent under an id of the caller's own; 0 if that is not known."""
        return self.slip.sent if self.slip else 0.0

    @property
    def redelivered(self) -> bool:
        """Whether another delivery may have begun, also if this one was sent again since."""
        delivery_info = (self.request and self.request.delivery_info) or {}
        before = self.slip is not None and self.slip.redelivered
        return before or bool(delivery_info.get("redelivered"))

    def left_to_wait(self, holder: Holder) -> float | None:
        """Return the seconds that are left of ``blocking_timeout``; ``None`` for no limit."""
        if self.slip is None or not self.slip.wait_until or holder.fence is None:
            return self.options.longest_wait
        return max(0.0, (self.slip.wait_until - clock_at(holder)) / 1_000_000)

    def slip_to_send(self) -> Slip:
        assert self.task_id is not None
        return replace(self.slip or Slip(self.task_id), redelivered=self.redelivered)

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
            if self.task.acks_late:
                raise Reject(error, requeue=True) from error
            raise
        self._sent_back = True

    def give_up_place(self) -> bool:
        """Release the lock that was taken when the message was sent, if it is still held.

        Returns whether it was. Does nothing if the message was sent back. Raises
        ``LockUnavailable``, unless the lock is on another alias than the task's: its lease ends.
        """
        slip = self.slip
        if slip is None or not slip.ticket or self._sent_back or slip.using not in locks.settings:
            return False
        waiting = Places(self.options, "", self.task, self.task_id).lock(
            slip.lock, GIVE_UP_LEASE, using=slip.using
        )
        try:
            given_up = waiting.take_over(slip.ticket)
            if given_up:
                waiting.release()
        except LockUnavailable:
            if slip.using == self.options.using:
                raise
            return False
        return given_up

    def overtake(self) -> None:
        """Give up the place of an older message, whose arguments must not come after these.

        Raises ``LockUnavailable``.
        """
        slip, places = self.slip, self.places
        if self.options.on_queue_conflict != "supersede" or slip is None:
            return
        found = places.in_queue()
        own = next((one for one in found if one.token_id == slip.ticket), None)
        for other in found:
            is_message = other.metadata.get("state") == QUEUED
            if own is not None and is_message and queued_since(other) < queued_since(own):
                older = places.lock(other.name, GIVE_UP_LEASE)
                if older.take_over(other.token_id):
                    older.release()

    def superseded(self, now: float = math.inf) -> Any:
        """Return the result of a task whose place was taken by newer arguments, else ``None``.

        ``now`` is the server's clock in microseconds; without it only a newer task that still has
        the place counts. The newer task may have run already, so a ticket that became invalid
        before its time is proof enough, unless an earlier delivery or attempt of the same task used
        it.
        """
        slip = self.slip
        if self.options.on_queue_conflict != "supersede" or slip is None:
            return None
        if slip.lock not in {self.places.waiting, self.places.behind}:
            return None
        newer = self.places.backend.holder(slip.lock)
        if newer is None or self.is_same(newer):
            if self.retries or self.redelivered or now >= slip.good_until:
                return None
            newer = None
            stored = stored_state(self.task, self.task_id, self.sent) if self.sent else None
            if stored in states.READY_STATES:
                self.request.ignore_result = True  # a newer task with the id has stored its own
        elif newer.task_id == self.task_id:
            self.request.ignore_result = True  # the id is that of the newer one
        return self.conflict(newer, "supersede").skip("superseded by newer arguments")
