"""Has the body of a request here before a lock is taken for it.

Who may send it as slowly as they like must not hold a lock meanwhile. What is private to Django's
requests, ``_stream`` with its ``_pos`` and ``_read_started``, is used in this module alone.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from typing import IO, Any

from django.conf import settings
from django.core.exceptions import BadRequest
from django.http import UnreadablePostError

MULTIPART = "multipart/form-data"
CHUNK = 2**16
"""Bytes that are read at a time."""


def has_arrived(request: Any) -> bool:
    """Whether nobody has to wait for the client of a request any more.

    Under ASGI Django has received the body, into a file, before it calls anybody.
    """
    stream = getattr(request, "_stream", None)
    if stream is None or request._read_started or _length(request) <= 0:
        return True
    return bool(hasattr(stream, "seekable") and stream.seekable())


def receive(request: Any) -> None:
    """Wait for the body of Django's request; whoever reads it afterwards finds it untouched.

    Raises ``RequestDataTooBig`` for what is beyond DATA_UPLOAD_MAX_MEMORY_SIZE, as Django does;
    files that are uploaded do not count. Raises ``BadRequest`` where the client goes away.
    """
    length = _length(request)
    try:
        if has_arrived(request):
            received = _already_read(request, length)
        elif request.content_type == MULTIPART:
            received = _spool(request)
        else:
            received = len(request.body)
    except UnreadablePostError as error:
        raise BadRequest(f"The client went away: {error}") from error
    if received < length:
        raise BadRequest(f"Only {received} of {length} bytes of the body have come.")


def _length(request: Any) -> int:
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0  # to Django as well


def _already_read(request: Any, length: int) -> int:
    """Return how much of a body has come that is not to be waited for.

    Before the view Django's middleware against forged requests has read a form, and says nothing
    where it was cut off.
    """
    stream = getattr(request, "_stream", None)
    if isinstance(stream, io.BytesIO):  # by request.body, or put there by ourselves
        return len(stream.getbuffer())
    # Under WSGI it is a LimitedStream, which counts; everything else is a file, and whole.
    return int(getattr(stream, "_pos", length))


def _spool(request: Any) -> int:
    """Put a file in the place of the client, in memory if it is small, and return its size.

    It is not parsed yet, for the view may set upload handlers of its own.
    """
    small = _length(request) <= settings.FILE_UPLOAD_MAX_MEMORY_SIZE
    spool: IO[bytes] = io.BytesIO()
    if not small:
        spool = tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)  # noqa: SIM115
    try:
        while chunk := request.read(CHUNK):
            spool.write(chunk)
    except BaseException:
        spool.close()
        raise
    size = spool.tell()
    spool.seek(0)
    # From here on it is closed with the request.
    request._stream, request._read_started = spool, False
    request.close = _in_turn(request.close, spool.close)
    return size


def _in_turn(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        try:
            first()
        finally:
            second()

    return both
