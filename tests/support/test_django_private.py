"""The private parts of Django that ``support.django_private`` depends on."""

from __future__ import annotations

import io
from typing import Any

from django.core.handlers.wsgi import LimitedStream
from django.db import transaction
from django.test import RequestFactory

FORM = {"data": b"name=lamp&count=2", "content_type": "application/x-www-form-urlencoded"}


def test_a_request_keeps_its_stream_and_how_much_was_read() -> None:
    """``body_stream``, ``has_begun_reading`` and ``bytes_read``."""
    request: Any = RequestFactory().post("/", **FORM)
    stream = request._stream
    assert (type(stream), request._read_started, stream._pos) == (LimitedStream, False, 0)
    assert request.read(5) == FORM["data"][:5]
    assert (request._read_started, stream._pos) == (True, 5)


def test_the_body_leaves_a_stream_of_its_bytes() -> None:
    """``bytes_read`` after ``request.body``."""
    request: Any = RequestFactory().post("/", **FORM)
    assert request.body == FORM["data"]
    assert type(request._stream) is io.BytesIO
    assert request._stream.getvalue() == FORM["data"]


def test_a_replaced_stream_is_read_anew() -> None:
    """``replace_body_stream``."""
    request: Any = RequestFactory().post("/", **FORM)
    body = io.BytesIO(request.read())
    request._stream, request._read_started = body, False
    assert request.POST["name"] == "lamp"


def test_a_view_carries_the_databases_without_transactions() -> None:
    """``non_atomic_databases``."""

    def view(request: Any) -> None: ...

    assert transaction.non_atomic_requests(using="other")(view)._non_atomic_requests == {"other"}
