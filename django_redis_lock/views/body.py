"""The body of a request, which arrives before the lock is taken: a slow client holds no lock."""

from __future__ import annotations

import io
import shutil
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import IO, Any

from django.conf import settings
from django.core.exceptions import BadRequest
from django.http import UnreadablePostError

from django_redis_lock.support import django_private


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
