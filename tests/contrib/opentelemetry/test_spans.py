"""Spans of waits and holds, as a real SDK gets them."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode, get_current_span

from django_redis_lock import lock, lock_many, locks, signals
from django_redis_lock.contrib.opentelemetry import LockInstrumentor, names
from django_redis_lock.contrib.opentelemetry.apps import OpenTelemetryConfig
from django_redis_lock.exceptions import LockLost, LockNotAcquired, LockUnavailable
from tests.contrib.opentelemetry.telemetry import Telemetry
from tests.tools import Background, eventually, told, waiters

pytestmark = pytest.mark.usefixtures("server")


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def outcomes(spans: list[ReadableSpan]) -> list[Any]:
    return [(span.name, span.attributes[names.OUTCOME]) for span in spans]


def test_an_uncontended_lock_has_one_span_for_its_hold(telemetry: Telemetry, name: str) -> None:
    """It is a child of the caller's span, lasts until the release, and is never the current one."""
    with telemetry.tracer.start_as_current_span("view") as view:
        with lock(name, timeout=10) as held:
            fence = held.fence
            assert get_current_span() is view
        assert get_current_span() is view
    hold = telemetry.span(names.HOLD)
    assert parent_of(hold) == view.context.span_id
    assert hold.attributes == {
        names.NAME: name,
        names.ALIAS: "default",
        names.BACKEND: "RedisLockBackend",
        names.GROUP: "other",
        names.FENCE: fence,
        names.OUTCOME: "released",
    }
    assert hold.status.status_code is StatusCode.UNSET
    assert len(telemetry.spans()) == 2


def test_a_wait_has_a_span_beside_that_of_the_hold(telemetry: Telemetry, name: str) -> None:
    """Both are children of the caller's span."""
    holder = lock(name, timeout=10)
    holder.acquire()

    def request() -> int:
        with telemetry.tracer.start_as_current_span("view") as view:
            with lock(name, timeout=10):
                pass
        return view.context.span_id

    with told(signals.lock_waiting) as calls:
        request_ = Background(request)
        eventually(lambda: calls)
        holder.release()
        view = request_.outcome()
    wait = telemetry.span(names.WAIT)
    (hold,) = [span for span in telemetry.spans(names.HOLD) if span.parent]
    assert parent_of(wait) == parent_of(hold) == view
    assert wait.attributes == {
        names.NAME: name,
        names.ALIAS: "default",
        names.BACKEND: "RedisLockBackend",
        names.GROUP: "other",
        names.OUTCOME: "acquired",
    }
    assert wait.start_time <= wait.end_time <= hold.start_time


@pytest.mark.parametrize(
    ("arguments", "reason", "status"),
    [
        ({"blocking_timeout": 0.02}, "timeout", StatusCode.ERROR),
        ({"blocking": False}, "busy", StatusCode.UNSET),
    ],
)
def test_a_lock_that_was_not_acquired(
    telemetry: Telemetry, name: str, arguments: Any, reason: str, status: StatusCode
) -> None:
    """A wait that ran out is an error; a caller that did not want to wait expected it."""
    with lock(name), pytest.raises(LockNotAcquired):
        with telemetry.tracer.start_as_current_span("view") as view, lock(name, **arguments):
            pass
    wait = telemetry.span(names.WAIT)
    assert parent_of(wait) == view.context.span_id
    assert wait.attributes[names.OUTCOME] == reason
    assert wait.status.status_code is status
    assert wait.attributes.get(names.ERROR_TYPE) == ("timeout" if reason == "timeout" else None)


def test_an_unavailable_server_is_an_error(telemetry: Telemetry, name: str, settings: Any) -> None:
    settings.LOCKS = {"default": {"LOCATION": "redis://127.0.0.1:1"}}
    with pytest.raises(LockUnavailable):
        lock(name).acquire()
    wait = telemetry.span(names.WAIT)
    assert wait.attributes[names.OUTCOME] == wait.attributes[names.ERROR_TYPE] == "unavailable"
    assert wait.status.status_code is StatusCode.ERROR


def test_a_release_in_another_thread_ends_the_span(telemetry: Telemetry, name: str) -> None:
    with telemetry.tracer.start_as_current_span("view") as view:
        held = lock(name)
        held.acquire()
    releasing = threading.Thread(target=held.release)
    releasing.start()
    releasing.join()
    hold = telemetry.span(names.HOLD)
    assert parent_of(hold) == view.context.span_id
    assert hold.end_time > view.end_time


def test_asyncio_tasks_keep_their_parents(telemetry: Telemetry, name: str) -> None:
    """Each of several tasks that wait for one lock has its own wait and hold below its own span."""

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
    holds = [span for span in telemetry.spans(names.HOLD) if span.parent]
    assert sorted(map(parent_of, telemetry.spans(names.WAIT))) == sorted(views)
    assert sorted(map(parent_of, holds)) == sorted(views)


def test_a_cancelled_wait_ends_its_span(telemetry: Telemetry, name: str) -> None:
    """It has no outcome: no one was told of one."""

    async def body() -> None:
        async with lock(name, timeout=10):
            request = asyncio.ensure_future(lock(name, timeout=10).aacquire())
            while not calls:
                await asyncio.sleep(0.002)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request

    with told(signals.lock_waiting) as calls:
        asyncio.run(body())
        calls.clear()
    gc.collect()
    with lock(name):
        pass
    assert names.OUTCOME not in telemetry.span(names.WAIT).attributes


def test_a_lost_lock_is_an_error(telemetry: Telemetry, name: str) -> None:
    """The span ends when the loss is noticed."""
    held = lock(name, timeout=10)
    held.acquire()
    locks["default"].force_release(name)
    with pytest.raises(LockLost):
        held.ensure_held()
    hold = telemetry.span(names.HOLD)
    assert hold.attributes[names.OUTCOME] == hold.attributes[names.ERROR_TYPE] == "lost"
    assert hold.status.status_code is StatusCode.ERROR


def test_a_lock_that_is_passed_on_has_a_span_for_each_hold(telemetry: Telemetry, name: str) -> None:
    """Detaching ends one span, taking over begins the next, below the span of who does it."""
    with telemetry.tracer.start_as_current_span("view") as view:
        first = lock(name)
        first.acquire()
        ticket = first.detach(10)
    with telemetry.tracer.start_as_current_span("task") as task:
        second = lock(name)
        second.take_over(ticket)
        second.release()
    holds = telemetry.spans(names.HOLD)
    assert [parent_of(hold) for hold in holds] == [view.context.span_id, task.context.span_id]
    assert outcomes(holds) == [(names.HOLD, "detached"), (names.HOLD, "released")]


def test_several_locks_have_a_span_each(telemetry: Telemetry, name: str) -> None:
    with telemetry.tracer.start_as_current_span("view") as view:
        with lock_many([f"{name}:1", f"{name}:2"]):
            pass
    holds = telemetry.spans(names.HOLD)
    assert {hold.attributes[names.NAME] for hold in holds} == {f"{name}:1", f"{name}:2"}
    assert {parent_of(hold) for hold in holds} == {view.context.span_id}


def test_a_handle_that_is_dropped_while_it_holds_its_lock(telemetry: Telemetry, name: str) -> None:
    """Its span ends with it, and is sent with the next."""
    dropped = lock(name, timeout=10)
    dropped.acquire()
    del dropped
    gc.collect()
    with lock(f"{name}:2"):
        pass
    first, second = telemetry.spans(names.HOLD)
    assert first.attributes[names.NAME] == name
    assert first.end_time < second.start_time or first.end_time < second.end_time


def test_a_forked_child_does_not_end_the_spans_of_its_parent(
    telemetry: Telemetry, name: str
) -> None:
    """The parent's span ends once, in the parent."""
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


@pytest.mark.parametrize("moment", ["on_start", "on_end"])
def test_a_failing_sdk_never_touches_a_lock(
    telemetry: Telemetry, name: str, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What OpenTelemetry raises is logged; acquiring, waiting and releasing work."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the exporter is broken")

    processor = SpanProcessor()
    setattr(processor, moment, fail)
    telemetry.tracers.add_span_processor(processor)
    with lock(name, timeout=10) as held:
        assert not lock(name).acquire(blocking_timeout=0.01)
        held.ensure_held()
    assert lock(name, blocking=False).acquire()
    assert "the exporter is broken" in caplog.text


def test_an_unsampled_trace_has_no_spans(telemetry: Telemetry, name: str) -> None:
    """Below a span that is not sampled none is made."""
    unsampled = Telemetry(ALWAYS_OFF)
    with unsampled.tracer.start_as_current_span("view"), lock(name):
        lock(name).acquire(blocking_timeout=0.01)
    unsampled.shutdown()
    assert telemetry.spans() == []
    assert names.WAIT_DURATION in telemetry.metrics()


def test_instrumenting_twice_changes_nothing(
    telemetry: Telemetry, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The second call logs a warning; the application is silent. Nothing is left connected."""
    LockInstrumentor().instrument()
    assert "instrumented for OpenTelemetry already" in caplog.text
    caplog.clear()
    OpenTelemetryConfig.create("django_redis_lock.contrib.opentelemetry").ready()
    assert not caplog.records
    with lock(name):
        pass
    assert len(telemetry.spans()) == 1
    LockInstrumentor().uninstrument()
    LockInstrumentor().uninstrument()
    assert not signals.lock_waiting.receivers


def test_without_the_api_the_error_says_what_to_install(monkeypatch: Any) -> None:
    """The line in INSTALLED_APPS without the extra names the extra."""
    import importlib
    import sys

    import django_redis_lock.contrib.opentelemetry as package

    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ImproperlyConfigured, match=r"django-redis-lock\[opentelemetry\]"):
        importlib.reload(package)
