"""Spans of waits and holds, as a real SDK gets them."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import sys
import threading
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode, get_current_span

from django_redis_lock import lock, lock_many, locks, signals
from django_redis_lock.contrib import opentelemetry as names
from django_redis_lock.contrib.opentelemetry import LockInstrumentor
from django_redis_lock.contrib.opentelemetry.apps import OpenTelemetryConfig
from django_redis_lock.exceptions import LockLost, LockNotAcquired, LockUnavailable
from tests.contrib.opentelemetry.conftest import Telemetry
from tests.settings import server_url
from tests.tools import told, waiters

pytestmark = pytest.mark.usefixtures("server")


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def test_each_waiter_has_a_span_for_its_wait_and_one_for_its_hold(
    telemetry: Telemetry, name: str
) -> None:
    async def request(number: int) -> int:
        with telemetry.tracer.start_as_current_span(f"view {number}") as view:
            async with lock(name, timeout=10):
                await asyncio.sleep(0)
                assert get_current_span() is view
            return view.context.span_id

    async def body() -> list[int]:
        async with lock(name, timeout=10):
            requests = [asyncio.ensure_future(request(number)) for number in range(3)]
            while waiters(name) < 3:
                await asyncio.sleep(0.002)
        return await asyncio.gather(*requests)

    views = asyncio.run(body())
    waits = telemetry.spans(names.WAIT)
    holds = [span for span in telemetry.spans(names.HOLD) if span.parent]
    assert sorted(map(parent_of, waits)) == sorted(map(parent_of, holds)) == sorted(views)
    assert [span.attributes[names.OUTCOME] for span in waits] == ["acquired"] * 3
    assert names.FENCE not in waits[0].attributes


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [
        ({"blocking_timeout": 0.02}, "timeout"),
        ({"blocking": False}, "busy"),
        ({"blocking_timeout": 9, "max_waiters": 0}, "full"),
        ({}, "unavailable"),
    ],
)
def test_a_lock_that_was_not_acquired(
    telemetry: Telemetry, name: str, settings: Any, arguments: Any, outcome: str
) -> None:
    """It is an error, unless the caller did not want to wait."""
    settings.LOCKS = {
        "default": {"LOCATION": server_url()},
        "dead": {"LOCATION": "redis://127.0.0.1:1"},
    }
    using = "default" if arguments else "dead"
    with lock(name), pytest.raises((LockNotAcquired, LockUnavailable)):
        with telemetry.tracer.start_as_current_span("view") as view:
            lock(name, using=using, **arguments).__enter__()
    wait = telemetry.span(names.WAIT)
    assert parent_of(wait) == view.context.span_id
    assert wait.attributes[names.OUTCOME] == outcome
    assert outcome != "unavailable" or wait.end_time - wait.start_time > 5e8  # it was tried again
    is_error = outcome not in ("busy", "full")
    assert (wait.status.status_code is StatusCode.ERROR) is is_error
    assert wait.attributes.get(names.ERROR_TYPE) == (outcome if is_error else None)


def test_a_hold_ends_where_it_is_released_detached_or_lost(telemetry: Telemetry, name: str) -> None:
    with telemetry.tracer.start_as_current_span("view") as view:
        first, second = lock(name, timeout=10), lock(name, timeout=10)
        first.acquire()
        second.take_over(first.detach(10))
        second_fence = second.fence
    releasing = threading.Thread(target=second.release)
    releasing.start()
    releasing.join()
    lost = lock(name, timeout=10)
    lost.acquire()
    locks["default"].force_release(name)
    with pytest.raises(LockLost):
        lost.ensure_held()
    with lock_many([f"{name}:1", f"{name}:2"]):
        pass
    holds = telemetry.spans(names.HOLD)
    assert [span.attributes[names.OUTCOME] for span in holds] == [
        "detached",
        "released",
        "lost",
        "released",
        "released",
    ]
    errors = [hold.status.status_code is StatusCode.ERROR for hold in holds]
    assert errors == [False, False, True, False, False]
    assert parent_of(holds[0]) == parent_of(holds[1]) == view.context.span_id
    assert holds[1].attributes == {
        names.NAME: name,
        names.ALIAS: "default",
        names.BACKEND: "RedisLockBackend",
        names.GROUP: "other",
        names.FENCE: second_fence,
        names.OUTCOME: "released",
    }


def test_a_handle_that_is_given_up_ends_its_span(telemetry: Telemetry, name: str) -> None:
    """A wait that is cancelled, and a handle that is dropped, have no outcome."""

    async def body() -> None:
        async with lock(name, timeout=10):
            request = asyncio.ensure_future(lock(name, timeout=10).aacquire())
            while not (calls or request.done()):
                await asyncio.sleep(0.002)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request

    with told(signals.lock_waiting) as calls:
        asyncio.run(body())
        calls.clear()
    dropped = lock(f"{name}:1", timeout=10)
    dropped.acquire()
    del dropped
    gc.collect()
    with lock(f"{name}:2"):
        lock(f"{name}:2").acquire(blocking=False)
    given_up = [span for span in telemetry.spans() if names.OUTCOME not in span.attributes]
    assert [(span.name, span.attributes[names.NAME]) for span in given_up] == [
        (names.WAIT, name),
        (names.HOLD, f"{name}:1"),
    ]


def test_a_forked_child_does_not_end_the_spans_of_its_parent(
    telemetry: Telemetry, name: str
) -> None:
    held = lock(name)
    held.acquire()
    child = os.fork()
    if not child:  # the exit code tells how many spans the child has ended
        status = 100
        try:
            del held
            gc.collect()
            with lock(f"{name}:child"):
                pass
            status = len(telemetry.spans(names.HOLD))
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    held.release()
    assert telemetry.span(names.HOLD).attributes[names.NAME] == name


def test_an_unsampled_trace_has_no_spans(telemetry: Telemetry, name: str) -> None:
    unsampled = Telemetry(ALWAYS_OFF)
    with unsampled.tracer.start_as_current_span("view"), lock(name):
        lock(name).acquire(blocking_timeout=0.01)
    unsampled.shutdown()
    assert telemetry.spans() == []
    assert "django_redis_lock.wait.duration" in telemetry.metrics()


def test_it_is_switched_on_once_and_needs_the_api(
    telemetry: Telemetry, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    LockInstrumentor().instrument()
    assert "already instrumented for OpenTelemetry" in caplog.text
    caplog.clear()
    OpenTelemetryConfig.create("django_redis_lock.contrib.opentelemetry").ready()
    assert not caplog.records
    with lock(name):
        pass
    assert len(telemetry.spans()) == 1
    LockInstrumentor().uninstrument()
    LockInstrumentor().uninstrument()
    assert not signals.lock_waiting.receivers
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ImproperlyConfigured, match=r"django-redis-lock\[opentelemetry\]"):
        importlib.reload(names)
