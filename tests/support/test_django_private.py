"""The private parts of Django that the package depends on, seen with Django 5.2 and 6.0."""

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

FORM = {"data": b"name=lamp&count=2", "content_type": "application/x-www-form-urlencoded"}


def test_a_request_keeps_its_stream_and_how_much_was_read() -> None:
    """As ``views.decorator.receive`` needs it."""
    request: Any = RequestFactory().post("/", **FORM)
    stream = request._stream
    assert (type(stream), request._read_started, stream._pos) == (LimitedStream, False, 0)
    assert request.read(5) == FORM["data"][:5]
    assert (request._read_started, stream._pos) == (True, 5)


def test_the_body_leaves_a_stream_of_its_bytes() -> None:
    request: Any = RequestFactory().post("/", **FORM)
    assert request.body == FORM["data"]
    assert type(request._stream) is io.BytesIO
    assert request._stream.getvalue() == FORM["data"]


def test_a_replaced_stream_is_read_anew() -> None:
    request: Any = RequestFactory().post("/", **FORM)
    body = io.BytesIO(request.read())
    request._stream, request._read_started = body, False
    assert request.POST["name"] == "lamp"


def test_a_view_carries_the_databases_without_transactions() -> None:
    """As ``views.decorator.Declined`` reads and sets them."""

    def view(request: Any) -> None: ...

    assert transaction.non_atomic_requests(using="other")(view)._non_atomic_requests == {"other"}


@pytest.mark.django_db
def test_a_test_case_marks_its_transaction() -> None:
    """As ``primitives.transactions`` tells it from the others."""
    with transaction.atomic():
        first, last = (
            connections["default"].atomic_blocks[0],
            connections["default"].atomic_blocks[-1],
        )
        assert (first._from_testcase, last._from_testcase) == (True, False)


def test_a_queryset_has_an_iterable_that_its_clones_keep() -> None:
    """And there is the ``_clone()`` that ``fencing.FencedQuerySet`` overrides."""

    class Iterable(ModelIterable):  # type: ignore[type-arg]
        pass

    rows: Any = Permission.objects.all()
    assert rows._iterable_class is ModelIterable
    rows._iterable_class = Iterable
    assert rows.filter(pk=1)._iterable_class is Iterable
    values: Any = Permission.objects.values()
    assert values._iterable_class is not ModelIterable
    assert rows._clone().__class__ is rows.__class__


def test_a_redis_cache_keeps_its_client() -> None:
    """With a pool for writing, which is that of the first server, as ``location`` needs it."""
    servers = "redis://10.0.0.1:6379/2;redis://10.0.0.2:6379/2"
    cache: Any = RedisCache(servers, {})
    pool = cache._cache.get_client(write=True).connection_pool
    assert (pool.connection_kwargs["host"], pool.connection_kwargs["db"]) == ("10.0.0.1", 2)
