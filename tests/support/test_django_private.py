"""The private parts of Django that ``support.django_private`` depends on."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.cache.backends.redis import RedisCache
from django.core.handlers.wsgi import LimitedStream
from django.db import connections, transaction
from django.db.models.query import ModelIterable
from django.test import RequestFactory

from django_redis_lock.support.django_private import (
    client_of_cache,
    is_of_test_case,
    replace_model_iterable,
)

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


@pytest.mark.django_db
def test_a_test_case_marks_its_transaction() -> None:
    """``is_of_test_case``."""
    with transaction.atomic():
        first, last = (
            connections["default"].atomic_blocks[0],
            connections["default"].atomic_blocks[-1],
        )
        assert (is_of_test_case(first), is_of_test_case(last)) == (True, False)


def test_a_queryset_has_an_iterable_that_its_clones_keep() -> None:
    """``replace_model_iterable``, and the ``_clone()`` that ``FencedQuerySet`` overrides."""

    class Iterable(ModelIterable):  # type: ignore[type-arg]
        pass

    rows: Any = Permission.objects.all()
    replace_model_iterable(rows, Iterable)
    assert rows.filter(pk=1)._iterable_class is Iterable
    values: Any = Permission.objects.values()
    replace_model_iterable(values, Iterable)
    assert values._iterable_class is not Iterable
    assert rows._clone().__class__ is rows.__class__


def test_a_redis_cache_keeps_its_client() -> None:
    """``client_of_cache``: with a pool for writing, which is that of the first server."""
    servers = "redis://10.0.0.1:6379/2;redis://10.0.0.2:6379/2"
    client = client_of_cache(RedisCache(servers, {}))
    pool = client.get_client(write=True).connection_pool
    assert (pool.connection_kwargs["host"], pool.connection_kwargs["db"]) == ("10.0.0.1", 2)
