"""Functions that become guarded tasks once Celery makes tasks of them, in whatever app.

An app asks its annotations about each class of tasks that it binds, and there the guard is put in
place. Nothing is changed but that attribute, of each app.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from celery import Task, current_task

from django_redis_lock.celery.guard import GUARD, Guard
from django_redis_lock.celery.private import (
    active_apps,
    annotations_of,
    connect_on_app_finalize,
    function_of,
    set_annotations,
)
from django_redis_lock.celery.running import runs

logger = logging.getLogger("django_redis_lock.celery")

_shared: dict[Callable[..., Any], Guard] = {}
"""The guards of shared tasks that were decorated above; each app has tasks of its own of them."""


def mark(guard: Guard, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function to make a task of; once Celery does, the task is guarded.

    Raises ``TypeError`` or ``ValueError`` for a function that can't be guarded in this way.
    """
    if hasattr(function, GUARD):
        raise TypeError(f"{function!r} is a single_instance_task already.")
    signature = inspect.signature(function)
    guard.check(function, signature)

    @wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        inside = runs()
        if inside and getattr(inside[-1].task, GUARD, None) is guard:
            return function(*args, **kwargs)
        task = _unguarded_task(guard)
        if task is not None:
            return task(*(args if _is_static(task) else args[1:]), **kwargs)
        if not guard.installed:
            raise TypeError(
                f"{function.__qualname__} is decorated with single_instance_task, but is no "
                f"Celery task, so nothing would guard this call. Add @shared_task or "
                f"@app.task; for a plain function there is django_redis_lock.lock()."
            )
        return function(*args, **kwargs)

    marked.__signature__ = signature  # type: ignore[attr-defined] # Celery checks calls by it
    setattr(marked, GUARD, guard)
    watch_apps()
    return marked


def mark_shared(guard: Guard, proxy: Any) -> None:
    """Guard a shared task in every app: each app has, or will have, a task object of its own.

    Raises ``TypeError`` for one that is guarded already.
    """
    function = function_of(proxy)
    if function in _shared or hasattr(function, GUARD):
        raise TypeError(f"{function!r} is a single_instance_task already.")
    _shared[function] = guard
    watch_apps()
    for app in active_apps():
        if app.finalized:
            _guard_tasks(app)


def is_unguarded(task: Any) -> bool:
    """Whether a task is made of a decorated function, and its guard could not be put in place."""
    return _guard_for(task.__class__) is not None and not hasattr(task, GUARD)


def _unguarded_task(guard: Guard) -> Any:
    """Return the task whose run the guard has not come to know of, ``None`` if there is none.

    It is guarded from now on; a worker may have found out before how it is to be called.
    """
    task = current_task._get_current_object() if current_task else None
    if task is None or getattr(type(task).run, GUARD, None) is not guard:
        return None
    if not hasattr(task, GUARD):
        logger.warning(
            "Task %s was not guarded before this run; decorate it above Celery's decorator (W005)",
            task.name,
        )
        guard.install(type(task))
        return task
    request = task.request
    if request.called_directly or any(run.task_id == request.id for run in runs()):
        return None
    return task


def _is_static(task: Any) -> bool:
    return isinstance(inspect.getattr_static(type(task), "run"), staticmethod)


def _guard_for(cls: type[Task]) -> Guard | None:
    return getattr(cls.run, GUARD, None) or _shared.get(function_of(cls))


def _guard_class(cls: type[Task]) -> None:
    guard = _guard_for(cls)
    if guard is not None:
        guard.install(cls)


def _guard_tasks(app: Any) -> None:
    for task in list(app.tasks.values()):
        if not hasattr(task, GUARD):
            _guard_class(task.__class__)  # which may stand behind a proxy


class Annotations:
    """The annotations of an app, and before them one that puts guards in place."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._before = vars(app).get("annotations")

    def __iter__(self) -> Iterator[Any]:
        yield self
        yield from annotations_of(self._app) if self._before is None else self._before

    def annotate(self, task: type[Task]) -> None:
        """Guard a class of tasks that gets its app, where it is made of a decorated function."""
        _guard_class(task)


def watch_apps() -> None:
    """Have all the apps that there are ask for guards."""
    for app in list(active_apps()):
        _watch(app)


def _watch(app: Any) -> None:
    if not isinstance(vars(app).get("annotations"), Annotations):
        set_annotations(app, Annotations(app))


def _on_finalize(app: Any) -> None:
    """See to an app whose tasks are about to be made, or have been just now."""
    _watch(app)
    app.on_after_finalize.connect(lambda **kwargs: _guard_tasks(app), weak=False)


connect_on_app_finalize(_on_finalize)
