"""One call of a guarded task: what is known of it, and what its message allows to do."""

from __future__ import annotations

import contextlib
from typing import Any

from celery.exceptions import Reject

from django_redis_lock.celery.conflicts import Conflict
from django_redis_lock.celery.message import Slip, headers_of
from django_redis_lock.celery.options import SUPERSEDE, Options
from django_redis_lock.celery.places import Places, TaskLock
from django_redis_lock.exceptions import LockError
from django_redis_lock.records import Holder


class Delivery:
    """A call by a worker or an eager one, with a ``request``; or a direct call, without."""

    def __init__(
        self,
        options: Options,
        task: Any,
        key: str,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        request: Any,
    ) -> None:
        self.options = options
        self.task = task
        self.key = key
        self.request = request
        self.task_id: str | None = request.id if request else None
        self.slip = Slip.of(headers_of(request), self.task_id) if request else None
        self.retries = int((request.retries if request else 0) or 0)
        self.places = Places(options, key, task, self.task_id)
        self.nested = False
        """Whether it is made inside of a run that holds its lock."""
        self._arguments = arguments
        self._sent_back = False

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

    # The message.

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

    def give_up_place(self) -> None:
        """Give up the place in the queue of a message that won't run and won't come again."""
        slip = self.slip
        if slip is None or not slip.ticket or self._sent_back:
            return
        with contextlib.suppress(LockError):
            waiting = self.lock(slip.lock)
            if waiting.take_over(slip.ticket):
                waiting.release()

    def superseded(self, now: int) -> Any:
        """Return the result of a task whose place in the queue was taken, ``None`` if it was not.

        ``now`` is the server's clock in microseconds. The newer task may have run already, so a
        ticket that is good no more before its time is enough to tell, unless it was used by an
        earlier delivery or attempt of this very task.
        """
        slip = self.slip
        if self.options.on_queue_conflict != SUPERSEDE or slip is None:
            return None
        newer = self.places.backend.holder(slip.lock)
        if newer is None or newer.task_id == self.task_id:
            if self.retries or self.redelivered or now >= slip.good_until:
                return None
            newer = None
        return self.conflict(newer).skip("superseded by newer arguments")
