"""The guard around the run of a task, from its start or conflict to the release."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from contextvars import ContextVar
from time import monotonic
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from django_redis_lock.celery.conflicts import task_lock_lost
from django_redis_lock.celery.delivery import Delivery
from django_redis_lock.celery.entering import Entry, enter
from django_redis_lock.celery.options import Arguments, Options
from django_redis_lock.celery.places import QUEUED, RESTING, TaskLock
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.signals import lock_lost

logger = logging.getLogger("django_redis_lock.celery")

_runs: ContextVar[tuple[Run, ...]] = ContextVar("django_redis_lock_runs", default=())
_UNGUARDED = object()


runs = _runs.get
"""Returns the guarded runs that this thread or greenlet is in, the innermost last."""


def current_lock(task: Any = None) -> TaskLock | None:
    """Return the lock of the innermost guarded run, or of the innermost run of a task."""
    for run in reversed(runs()):
        if run.lock is not None and (task is None or run.task.name == task.name):
            return run.lock
    return None


class Run(Delivery):
    """One call of a guarded task, by a worker or directly.

    Passes on the exceptions of ``make_key``; the message ends then and gives up its place.
    """

    def __init__(
        self, options: Options, make_key: Callable[..., str], task: Any, arguments: Arguments
    ) -> None:
        super().__init__(options, task, arguments, _request_of(task))
        self.lock: TaskLock | None = None
        self.fence = 0
        self.followed = False
        """Whether it has sent a message in its own place: a retry or replacement."""
        self.kept_for: float | None = None
        """Seconds for which that message keeps the lock, if it takes the lock over."""
        try:
            self.key = make_key(task, *arguments)
        except BaseException:
            self._try_to_give_up_place()
            raise
        self.nested = any(run.lock is not None and run.has_key(self.key, options) for run in runs())

    def has_key(self, key: str, options: Options) -> bool:
        """Whether it has this key, on the alias that these options name."""
        return (self.key, self.options.using) == (key, options.using)

    def carry_out(self, body: Callable[[], Any]) -> Any:
        """Run the body with the lock held, or return the result of the conflict."""
        if self.nested and (self.request is None or self._is_next_eager()):
            return body()
        before = _runs.set((*runs(), self))
        try:
            lock, result = self._enter()
            if result is _UNGUARDED:
                try:
                    return body()
                finally:
                    self._try_to_give_up_place()  # if the server is available again
            if lock is None:
                return result
            self.lock, self.fence = lock, lock.fence
            began = monotonic()
            try:
                return body()
            finally:
                self._leave(lock, monotonic() - began)
        finally:
            _runs.reset(before)

    def _is_next_eager(self) -> bool:
        """Whether it stands for the message that waits in the queue until this run has ended."""
        options, request = self.options, self.request
        waits = options.run_policy in ("retry", "wait")
        return bool(request.is_eager and options.scope == "queue" and waits)

    def _enter(self) -> Entry:
        try:
            lock, result = enter(self)
        except LockUnavailable as error:
            if self.options.on_unavailable == "raise":
                raise
            logger.warning("Task %s[%s] runs unguarded: %s", self.task.name, self.task_id, error)
            return None, _UNGUARDED
        except BaseException:
            self._try_to_give_up_place()
            raise
        if lock is None:
            self._try_to_give_up_place()
        return lock, result

    def _try_to_give_up_place(self) -> None:
        with contextlib.suppress(LockError):
            self.give_up_place()

    def _leave(self, lock: TaskLock, seconds: float) -> None:
        """Release the lock, or keep it for the task's next message or its rest.

        The task's work is done, so neither a failure here nor a soft time limit fails the task.
        """
        rest = self.options.at_least_for - seconds
        try:
            if self.kept_for is not None:
                lock.detach(self.kept_for, {"state": QUEUED})
            elif rest >= 0.001 and not self.followed:
                lock.detach(rest, {"state": RESTING})
            else:
                lock.release()
        except LockError as error:
            text = "Task %s[%s] ran, but its lock was not released: %s"
            logger.error(text, self.task.name, self.task_id, error)  # noqa: TRY400 - says it all
        except SoftTimeLimitExceeded:
            text = "Task %s[%s] had ended when its soft time limit struck"
            logger.warning(text, self.task.name, self.task_id)


def _request_of(task: Any) -> Any:
    """Return the request that a worker, or an eager call, runs the task for.

    ``None`` for direct calls, including those that the task makes of itself.
    """
    request = task.request
    if request.called_directly:
        return None
    entered = any(run.task_id == request.id and run.task.name == task.name for run in runs())
    return None if entered else request


def _on_lock_lost(lock: Any = None, **kwargs: Any) -> None:
    if not isinstance(lock, TaskLock):
        return
    logger.error("Task %s[%s] runs on without its lock %r", lock.task.name, lock.task_id, lock.name)
    task_lock_lost.send_robust(sender=lock.task, task_id=lock.task_id, key=lock.name, holder=None)


lock_lost.connect(_on_lock_lost, weak=False)
