"""One call of a guarded task: what is known of it, and what its message allows to do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

from celery.exceptions import Reject

from django_redis_lock.celery.conflicts import Conflict
from django_redis_lock.celery.message import Slip, headers_of
from django_redis_lock.celery.options import SUPERSEDE, Options
from django_redis_lock.celery.places import Places, TaskLock
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.protocol.records import Holder

GIVING_UP = 10.0
"""Seconds for which a place stays that is being given up by a process that dies over it."""


class Delivery:
    """A call by a worker or an eager one, with a ``request``; or a direct call, without."""

    def __init__(
        self,
        options: Options,
        task: Any,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        request: Any,
    ) -> None:
        self.options = options
        self.task = task
        self.key = ""
        self.request = request
        self.task_id: str | None = request.id if request else None
        self.slip = Slip.of(headers_of(request), self.task_id) if request else None
        self.retries = int((request.retries if request else 0) or 0)
        self.nested = False
        """Whether it is made inside of a run that holds its lock."""
        self.may_have_succeeded = self.redelivered
        """Whether another delivery may have carried the task out already."""
        self._arguments = arguments
        self._sent_back = False

    def find_key(self, make_key: Callable[..., str]) -> str:
        """Set the key of the call, and return it.

        Raises what ``make_key`` raises; the message ends with that and gives up its place.
        """
        try:
            self.key = make_key(self.task, *self._arguments)
        except BaseException:
            with contextlib.suppress(LockError):
                self.give_up_place()
            raise
        return self.key

    @cached_property
    def places(self) -> Places:
        """The locks with one of which the task may run."""
        return Places(self.options, self.key, self.task, self.task_id)

    def lock(self, name: str, timeout: float | None = None, state: str = "") -> TaskLock:
        """Return a handle, by default with the lease of a run."""
        lease = self.options.timeout if timeout is None else timeout
        return self.places.lock(name, lease, **({"state": state} if state else self.marks()))

    def marks(self) -> dict[str, str]:
        """Return what the holder's metadata says of this attempt."""
        return {"retries": str(self.retries)} if self.retries else {}

    def conflict(self, holder: Holder | None) -> Conflict:
        """Return the conflict with another holder."""
        return Conflict("run", self.task, self.task_id, self.key, holder, *self._arguments)

    def among(self, holders: list[Holder]) -> Holder | None:
        """Return the holder that is this very task, in another delivery."""
        if self.task_id is None:
            return None
        return next((item for item in holders if item.task_id == self.task_id), None)

    # The message, and the lock that was taken when it was sent.

    @property
    def adoptable(self) -> bool:
        """Whether the lock that was taken at sending is one with which the task may run.

        Else it is a place to be given up: that of scope ``queue``, or one that the task's options
        of then named and those of now do not.
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
        """The fence of the run that sent this message in its own place, 0 for none."""
        return self.slip.follows if self.slip else 0

    @property
    def redelivered(self) -> bool:
        """Whether the broker says that it delivered the message before."""
        delivery_info = (self.request and self.request.delivery_info) or {}
        return bool(delivery_info.get("redelivered"))

    def slip_to_send(self) -> Slip:
        """Return the slip to go along when the message is sent again."""
        assert self.task_id is not None
        return self.slip or Slip(self.task_id)

    def send_back(self, countdown: float, slip: Slip) -> None:
        """Send this message again; the one in hand is acknowledged once that is done."""
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
        """Free what was taken when the message was sent and is not to run with.

        Returns whether the message still had it. Not for one that comes again. Raises
        ``LockUnavailable``, though not of an alias that the task has no more; a place there ends
        by itself.
        """
        slip = self.slip
        if slip is None or not slip.ticket or self._sent_back or slip.using not in locks.settings:
            return False
        waiting = Places(self.options, "", self.task, self.task_id).lock(
            slip.lock, GIVING_UP, using=slip.using
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

    def superseded(self, now: int) -> Any:
        """Return the result of a task whose place in the queue was taken, ``None`` if it was not.

        It has none where its slip names no place, or not that of its key.

        ``now`` is the server's clock in microseconds. The newer task may have run already, so a
        ticket that is good no more before its time is enough to tell, unless it was used by an
        earlier delivery or attempt of this very task.
        """
        slip = self.slip
        if self.options.on_queue_conflict != SUPERSEDE or slip is None:
            return None
        if slip.lock != self.places.waiting:
            return None
        newer = self.places.backend.holder(slip.lock)
        if newer is None or newer.task_id == self.task_id:
            if self.retries or self.redelivered or now >= slip.good_until:
                return None
            newer = None
        return self.conflict(newer).skip("superseded by newer arguments")
