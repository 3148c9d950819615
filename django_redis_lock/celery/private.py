"""What the guard needs of Celery, kombu and billiard beside their public API.

All of it stands here, and ``tests/celery/test_private.py`` tells what changed when they change it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery._state import _get_active_apps as active_apps
from celery._state import connect_on_app_finalize
from celery.app.annotations import prepare as prepare_annotations
from celery.local import PromiseProxy, Proxy

__all__ = [
    "ExceptionWithTraceback",
    "PromiseProxy",
    "Proxy",
    "active_apps",
    "annotations_of",
    "check_arguments",
    "connect_on_app_finalize",
    "execution_options",
    "function_of",
    "rate_limited_requests",
    "redis_binding_prefix",
    "redis_queue_keys",
    "redis_unacknowledged_key",
    "set_annotations",
    "timed_requests",
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


def timed_requests(consumer: Any) -> Iterator[Any]:
    """Yield what a worker's timer will call something with: requests among other things."""
    for waiting in list(consumer.timer.schedule.queue):
        yield from (getattr(waiting.entry, "args", None) or ())[:1]


def rate_limited_requests(consumer: Any) -> Iterator[Any]:
    """Yield the requests that a worker keeps back for a ``rate_limit``."""
    buckets = [bucket for bucket in consumer.task_buckets.values() if bucket]
    for item in chain.from_iterable(list(bucket.contents) for bucket in buckets):
        yield item[0] if isinstance(item, tuple) else item


# Of kombu's transport over Redis.


def redis_queue_keys(channel: Any, queue: str) -> list[str]:
    """Return the keys of the lists of a queue, one for each priority."""
    names = [f"{queue}{channel.sep}{step}" if step else queue for step in channel.priority_steps]
    return [channel.global_keyprefix + name for name in names]


def redis_unacknowledged_key(channel: Any) -> str:
    """Return the key of the hash of what was delivered and is not acknowledged."""
    return str(channel.global_keyprefix + channel.unacked_key)


def redis_binding_prefix(channel: Any) -> str:
    """Return what the keys begin with that say which queues an exchange has."""
    return f"{channel.global_keyprefix}_kombu.binding."
