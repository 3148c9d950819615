"""The parts of Celery, kombu and billiard that are not their public API.

The package uses them only by way of this module. They were seen to work with Celery 5.4 to 5.7,
kombu 5.3 to 5.7 and billiard 4.2; ``tests/celery/test_private.py`` fails first if one changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]
from celery import _state, local
from celery.app.annotations import prepare as prepare_annotations

try:
    from celery.utils.quorum_queues import detect_quorum_queues
except ImportError:  # Celery 5.4, whose workers delay all messages themselves

    def detect_quorum_queues(app: Any, driver_type: str) -> tuple[bool, str]:  # type: ignore[misc]
        return False, ""


# Celery.

Proxy = local.Proxy
PromiseProxy = local.PromiseProxy
active_apps = _state._get_active_apps  # type: ignore[attr-defined]
connect_on_app_finalize = _state.connect_on_app_finalize
running_task = _state.get_current_task
_running_tasks = _state._task_stack  # type: ignore[attr-defined]


def in_worker() -> bool:
    """Whether this is called in a task that a worker runs, however deep."""
    return any(
        not (request.called_directly or request.is_eager)
        for task in _running_tasks.stack
        for request in task.request_stack.stack
    )


def annotations_of(app: Any) -> Sequence[Any]:
    """Return what ``task_annotations`` stands for; reads the app's configuration."""
    annotations: Sequence[Any] = prepare_annotations(app.conf.task_annotations)
    return annotations


def set_annotations(app: Any, annotations: Any) -> None:
    """Replace the annotations that an app asks about each task class that it binds."""
    app.annotations = annotations


def when_made(promise: Any, use: Callable[[Any], None]) -> None:
    """Call ``use`` with the task class as soon as ``@app.task`` has made it, which may be now."""
    promise.__then__(lambda: use(type(promise._get_current_object())))


def check_arguments(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise ``TypeError`` if arguments don't fit a task, as ``apply_async`` does."""
    if task.typing and hasattr(task, "__header__"):  # class-based tasks have none
        task.__header__(*args, **kwargs)


def execution_options(task: Any) -> dict[str, Any]:
    """Return what a task's own attributes say about its messages, such as ``expires``."""
    options: dict[str, Any] = task._get_exec_options()
    return options


def delays_by_whole_seconds(task: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> bool:
    """Whether the broker delays a message by Celery's native delayed delivery.

    Of a delay Celery then uses the whole seconds, and raises ``ValueError`` if there are none.
    """
    app = task.app
    if app.conf.task_always_eager:
        return False
    transport = app.producer_pool.connections.connection.transport
    if not detect_quorum_queues(app, transport.driver_type)[0]:
        return False
    route = app.amqp.router.route(dict(options), task.name, args, kwargs, task)
    exchange = route["queue"].exchange.type if route.get("queue") else route.get("exchange_type")
    return bool(exchange != "direct")  # there the worker delays it


def function_of(task: Any) -> Any:
    """Return the function that a task was made of, which is the same in every app."""
    wrapped = getattr(task, "__wrapped__", None)
    return getattr(wrapped, "__func__", wrapped)


def on_undecodable(consumer: Any, tell: Callable[[Any], None]) -> None:
    """Call ``tell`` with each message that a worker's consumer drops as undecodable."""
    acknowledge = consumer.on_decode_error

    def on_decode_error(message: Any, exc: Exception) -> Any:
        tell(message)
        return acknowledge(message, exc)

    consumer.on_decode_error = on_decode_error


# kombu.


def timed_requests(consumer: Any) -> Iterator[Any]:
    """Yield what a worker's timer will call something with, requests among other things."""
    for waiting in list(consumer.timer.schedule.queue):
        yield from (getattr(waiting.entry, "args", None) or ())[:1]


def rate_limited_requests(consumer: Any) -> Iterator[Any]:
    """Yield the requests that a worker holds back because of a ``rate_limit``."""
    buckets = [bucket for bucket in consumer.task_buckets.values() if bucket]
    for item in chain.from_iterable(list(bucket.contents) for bucket in buckets):
        yield item[0] if isinstance(item, tuple) else item


def redis_queue_keys(channel: Any, queue: str) -> list[str]:
    """Return the keys of the lists of a queue on Redis, one for each priority."""
    names = [f"{queue}{channel.sep}{step}" if step else queue for step in channel.priority_steps]
    return [channel.global_keyprefix + name for name in names]


def redis_unacknowledged_key(channel: Any) -> str:
    """Return the key of the hash of messages that were delivered and not acknowledged."""
    return str(channel.global_keyprefix + channel.unacked_key)


def redis_binding_prefix(channel: Any) -> str:
    """Return the prefix of the keys that hold the queues bound to each exchange."""
    return f"{channel.global_keyprefix}_kombu.binding."


# billiard.


def cause_of(error: Any) -> Any:
    """Return the exception that a child of a worker raised, without its wrapper."""
    return error.exc if isinstance(error, ExceptionWithTraceback) else error
