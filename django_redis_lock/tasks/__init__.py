"""Tasks of which at most one instance runs at a time: those of ``django.tasks``.

Workers of Django 6.0, and of the package ``django-tasks``, run a task by calling its function, so
the guard is put around that. ``django_redis_lock.celery`` has the same for Celery.
"""

from __future__ import annotations

import inspect
import math
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from functools import partial, wraps
from time import monotonic
from types import FunctionType
from typing import Any, Literal, TypeVar, get_args, overload

from asgiref.sync import sync_to_async

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.handler import USES, locks
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.protocol.lease import Request
from django_redis_lock.support import arguments
from django_redis_lock.support.arguments import DEFAULT, EXCLUSIVE, Default, Sharing
from django_redis_lock.support.functions import finished, is_async, is_generator
from django_redis_lock.tasks import conflicts
from django_redis_lock.tasks.conflicts import TaskAlreadyRunning, TaskSkipped, task_skipped
from django_redis_lock.tasks.keys import Key, KeyMaker, check_key, refuse_by_position

__all__ = ["TaskAlreadyRunning", "TaskSkipped", "single_instance_task", "task_skipped"]

Policy = Literal["skip", "raise", "wait"]
Decorated = TypeVar("Decorated")
GUARDED = "single_instance_task"  # the attribute of a guarded function
DB_WORKER = "django_tasks_db.management.commands.db_worker"  # whose worker can be stopped


@overload
def single_instance_task(target: Decorated, /) -> Decorated: ...
@overload
def single_instance_task(
    *,
    key: Key = None,
    timeout: float | Default | None = DEFAULT,
    on_conflict: Policy = "skip",
    blocking_timeout: float | Default | None = DEFAULT,
    concurrency: int = 1,
    using: str = "default",
) -> Callable[[Decorated], Decorated]: ...
def single_instance_task(*target: Any, **options: Any) -> Any:
    """Let at most one instance of a task of ``django.tasks`` run at a time.

    Use it above or below ``@task``, with or without parentheses, for functions and coroutine
    functions. If the task is already running, a run ends at once, with a ``TaskSkipped`` as its
    result; with ``on_conflict`` it can ``raise`` (``TaskAlreadyRunning``) or ``wait`` (in the
    worker, for ``blocking_timeout`` seconds, and then as ``raise``).

    ``key``: which runs exclude each other, a template such as ``"import:{shop_id}"`` or a callable
    that takes the task's arguments; by default all. ``timeout``: the lease in seconds, by default
    renewed. ``concurrency``: how many may run at once. ``using``: an alias of LOCKS.

    Raises ``TypeError`` or ``ValueError`` for invalid options where the task is defined. The task
    raises ``LockUnavailable``, and ``LockLost`` at its end if the lock was lost while it ran.
    """
    refuse_by_position(target)
    guard = Guard(**options)
    return guard(*target) if target else guard


@dataclass(kw_only=True, eq=False)
class Guard:
    """The decorator with its options."""

    key: Key = None
    timeout: float | Default | None = DEFAULT
    on_conflict: Policy = "skip"
    blocking_timeout: float | Default | None = DEFAULT
    concurrency: int = 1
    using: str = "default"

    def __post_init__(self) -> None:
        check_key(self.key, None)
        arguments.check_types(self.using)
        arguments.check_choice("on_conflict", self.on_conflict, get_args(Policy))
        waits = self.on_conflict == "wait"
        if not waits and not isinstance(self.blocking_timeout, Default):
            raise ValueError("blocking_timeout requires on_conflict='wait': omit it.")
        most = arguments.check_number("concurrency", self.concurrency, 0, arguments.MOST_AT_ONCE)
        self.lock = partial(
            _RunLock,
            partial(locks.__getitem__, self.using),
            timeout=self.timeout,
            blocking=waits,
            blocking_timeout=self.blocking_timeout,
            sharing=EXCLUSIVE if most == 1 else Sharing(shared=True, limit=most),
        )
        self.lock("task")  # checks the other options

    def __call__(self, target: Any) -> Any:
        """Guard a task or a function. Raises ``TypeError`` or ``ValueError`` if it can't be."""
        if is_django_task(target):
            return replace(target, func=self(target.func))
        if not isinstance(target, FunctionType):
            raise TypeError(
                f"single_instance_task must decorate a function or task of django.tasks, not "
                f"{target!r}. For Celery tasks, import it from django_redis_lock.celery."
            )
        if hasattr(target, GUARDED):
            raise TypeError(f"{target!r} is already a single_instance_task.")
        if is_generator(target):
            raise TypeError(f"{target!r} is a generator function, whose body runs after the call.")
        keys = KeyMaker(self.key, None, inspect.signature(target))

        @wraps(target)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            lock = self._handle(keys, target, args, kwargs)
            with ExitStack() as stack:
                if not lock.acquire():
                    return self._refuse(lock, target, args, kwargs)
                stack.push(lock)
                return finished(target, target(*args, **kwargs))

        @wraps(target)
        async def aguarded(*args: Any, **kwargs: Any) -> Any:
            lock = self._handle(keys, target, args, kwargs)
            async with AsyncExitStack() as stack:
                if not await lock.aacquire():
                    return await sync_to_async(self._refuse)(lock, target, args, kwargs)
                stack.push_async_exit(lock)
                return finished(target, await target(*args, **kwargs))

        made = aguarded if is_async(target) else guarded
        setattr(made, GUARDED, self)
        shares = self.lock.keywords["sharing"] != EXCLUSIVE
        USES.add((self.using, f"Task {conflicts.name_of(target)}", shares))
        return made

    def _handle(self, keys: KeyMaker, function: Any, args: Any, kwargs: Any) -> Lock:
        context = args[0] if args else None  # of a task that takes it
        task_id = getattr(getattr(context, "task_result", None), "id", None)
        name = conflicts.name_of(function)
        return self.lock(keys(name, args, kwargs), task_id=task_id, task_name=name)

    def _refuse(self, lock: Lock, function: Any, args: Any, kwargs: Any) -> TaskSkipped:
        """Return the result of a run that finds the lock held. Raises ``TaskAlreadyRunning``."""
        task = getattr(sys.modules.get(function.__module__), function.__qualname__, None)
        if not is_django_task(task):  # it has another name in its module, or none
            task = function
        why, backend, limit = "", lock.backend, lock.sharing.limit
        holder = backend.holder(lock.name)
        if limit is not None or holder is None:
            why = backend.run(backend.operations.why_refused(lock.name, limit))
        about = task, lock.origin["task_id"], lock.name, holder, args, kwargs
        conflict = conflicts.Conflict("run", *about, policy=self.on_conflict, why=why)
        if self.on_conflict == "skip":
            return conflict.skip()
        raise conflict.error()


def is_django_task(target: Any) -> bool:
    """Whether it is a task of Django's framework, or of the package for Django before 6.0."""
    return any(
        kind.__name__ == "Task" and kind.__module__.startswith(("django.tasks", "django_tasks"))
        for kind in type(target).__mro__
    )


class WorkerStops(Exception):
    """The worker in which a task waits for its lock is to stop."""


class _RunLock(Lock):
    """The lock of a run. A worker of django-tasks-db that is to stop ends the wait for it."""

    def make_request(self, backend: BaseLockBackend) -> Request:
        request = super().make_request(backend)
        request.before_sleep = partial(_check_worker, self.origin["task_name"])
        return request


def _check_worker(path: str) -> float:
    """Raise in a worker that is to stop; see ``before_sleep``."""
    worker: Any = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)  # if it is a method
    if type(worker).__module__ != DB_WORKER:
        return math.inf
    if worker.running:
        return monotonic() + 0.5
    sys.modules[DB_WORKER].task_finished.connect(_put_back)
    raise WorkerStops(path)


def _put_back(task_result: Any, **kwargs: Any) -> None:
    """Leave the task to another worker: nothing but its wait has begun."""
    row: Any = getattr(task_result, "db_result", None)  # of no other backend's task
    if row and row.traceback.endswith(f"{WorkerStops.__name__}: {row.task_path}\n"):
        row.status, row.started_at, row.finished_at = "READY", None, None
        row.exception_class_path = row.traceback = ""
        row.save()
