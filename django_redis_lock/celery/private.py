"""The parts of Celery that are not its public API.

The package uses them only by way of this module. They were seen to work with Celery 5.4 to 5.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeAlias

from billiard.pool import EX_OK, EX_RECYCLE
from celery import _state, current_app, local
from celery.app import base
from celery.app.annotations import prepare as prepare_annotations
from kombu.serialization import prepare_accept_content, registry  # type: ignore[attr-defined]

try:
    from celery.utils.quorum_queues import detect_quorum_queues
except ImportError:  # Celery 5.4, whose workers delay all messages themselves

    def detect_quorum_queues(app: Any, driver_type: str) -> tuple[bool, str]:  # type: ignore[misc]
        return False, ""


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


_HEADERS = (
    *("lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries"),
    *("timelimit", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result"),
    *("replaced_task_nesting", "stamped_headers", "stamps", "compression"),
)
_OF_DELIVERY = ("x-death", "x-first-death", "x-last-death", "x-delivery-count")
_OF_BODY = ("callbacks", "errbacks", "chain", "chord")
_OF_CALL = ("compression", "argsrepr", "kwargsrepr", "ignore_result")
_PROPERTIES = ("priority", "reply_to", "correlation_id", "delivery_mode", "message_id", "timestamp")


def headers_of(request: Any) -> dict[str, Any]:
    """Return the headers of the message that a worker made a request of."""
    known, custom = vars(request), request.headers or {}
    return {
        **{name: known[name] for name in _HEADERS if name in known},
        **{name: custom[name] for name in custom if not name.startswith(_OF_DELIVERY)},
    }


def properties_of(request: Any) -> dict[str, Any]:
    """Return the properties of that message with which it is sent again."""
    found = request.properties or {}
    return {name: found[name] for name in _PROPERTIES if found.get(name) is not None}


def options_of(request: Any) -> dict[str, Any]:
    """Return the options of that message which Celery drops when it sends a request again."""
    headers, content_type = headers_of(request), (request.properties or {}).get("content_type")
    known_type = registry.type_to_name.get(content_type)
    sent_by_celery = {*_HEADERS} - {"parent_id"}  # which would be the task itself
    return {
        **{name: headers[name] for name in _OF_CALL if name in headers},
        **properties_of(request),
        "headers": {name: headers[name] for name in headers if name not in sent_by_celery},
        "serializer": known_type or running_task().serializer,
    }


Body: TypeAlias = tuple[str | bytes, str, str]  # not compressed, its content type and encoding


def encode_body(request: Any) -> Body:
    message = request.args, request.kwargs, {name: getattr(request, name) for name in _OF_BODY}
    content_type = (request.properties or {}).get("content_type")
    serializer = registry.type_to_name.get(content_type) or running_task().app.conf.task_serializer
    content_type, encoding, body = registry.dumps(message, serializer=serializer)
    return body, content_type, encoding


def decode_body(app: Any, body: str | bytes, options: dict[str, Any]) -> Any:
    kind, encoding = options["content_type"], options["content_encoding"]
    accept = prepare_accept_content(app.conf.accept_content)
    return registry.loads(body, kind, encoding, accept=accept)


def revoked_ids() -> frozenset[str]:
    from celery.worker.state import revoked  # clients don't need it

    return frozenset(revoked)


class _Annotations:
    """The annotations of an app, preceded by one that calls ``annotate`` with each task class."""

    def __init__(self, app: Any, annotate: Callable[[Any], None]) -> None:
        self._app, self.annotate = app, annotate

    def __iter__(self) -> Iterator[Any]:
        yield self
        yield from prepare_annotations(self._app.conf.task_annotations)  # may be read only now


def annotate_first(app: Any, annotate: Callable[[Any], None]) -> None:
    if not isinstance(vars(app).get("annotations"), _Annotations):
        app.annotations = _Annotations(app, annotate)


def when_made(promise: Any, use: Callable[[Any], None]) -> None:
    """Call ``use`` with the task class as soon as ``@app.task`` has made it, which may be now."""
    promise.__then__(lambda: use(type(promise._get_current_object())))


def children_of(pool: Any) -> dict[int, Any]:
    """Return the children of a prefork pool by their process ids, dead ones perhaps among them."""
    return {child.pid: child for child in list(getattr(pool._pool, "_pool", ()))}


def was_recycled(child: Any) -> bool:
    """Whether a child is known to have ended between two tasks, by ``max_tasks_per_child``."""
    return bool(child._popen is not None and child._popen.returncode == EX_RECYCLE)


def jobs_of(pool: Any) -> dict[int, Any]:
    """Return the last jobs that children of a prefork pool have accepted, by process id."""
    cache = getattr(pool._pool, "_cache", {})  # a pool that has stopped has none
    jobs = sorted(cache.values(), key=lambda job: job._time_accepted or 0.0)
    return {pid: job for job in jobs for pid in job.worker_pids()}


def cut_off_since(child: Any, seen: float, job: Any) -> float | None:
    """Return since when (monotonic) the task ran in which a child was killed, if one did."""
    if job is not None and not (job.ready() and job.successful()):  # all its results are read
        return float(job._time_accepted)
    # If no job is known, one may have begun since the child was last seen alive.
    return None if child.exitcode in (EX_OK, EX_RECYCLE) else seen


def execution_options(task: Any) -> dict[str, Any]:
    """Return what a task's own attributes say about its messages, such as ``expires``."""
    return dict(task._get_exec_options())


def delays_by_whole_seconds(task: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> bool:
    """Whether the broker delays a message by Celery's native delayed delivery."""
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


def argument_models(run: Callable[..., Any], static: bool) -> Callable[..., Any] | None:
    """Return what turns arguments into the models that a task with ``pydantic=True`` is given.

    They are made without ``pydantic_strict`` and ``pydantic_context``, which only Celery knows.
    """
    if getattr(run, "__globals__", None) is not vars(base):  # as of that wrapper
        return None
    own = () if static else (None,)

    @wraps(run)
    def returned(*args: Any, **kwargs: Any) -> Any:
        return args[len(own) :], kwargs

    wrap = base.pydantic_wrapper  # type: ignore[attr-defined]
    made = wrap(current_app, returned, run.__name__, strict=False)
    return lambda args, kwargs: made(*own, *args, **kwargs)
