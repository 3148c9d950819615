"""What a worker's parent process does about messages that it drops.

A message of scope ``queue`` or ``queue_and_run`` holds a lock from its sending on, and its run
takes that over. Where it never comes to a run the parent knows of it, and frees the lock that the
header names: by its ticket, so nothing happens where a run has used that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.exceptions import Ignore, Retry, Terminated
from celery.signals import task_rejected, task_revoked, task_unknown, worker_init
from celery.utils.imports import symbol_by_name

from django_redis_lock.celery import freeing
from django_redis_lock.celery.guard import GUARD
from django_redis_lock.celery.message import Slip, headers_of
from django_redis_lock.celery.private import ExceptionWithTraceback
from django_redis_lock.handler import locks

if TYPE_CHECKING:
    from celery.worker.request import Request as _Request
else:
    _Request = object  # Celery's, or one of its descendants; a client needs none of them

logger = logging.getLogger("django_redis_lock.celery")


def free_place(headers: Mapping[str, Any] | None, task_id: Any) -> None:
    """Free the lock that was taken when a message was sent."""
    slip = Slip.of(headers, task_id)
    if slip is None or not slip.ticket:
        return
    if slip.using in locks.settings:
        freeing.free(slip.using, slip.lock, slip.ticket)
    else:
        words = "Message %s is dropped, and its lock %r is of an alias that is unknown here: %r"
        logger.info(words, task_id, slip.lock, slip.using)


class DropsSeen(bootsteps.Step):  # type: ignore[misc] # it has no types
    """Lets the consumer of a worker tell of the messages that it drops.

    Celery has no signal for a message that can't be decoded, nor for one whose child died before
    the call.
    """

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        acknowledge = parent.on_decode_error

        def on_decode_error(message: Any, exc: Exception) -> Any:
            _on_dropped(message=message)
            return acknowledge(message, exc)

        parent.on_decode_error = on_decode_error
        for task in parent.app.tasks.values():
            if hasattr(task, GUARD):
                task.Request = _request_class(symbol_by_name(task.Request))


class Droppable(_Request):  # type: ignore[misc] # it has no types
    """What the parent knows of one message of a guarded task."""

    _comes_again = False

    def reject(self, requeue: bool = False) -> None:
        settled: bool = self.acknowledged
        super().reject(requeue)
        if not settled and not requeue:
            self._free_place()
        self._comes_again |= requeue

    def cancel(self, *args: Any, **kwargs: Any) -> None:
        """End the run; the message is delivered again, for its connection is lost."""
        self._comes_again = True
        super().cancel(*args, **kwargs)

    def send_event(self, type: str, **fields: Any) -> None:
        if type == "task-retried":
            self._comes_again = True
        super().send_event(type, **fields)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().on_failure(exc_info, *args, **kwargs)
        finally:
            # What isn't acknowledged by now is delivered again.
            if self.acknowledged and not self._comes_again and _ends(exc_info.exception):
                self._free_place()

    def _free_place(self) -> None:
        free_place(self.request_dict, self.id)


def _request_class(base: Any) -> Any:
    """Return a class of requests, derived from a task's, that free the places they drop."""
    if issubclass(base, Droppable):
        return base
    return type(base.__name__, (Droppable, base), {"__module__": base.__module__})


def _ends(error: Any) -> bool:
    """Whether a failure is the end; of a task that was terminated the signal tells."""
    if isinstance(error, ExceptionWithTraceback):
        error = error.exc
    return not isinstance(error, Retry | Ignore | Terminated)


def _on_worker_init(sender: Any = None, **kwargs: Any) -> None:
    sender.app.steps["consumer"].add(DropsSeen)


def _on_revoked(sender: Any = None, request: Any = None, **kwargs: Any) -> None:
    if request is not None:
        free_place(headers_of(request), request.id)


def _on_dropped(message: Any = None, **kwargs: Any) -> None:
    headers = message.headers if isinstance(message.headers, Mapping) else {}
    free_place(headers, headers.get("id") or message.properties.get("correlation_id"))


worker_init.connect(_on_worker_init, weak=False)
task_revoked.connect(_on_revoked, weak=False)
task_unknown.connect(_on_dropped, weak=False)
task_rejected.connect(_on_dropped, weak=False)
