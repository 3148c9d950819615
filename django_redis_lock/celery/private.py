"""What the guard needs of Celery, kombu and billiard beside their public API.

All of it stands here, and ``tests/test_celery_private.py`` tells what changed when they change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from billiard.pool import EX_RECYCLE
from celery._state import _get_active_apps as active_apps
from celery._state import connect_on_app_finalize
from celery.app.annotations import prepare as prepare_annotations
from celery.local import PromiseProxy, Proxy

__all__ = [
    "EX_RECYCLE",
    "PromiseProxy",
    "Proxy",
    "active_apps",
    "annotations_of",
    "check_arguments",
    "connect_on_app_finalize",
    "execution_options",
    "function_of",
    "set_annotations",
]


def annotations_of(app: Any) -> Sequence[Any]:
    """Return what ``task_annotations`` comes to; reads the configuration of the app."""
    annotations: Sequence[Any] = prepare_annotations(app.conf.task_annotations)
    return annotations


def set_annotations(app: Any, annotations: Any) -> None:
    """Have an app ask these about each class of tasks that it binds, in place of its own."""
    app.annotations = annotations


def check_arguments(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise ``TypeError`` where arguments don't fit a task, as ``apply_async`` does."""
    if task.typing and hasattr(task, "__header__"):  # which a task that is a class has not
        task.__header__(*args, **kwargs)


def execution_options(task: Any) -> dict[str, Any]:
    """Return what a task's own attributes say about its messages: ``expires`` and the like."""
    options: dict[str, Any] = task._get_exec_options()
    return options


def function_of(task: Any) -> Any:
    """Return the function that a task was made of; its name may differ from app to app."""
    wrapped = getattr(task, "__wrapped__", None)
    return getattr(wrapped, "__func__", wrapped)
