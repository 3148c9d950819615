"""The private parts of Django that the package depends on, as they are in Django 5.2 and 6.0.

``fencing.FencedQuerySet`` overrides ``QuerySet._clone()`` as well.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from django.db.models.query import ModelIterable
from django.utils import autoreload

View = Callable[..., Any]


def unread_body(request: Any) -> Any:
    """Return the stream of a body of which nothing was read, ``None`` for another request."""
    begun = getattr(request, "_read_started", True)  # a request that was made by hand has none
    return None if begun else getattr(request, "_stream", None)


def bytes_read(request: Any, default: int) -> int:
    """Return how much of a body was read, ``default`` for a stream that does not count.

    ``request.body`` leaves a ``BytesIO``. WSGI's ``LimitedStream`` counts; ASGI's file is complete.
    """
    stream = getattr(request, "_stream", None)
    if isinstance(stream, io.BytesIO):
        return len(stream.getbuffer())
    return int(getattr(stream, "_pos", default))


def replace_body_stream(request: Any, stream: Any) -> None:
    request._stream, request._read_started = stream, False


def non_atomic_databases(view: View) -> Any:
    return getattr(view, "_non_atomic_requests", ())


def set_non_atomic_databases(view: View, aliases: Any) -> None:
    view._non_atomic_requests = aliases  # type: ignore[attr-defined]


def is_of_test_case(block: Any) -> bool:
    """Whether a block of ``atomic_blocks`` is the transaction of a ``TestCase``."""
    return bool(block._from_testcase)


def savepoint_in_test(connection: Any) -> str | None:
    """Return the savepoint of the outermost block inside of the blocks of a ``TestCase``.

    It stands for the transaction, as for ``durable``. No release waits for a block without one.
    """
    blocks = connection.atomic_blocks
    if not blocks or not is_of_test_case(blocks[0]):
        return None
    outermost = next((i for i, block in enumerate(blocks) if not is_of_test_case(block)), None)
    # The last block has the last savepoint, whether or not the first one has any.
    return None if outermost is None else connection.savepoint_ids[outermost - len(blocks)]


def client_of_cache(cache: Any) -> Any:
    return cache._cache


def replace_model_iterable(queryset: Any, replacement: type[ModelIterable]) -> None:  # type: ignore[type-arg]
    """Have a queryset make instances with another iterable, unless it returns values."""
    if queryset._iterable_class is ModelIterable:
        queryset._iterable_class = replacement


def watch(files: list[str | None]) -> None:
    """Let runserver start anew when a file changes of a module that could not be imported."""
    reloader: Any = autoreload
    reloader._error_files += files
