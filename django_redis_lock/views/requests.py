"""What a guard does with a request: receive its body, name its lock, begin its transactions."""

from __future__ import annotations

import functools
import inspect
import io
import shutil
from collections.abc import Callable, Collection
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import IO, Any

from django.conf import settings
from django.core.exceptions import BadRequest
from django.db import connections, transaction
from django.http import UnreadablePostError

from django_redis_lock.handler import locks
from django_redis_lock.support import django_private
from django_redis_lock.support.arguments import check_name, check_template
from django_redis_lock.support.django_private import View

Name = str | Callable[..., str]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]

REQUEST = "request"
"""The name of the request in templates, whatever the view calls it."""


def has_arrived(request: Any) -> bool:
    """Whether the body is here. Under ASGI, Django spools it to a file before it calls the view."""
    stream = django_private.unread_body(request)
    if stream is None or _length(request) <= 0:
        return True
    return hasattr(stream, "seekable") and bool(stream.seekable())


def receive(request: Any) -> None:
    """Wait for the body of Django's request, and leave it unread for the view.

    Raises ``RequestDataTooBig`` for a body over DATA_UPLOAD_MAX_MEMORY_SIZE, as Django does, not
    counting uploaded files; and ``BadRequest`` when the client goes away.
    """
    length = _length(request)
    try:
        if has_arrived(request):
            # Django's CSRF middleware may have read a form, and ignores one that is cut off.
            received = django_private.bytes_read(request, default=length)
        elif request.content_type == "multipart/form-data":
            received = _spool(request)
        else:
            received = len(request.body)
    except UnreadablePostError as error:
        raise BadRequest(f"The client went away: {error}") from error
    if received < length:
        raise BadRequest(f"Only {received} of {length} bytes of the body arrived.")


def _length(request: Any) -> int:
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0  # to Django as well


def _spool(request: Any) -> int:
    """Read the body into memory or a file, and return its size.

    It is not parsed yet: the view may set upload handlers of its own.
    """
    with ExitStack() as closing:
        spool: IO[bytes] = io.BytesIO()
        if _length(request) > settings.FILE_UPLOAD_MAX_MEMORY_SIZE:
            spool = closing.enter_context(TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR))
        shutil.copyfileobj(request, spool)
        size = spool.tell()
        spool.seek(0)
        django_private.replace_body_stream(request, spool)
        closing.callback(request.close)
        request.close = closing.pop_all().close
    return size


class NameMaker:
    def __init__(self, source: Name, using: str) -> None:
        self._source, self.using = source, using
        if not isinstance(source, str) and not callable(source):
            raise TypeError(
                f"name={source!r} must be a template such as 'product:{{product_id}}', or a "
                f"callable that is given the request and the arguments of its URL."
            )
        self._fields = check_template(source, "name") if isinstance(source, str) else []
        self.reads_request = callable(source) or REQUEST in self._fields
        """Whether the name may depend on more than the URL's arguments."""

    def check(self, view: View) -> None:
        """Raise ``ValueError`` for a placeholder that matches no argument of the view."""
        kind = view if isinstance(view, type) else getattr(view, "view_class", None)
        handlers = [view]
        if kind is not None:
            methods = ("get", "post", "put", "patch", "delete")  # the others may be Django's own
            handlers = [getattr(kind, method) for method in methods if hasattr(kind, method)]
        known = [item for handler in handlers for item in _arguments(handler)]
        if handlers and not any(item.kind is item.VAR_KEYWORD for item in known):
            names = dict.fromkeys(item.name for item in known)
            self._check_fields([REQUEST, *names], "the view takes")

    def __call__(self, view: View, request: Any, args: Args, kwargs: Kwargs) -> str:
        """Return the lock's name. Raises ``BadRequest`` if the client's data make none."""
        if callable(self._source):
            made = self._source(request, *args, **kwargs)
            if not isinstance(made, str):
                raise TypeError(f"The callable for a lock's name must return a str, not {made!r}.")
        else:
            values = {**kwargs, REQUEST: request}
            if not values.keys() >= set(self._fields):
                known = _arguments(view)
                values = {
                    **{each.name: each.default for each in known if each.default is not each.empty},
                    **dict(zip((each.name for each in known), args, strict=False)),
                    **values,
                }
            self._check_fields(values, "this URL has")
            try:
                made = self._source.format_map(values)
            except (LookupError, TypeError, ValueError) as error:  # e.g. a field that is missing
                raise BadRequest(f"No lock name for {self._source!r}: {error!r}") from error
        try:
            return check_name(locks.make_name(self.using, check_name(made)))
        except ValueError as error:  # e.g. control characters in the URL
            raise BadRequest(str(error)) from error

    def _check_fields(self, known: Collection[str], where: str) -> None:
        for field in self._fields:
            if field not in known:
                raise ValueError(
                    f"The lock name {self._source!r} has a placeholder {field!r}, but {where} "
                    f"{', '.join(known)}."
                )


def _arguments(view: View) -> list[inspect.Parameter]:
    """Return the parameters after the request."""
    target = view.func if isinstance(view, functools.partial) else view
    known = list(inspect.signature(target).parameters.values())
    return known[2 if known and known[0].name == "self" else 1 :]


class NonAtomicAliases(set[str]):
    """The databases without a transaction of ATOMIC_REQUESTS, as a view or a decorator says.

    Django finds every database in this set and so begins no transaction; the guard begins them once
    it holds the lock, except for those that really are in it.
    """

    def __init__(self, view: View) -> None:
        given = django_private.non_atomic_databases(view)
        super().__init__(given)
        # An inner guard begins the transactions, after it has taken its own lock.
        self._left_to_view = isinstance(given, NonAtomicAliases)

    def __contains__(self, alias: object) -> bool:
        return True

    def wanted(self) -> list[str]:
        """Return the databases that the guard begins a transaction of."""
        return [
            alias
            for alias, database in connections.settings.items()
            if database["ATOMIC_REQUESTS"] and not (self._left_to_view or alias in {*self})
        ]

    def atomic(self, view: View) -> View:
        """Wrap the view in these transactions."""
        for alias in self.wanted():
            view = transaction.atomic(using=alias)(view)
        return view
