"""The requests of guarded views: how they arrive, what they have, and how they are refused.

The body is received before a lock is taken, so that a slow client holds no lock.
"""

from __future__ import annotations

import io
import logging
import tempfile
from contextlib import ExitStack
from typing import IO, Any, Literal, NoReturn

from django.conf import settings
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, JsonResponse, UnreadablePostError
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from django_redis_lock.exceptions import LockNotOwned, LockUnavailable
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.support.django_private import (
    body_stream,
    bytes_read,
    has_begun_reading,
    replace_body_stream,
)

logger = logging.getLogger("django_redis_lock")

MULTIPART = "multipart/form-data"
CHUNK = 2**16
STATUSES = (409, 423, 503)
"""The statuses to choose from when another request holds the lock."""
UNAVAILABLE = 503
RETRY_AFTER = 5
"""Seconds for Retry-After when the server is unavailable and the view gives none."""
TEMPLATE = "django_redis_lock/locked.html"


class NoLock:
    """The ``request.lock`` of a request whose method takes none. It is false.

    To use it as a lock raises ``LockNotOwned``.
    """

    def __init__(self, method: str | None, methods: frozenset[str]) -> None:
        self._why = (
            f"This view takes no lock for {method}, only for its methods={sorted(methods)}. "
            f"Ask 'if request.lock:' first, or add {method!r} to methods."
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._why}>"

    def __bool__(self) -> Literal[False]:
        return False

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("_"):  # what Python looks for, as when it copies a request
            raise AttributeError(attribute)
        raise LockNotOwned(f"request.lock.{attribute}: {self._why}")

    def _refuse(self, *error: object) -> NoReturn:
        raise LockNotOwned(self._why)

    __enter__ = __exit__ = __aenter__ = __aexit__ = _refuse


class GuardedRequest(HttpRequest):
    """The request passed to a guarded view, for annotations."""

    lock: Lock | NoLock


class LockedRequest(HttpRequest):
    """The request of a view that only methods which take the lock can reach."""

    lock: Lock


def has_arrived(request: Any) -> bool:
    """Whether the body is here. Under ASGI, Django spools it to a file before it calls the view."""
    stream = body_stream(request)
    if stream is None or has_begun_reading(request) or _length(request) <= 0:
        return True
    return bool(hasattr(stream, "seekable") and stream.seekable())


def receive(request: Any) -> None:
    """Wait for the body of Django's request, and leave it unread for the view.

    Raises ``RequestDataTooBig`` for a body over DATA_UPLOAD_MAX_MEMORY_SIZE, as Django does, not
    counting uploaded files; and ``BadRequest`` when the client goes away.
    """
    length = _length(request)
    try:
        if has_arrived(request):
            # Django's CSRF middleware may have read a form, and ignores one that is cut off.
            received = bytes_read(body_stream(request), default=length)
        elif request.content_type == MULTIPART:
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
            spool = tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)  # noqa: SIM115
        closing.enter_context(spool)
        while chunk := request.read(CHUNK):
            spool.write(chunk)
        size = spool.tell()
        spool.seek(0)
        replace_body_stream(request, spool)
        closing.callback(request.close)
        request.close = closing.pop_all().close
    return size


class Refusal:
    """Makes responses as JSON or HTML, as the client prefers.

    Raises ``ValueError`` for an invalid ``status`` or ``retry_after``.
    """

    def __init__(self, status: int, retry_after: int | None) -> None:
        if status not in STATUSES:
            raise ValueError(
                f"status={status!r} is not a status for a lock that is held; choose from "
                f"{', '.join(map(str, STATUSES))}."
            )
        if retry_after is not None and (type(retry_after) is not int or retry_after < 1):
            raise ValueError(f"retry_after={retry_after!r} must be whole seconds, 1 or more.")
        self._status = status
        self._retry_after = retry_after

    def locked(self, request: Any) -> HttpResponse:
        return self._answer(
            request, self._status, "locked", _("Somebody else is doing this right now.")
        )

    def unavailable(self, request: Any, error: LockUnavailable) -> HttpResponse:
        """Log that the server is unavailable, and return the response."""
        logger.error("A view could not take its lock: %s", error)
        return self._answer(
            request, UNAVAILABLE, "unavailable", _("This can't be done at the moment.")
        )

    def _answer(self, request: Any, status: int, code: str, reason: str) -> HttpResponse:
        advice = _("Please try again in a moment.")
        response: HttpResponse = JsonResponse(
            {"error": code, "detail": f"{reason} {advice}"}, status=status
        )
        if request.get_preferred_type(["application/json", "text/html"]) == "text/html":
            context = {"status": status, "error": code, "reason": reason, "advice": advice}
            try:
                page = render_to_string(TEMPLATE, context, getattr(request, "_request", request))
                response = HttpResponse(page, status=status)
            except TemplateDoesNotExist:
                logger.warning("There is no template %s: set APP_DIRS, or write one.", TEMPLATE)
        patch_vary_headers(response, ["Accept", "Accept-Language"])
        retry_after = self._retry_after or (RETRY_AFTER if status == UNAVAILABLE else None)
        if retry_after is not None:
            response["Retry-After"] = str(retry_after)
        return response
