"""``@single_instance_task``, in either order with Celery's own decorators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, get_overloads, overload

from celery import Task

from django_redis_lock.celery.guard import Guard
from django_redis_lock.celery.keys import Key, UniqueOn
from django_redis_lock.celery.marks import mark, mark_shared
from django_redis_lock.celery.options import RUN, SKIP, OnConflict, OnUnavailable, Scope
from django_redis_lock.celery.private import PromiseProxy, Proxy
from django_redis_lock.celery.running import current_lock
from django_redis_lock.exceptions import LockNotOwned
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.support.arguments import DEFAULT, Default

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class SingleInstanceTask:
    """The decorator; called with a task or function, or with options."""

    @overload
    def __call__(self, timeout: Decorated) -> Decorated: ...
    @overload
    def __call__(
        self,
        timeout: float | Default | None = DEFAULT,
        *,
        scope: Scope = RUN,
        key: Key = None,
        unique_on: UniqueOn = None,
        on_conflict: OnConflict = SKIP,
        blocking_timeout: float | None = None,
        countdown: float = 1.0,
        max_retries: int | None = None,
        at_least_for: float = 0.0,
        queue_timeout: float = 3600.0,
        on_unavailable: OnUnavailable = "raise",
        using: str = "default",
        metadata: Mapping[str, str] | None = None,
        concurrency: int = 1,
    ) -> Callable[[Decorated], Decorated]: ...
    def __call__(self, timeout: Any = DEFAULT, **given: Any) -> Any:
        """Let no more than one instance of a task run at a time.

        Goes above or below ``@shared_task`` or ``@app.task``, with or without parentheses. A call
        that finds the task running returns a ``TaskSkipped`` at once, which names the one that
        runs.

        ``timeout``: the lease in seconds; without it the lease is renewed for as long as the task
        runs. ``scope``: ``run``: one runs at a time; ``queue``: besides, one waits at a time;
        ``queue_and_run``: there is one from its sending to its end, retries included.

        ``key`` or ``unique_on`` say what is one task: by default its name alone, whatever its
        arguments. ``key`` is a template such as ``"import:{shop_id}"``, or a callable that is given
        the task's arguments; ``unique_on`` lists arguments, or is ``"all"``.

        ``on_conflict``: what becomes of a duplicate: ``skip``, ``ignore``, ``raise``
        (``TaskAlreadyRunning``), ``wait`` (up to ``blocking_timeout`` seconds), ``retry`` (it comes
        again after ``countdown`` seconds, up to ``max_retries`` times), ``supersede`` (with scope
        ``queue``: the newest arguments win) or a callable that is given a ``Conflict``; or a dict
        with one for the moment when it is sent (``queue``) and one for when it would run (``run``).

        ``at_least_for``: seconds for which the lock is kept after the start of a short run.
        ``queue_timeout``: seconds for which a message that is due may wait in the queue before its
        lock comes free. ``on_unavailable``: whether to ``raise`` or ``run`` where the server can't
        be asked. ``using``: an alias of LOCKS. ``metadata``: shown with the holder.
        ``concurrency``: how many may run at once.

        Raises ``TypeError`` or ``ValueError`` where the task is defined for options that make no
        sense, and ``LockUnavailable`` from the task when the server can't be asked.
        """
        if callable(timeout) or _is_django_task(timeout):
            return _apply(Guard(given), timeout)
        if not isinstance(timeout, Default):
            given = {"timeout": timeout, **given}
        guard = Guard(given)
        return lambda target: _apply(guard, target)

    def current(self) -> Lock:
        """Return the lock that the running task holds, with its ``fence`` and ``ensure_held()``.

        Raises ``LockNotOwned`` outside of a guarded task, and in one that runs without its lock
        because the server could not be asked.
        """
        lock = current_lock()
        if lock is None:
            raise LockNotOwned("No single_instance_task runs here with its lock held.")
        return lock

    @property
    def __signature__(self) -> inspect.Signature:
        """What it takes, with the defaults; which of them a task was told can't be seen there."""
        signature = inspect.signature(get_overloads(SingleInstanceTask.__call__)[-1])
        return signature.replace(parameters=list(signature.parameters.values())[1:])


single_instance_task = SingleInstanceTask()


def _apply(guard: Guard, target: Any) -> Any:
    if _is_django_task(target):
        raise TypeError(
            f"{target!r} is a task of django.tasks, which no Celery worker runs, so "
            f"single_instance_task can't guard it. Take the lock inside of it: put "
            f"@django_redis_lock.lock(…) below @task; or make it a Celery task with @shared_task."
        )
    if type(target) is PromiseProxy:  # of @app.task; runs at once if evaluated
        target.__then__(lambda: guard.install(type(target._get_current_object())))
    elif type(target) is Proxy:
        mark_shared(guard, target)
    elif isinstance(target, Task):
        guard.install(type(target))
    elif isinstance(target, type) and issubclass(target, Task):
        guard.install(cast("type[Task]", target))
    elif callable(target) and not isinstance(target, type):
        return mark(guard, target)
    else:
        raise TypeError(
            f"single_instance_task decorates a function or a Celery task, not {target!r}."
        )
    return target


def _is_django_task(target: Any) -> bool:
    """Whether something is what ``@django.tasks.task``, or its backport, makes of a function."""
    return any(
        kind.__name__ == "Task" and kind.__module__.startswith(("django.tasks", "django_tasks"))
        for kind in type(target).__mro__
    )
