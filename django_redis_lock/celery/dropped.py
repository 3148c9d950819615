"""Release the locks of messages that a worker drops, in the worker's parent process.

A message of scope ``queue`` or ``queue_and_run`` holds a lock from its sending on, and its run
takes that over. If the message is dropped before, the parent knows, and releases the lock that the
header names. It does so by the ticket, so nothing happens if a run has used that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.exceptions import Ignore, Retry, Terminated
from celery.signals import task_rejected, task_revoked, task_unknown, worker_init
from celery.utils.imports import symbol_by_name

from django_redis_lock.celery.freeing import free
from django_redis_lock.celery.guard import GUARD
from django_redis_lock.celery.message import Slip, headers_of
from django_redis_lock.celery.private import cause_of, on_undecodable
from django_redis_lock.handler import locks

if TYPE_CHECKING:
    from celery.worker.request import Request as _Request
else:
    _Request = object  # the task's own class of requests comes after; clients need not import it

logger = logging.getLogger("django_redis_lock.celery")


def free_place(headers: Mapping[str, Any] | None, task_id: Any) -> None:
    slip = Slip.of(headers, task_id)
    if slip is None or not slip.ticket:
        return
    if slip.using in locks.settings:
        free(slip.using, slip.lock, slip.ticket)
    else:
        text = "Message %s was dropped; its lock %r is of alias %r, which LOCKS does not have"
        logger.info(text, task_id, slip.lock, slip.using)


class DropsSeen(bootsteps.Step):
    """Watches a worker's consumer for messages that it drops.

    Celery has no signal for a message that can't be decoded, nor for one whose child died before
    the call.
    """

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        on_undecodable(parent, lambda message: _on_dropped(message=message))
        for task in parent.app.tasks.values():
            if hasattr(task, GUARD):
                task.Request = _request_class(symbol_by_name(task.Request))


class Droppable(_Request):
    """A request for a guarded task, in the worker's parent."""

    _comes_again = False

    def reject(self, requeue: bool = False) -> None:
        settled: bool = self.acknowledged
        super().reject(requeue)
        if not settled and not requeue:
            self._free_place()
        self._comes_again |= requeue

    def cancel(self, *args: Any, **kwargs: Any) -> None:
        """End the run because its connection is lost; the message is delivered again."""
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
            # A message that is not acknowledged by now is delivered again.
            if self.acknowledged and not self._comes_again and _ends(exc_info.exception):
                self._free_place()

    def _free_place(self) -> None:
        free_place(self.request_dict, self.id)


def _request_class(base: Any) -> Any:
    if issubclass(base, Droppable):
        return base
    return type(base.__name__, (Droppable, base), {"__module__": base.__module__})


def _ends(error: Any) -> bool:
    """Whether a failure is the task's end; a termination has a signal of its own."""
    return not isinstance(cause_of(error), Retry | Ignore | Terminated)


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
