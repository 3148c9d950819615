"""``@single_instance_task``, above or below Celery's own decorators.

Above them it guards the task's class. Below them there is no task yet, so it marks the function:
an app asks its annotations about each task class that it binds, and there the guard is put in
place. Nothing else of Celery is replaced.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, overload

from celery import Task

from django_redis_lock.celery.guard import GUARD, AnyTask, Guard, is_static
from django_redis_lock.celery.options import Options
from django_redis_lock.celery.private import (
    PromiseProxy,
    Proxy,
    active_apps,
    annotations_of,
    connect_on_app_finalize,
    function_of,
    running_task,
    set_annotations,
    when_made,
)
from django_redis_lock.celery.running import current_lock, runs
from django_redis_lock.exceptions import LockNotOwned
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.support.arguments import DEFAULT, Default

logger = logging.getLogger("django_redis_lock.celery")

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Given = ParamSpec("Given")


class SingleInstanceTask(Generic[Given]):
    """The decorator; called with a task or function, or with options."""

    def __init__(self, options: Callable[Given, Options]) -> None:
        self.__signature__ = inspect.signature(options)

    @overload
    def __call__(self, target: Decorated, /) -> Decorated: ...
    @overload
    def __call__(
        self, *args: Given.args, **kwargs: Given.kwargs
    ) -> Callable[[Decorated], Decorated]: ...
    def __call__(  # type: ignore[misc] # it takes the one positional option by its name
        self, timeout: Any = DEFAULT, **given: Any
    ) -> Any:
        """Let at most one instance of a task run at a time.

        Use it above or below ``@shared_task`` or ``@app.task``, with or without parentheses. By
        default a call that finds the task running returns a ``TaskSkipped`` at once, which names
        the instance that runs.

        ``timeout``: the lease in seconds; by default the lease is renewed while the task runs.
        ``scope``: ``run``: one instance runs at a time; ``queue``: in addition, one waits in the
        queue; ``queue_and_run``: one instance exists from its sending to its end, retries
        included.

        ``key`` or ``unique_on``: which calls exclude each other; by default all calls of the task.
        ``key`` is a template such as ``"import:{shop_id}"``, or a callable that takes the task's
        arguments; ``unique_on`` lists arguments, or is ``"all"``.

        ``on_conflict``: the policy for a duplicate: ``skip``, ``raise``
        (``TaskAlreadyRunning``), ``wait`` (up to ``blocking_timeout`` seconds), ``retry`` (run it
        again after ``countdown`` seconds, up to ``max_retries`` times), ``supersede`` (with scope
        ``queue``: the newest arguments win) or a callable that takes a ``Conflict``; or a dict
        with one for when it is sent (``queue``) and one for when it is about to run (``run``).

        ``at_least_for``: seconds from the start of a run for which the lock is kept at least.
        ``queue_timeout``: seconds that a message may wait in the queue once it is due; then its
        lock is released. ``supersede_for``: seconds after which a waiting message is no longer
        superseded. ``on_unavailable``: ``raise`` or ``run`` if the server can't be reached.
        ``using``: an alias of LOCKS. ``concurrency``: how many instances may run at once.

        Raises ``TypeError`` or ``ValueError`` for invalid options where the task is defined. The
        task raises ``LockUnavailable`` if the server can't be reached.
        """
        if callable(timeout) or _is_django_task(timeout):
            return _apply(Guard(given), timeout)
        if not isinstance(timeout, Default):
            given = {"timeout": timeout, **given}
        guard = Guard(given)
        return lambda target: _apply(guard, target)

    def current(self) -> Lock:
        """Return the lock that the running task holds, with its ``fence`` and ``ensure_held()``.

        Raises ``LockNotOwned`` outside a guarded task, and in one that runs without its lock
        because the server could not be reached.
        """
        lock = current_lock()
        if lock is None:
            raise LockNotOwned("No single_instance_task is running here with its lock held.")
        return lock


single_instance_task = SingleInstanceTask(Options)


def _apply(guard: Guard, target: Any) -> Any:
    if _is_django_task(target):
        raise TypeError(
            f"{target!r} is a task of django.tasks, which Celery's workers don't run, so "
            f"single_instance_task can't guard it. Take the lock inside it: put "
            f"@django_redis_lock.lock(…) below @task; or make it a Celery task with @shared_task."
        )
    if type(target) is PromiseProxy:  # of @app.task
        when_made(target, guard.install)
    elif type(target) is Proxy:
        _guard_shared(guard, target)
    elif isinstance(target, Task):
        guard.install(type(target))
    elif isinstance(target, type) and issubclass(target, Task):
        guard.install(target)
    elif callable(target) and not isinstance(target, type):
        return _mark(guard, target)
    else:
        raise TypeError(
            f"single_instance_task decorates a function or a Celery task, not {target!r}."
        )
    return target


def _is_django_task(target: Any) -> bool:
    return any(
        kind.__name__ == "Task" and kind.__module__.startswith(("django.tasks", "django_tasks"))
        for kind in type(target).__mro__
    )


# Functions and shared tasks, whose guard is put in place in each app.

_shared: dict[Callable[..., Any], Guard] = {}
"""The guards of shared tasks decorated above; each app makes tasks of its own of them."""


def _mark(guard: Guard, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that becomes a guarded task once Celery makes a task of it.

    Raises ``TypeError`` or ``ValueError`` for a function that can't be guarded.
    """
    if hasattr(function, GUARD):
        raise TypeError(f"{function!r} is already a single_instance_task.")
    signature = inspect.signature(function)
    guard.make_keys(function, signature)

    @wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        inside = runs()
        if inside and getattr(inside[-1].task, GUARD, None) is guard:
            return function(*args, **kwargs)
        task = _unguarded_task(guard)
        if task is not None:
            return task(*(args if is_static(type(task)) else args[1:]), **kwargs)
        if not guard.installed:
            raise TypeError(
                f"{function.__qualname__} is decorated with single_instance_task, but is no "
                f"Celery task, so this call would not be guarded. Add @shared_task or "
                f"@app.task; for a plain function use django_redis_lock.lock()."
            )
        return function(*args, **kwargs)

    marked.__signature__ = signature  # type: ignore[attr-defined] # Celery checks calls by it
    setattr(marked, GUARD, guard)
    _watch(*active_apps())
    return marked


def _guard_shared(guard: Guard, proxy: Any) -> None:
    """Guard a shared task in every app: each has, or will have, a task object of its own."""
    function = function_of(proxy)
    if function in _shared or hasattr(function, GUARD):
        raise TypeError(f"{function!r} is already a single_instance_task.")
    _shared[function] = guard
    _watch(*active_apps())
    for app in active_apps():
        if app.finalized:
            _guard_tasks(app)


def is_unguarded(task: Any) -> bool:
    """Whether a task's function is decorated, but its guard could not be put in place."""
    return _guard_for(task.__class__) is not None and not hasattr(task, GUARD)


def _unguarded_task(guard: Guard) -> Any:
    """Return the running task if this call has bypassed its guard, else ``None``.

    The task is guarded from now on, but a worker may have decided how to call it before.
    """
    task = running_task()
    if task is None or getattr(type(task).run, GUARD, None) is not guard:
        return None
    if not hasattr(task, GUARD):
        text = (
            "Task %s was not guarded before this run; decorate it above Celery's decorator (W005)"
        )
        logger.warning(text, task.name)
    else:
        request = task.request
        if request.called_directly or any(run.task_id == request.id for run in runs()):
            return None
    guard.install(type(task))
    return task


def _guard_for(cls: type[AnyTask]) -> Guard | None:
    return getattr(cls.run, GUARD, None) or _shared.get(function_of(cls))


def _guard_class(cls: type[AnyTask]) -> None:
    guard = _guard_for(cls)
    if guard is not None:
        guard.install(cls)


def _guard_tasks(app: Any) -> None:
    for task in list(app.tasks.values()):
        if not hasattr(task, GUARD):
            _guard_class(task.__class__)  # type() would be that of a proxy


class Annotations:
    """The annotations of an app, preceded by one that puts guards in place."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._before = vars(app).get("annotations")

    def __iter__(self) -> Iterator[Any]:
        yield self
        yield from annotations_of(self._app) if self._before is None else self._before

    def annotate(self, task: type[AnyTask]) -> None:
        """Guard a task class that is made of a decorated function."""
        _guard_class(task)


def _watch(*apps: Any) -> None:
    for app in apps:
        if not isinstance(vars(app).get("annotations"), Annotations):
            set_annotations(app, Annotations(app))


def _on_finalize(app: Any) -> None:
    _watch(app)
    app.on_after_finalize.connect(lambda **kwargs: _guard_tasks(app), weak=False)


connect_on_app_finalize(_on_finalize)
