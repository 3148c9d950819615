"""What locks do is counted, by group."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from celery import shared_task
from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

from django_redis_lock import lock, lock_many, locks, signals
from django_redis_lock.celery import single_instance_task
from django_redis_lock.contrib import prometheus
from django_redis_lock.contrib.prometheus import metrics
from django_redis_lock.exceptions import LockLost
from example_project.embedded import EmbeddedServer
from tests.contrib.prometheus.conftest import Value
from tests.tools import Background, Child

NAME = "django_redis_lock.contrib.prometheus"
GROUPS = {"GROUPS": {"product:*": "product"}}


@pytest.fixture(autouse=True)
def _grouped(settings: Any, server: EmbeddedServer) -> None:
    settings.LOCKS = {"default": {"LOCATION": server.url(), "OPERATORS": GROUPS}}


def test_holds_are_counted_by_group(settings: Any, value: Value) -> None:
    """The name of a lock is in no label, only the group that the settings give it at the time."""
    for name in ("product:1", "product:2", "report"):
        with lock(name, timeout=5):
            pass
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "OPERATORS": {}}}
    with lock("product:1", timeout=5):
        pass
    for group, count in (("product", 2), ("other", 2)):
        assert value("acquired_total", group=group) == count
        assert value("wait_seconds_count", group=group) == count
        assert value("hold_seconds_count", group=group) == count
        assert value("hold_seconds_sum", group=group) > 0


def test_failures_are_counted_by_reason_and_their_waits_observed(
    settings: Any, value: Value
) -> None:
    """A wait that ran out shows in the histogram of waits, as one that succeeded does."""
    with lock("product:1", timeout=5):
        lock("product:1", blocking=False).acquire()
        lock("product:1", blocking_timeout=0.03).acquire()
        lock_many(["product:1", "product:2"], blocking=False).acquire()
        Background(lock("product:1", max_waiters=0).acquire).outcome()
    found = {
        each: value("not_acquired_total", group="product", reason=each) for each in metrics.REASONS
    }
    assert found == {"timeout": 1, "busy": 2, "full": 1, "unavailable": 0}
    assert value("wait_seconds_count", group="product") == 5
    assert value("wait_seconds_sum", group="product") > 0.03
    assert value("hold_seconds_count", group="product") == 1


def test_forced_releases_and_losses_are_counted(value: Value) -> None:
    held = lock("product:1", timeout=5)
    held.acquire()
    locks["default"].force_release("product:1")
    with pytest.raises(LockLost):
        held.release()
    dead = lock("report", timeout=5)
    dead.acquire()
    locks["default"].free("report", dead.token_id, reason="its process has died")
    assert value("force_released_total", group="product") == 1
    assert value("lost_total", group="product") == 1
    assert value("freed_total", group="other") == 1
    assert value("force_released_total", group="other") == 0
    assert value("hold_seconds_count", group="product") == 0


def test_signal_handler_does_not_wait_for_what_it_has_interrupted(
    value: Value, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locks by which a metric is counted are not reentrant; what the handler does is not."""
    find = metrics._group
    told = {"signal": signals.lock_lost, "using": "default", "sender": type(locks["default"])}

    def interrupted(backend: Any, name: str) -> Any:
        metrics.count(name="report", **told)
        return find(backend, name)

    with monkeypatch.context() as patched:
        patched.setattr(metrics, "_group", interrupted)
        for _ in range(2):
            metrics.count(name="product:1", **told)
    assert value("lost_total", group="product") == 2
    assert value("lost_total", group="other") == 0


def test_skipped_duplicates_are_counted_by_task_and_policy(value: Value) -> None:
    @shared_task(name="prometheus.skips")
    @single_instance_task
    def skips() -> None: ...

    with lock("prometheus.skips", timeout=5):
        skips.apply()
    labels = {"using": "", "backend": "", "task": "prometheus.skips", "policy": "skip"}
    assert value("tasks_skipped_total", **labels) == 1


@pytest.mark.parametrize("blocks", [False, True])
def test_asyncio_code_counts_without_another_thread(
    value: Value, blocks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Only a receiver that may block needs a second thread. One that fails is logged."""
    threads = set()

    def note(**kwargs: Any) -> None:
        threads.add(threading.get_ident())
        raise RuntimeError("the receiver's own fault")

    async def hold() -> None:
        async with lock("product:1", timeout=5):
            pass

    receiver = note if blocks else signals.never_blocks(note)
    signals.lock_acquired.connect(receiver)
    try:
        asyncio.run(hold())
    finally:
        signals.lock_acquired.disconnect(receiver)
    assert (threads == {threading.get_ident()}) is not blocks
    assert value("acquired_total", group="product") == 1
    assert value("hold_seconds_count", group="product") == 1
    assert "the receiver's own fault" in caplog.text


def test_weak_method_goes_with_its_object() -> None:
    called = []

    class Counting:
        @signals.never_blocks
        def note(self, **kwargs: Any) -> None:
            called.append(kwargs["name"])

    counting = Counting()
    signals.lock_acquired.connect(counting.note)
    for name in ("product:1", "product:2"):
        with lock(name, timeout=5):
            counting = None  # type: ignore[assignment]
            gc.collect()
    assert called == ["product:1"]


COUNTING = """
    from django_redis_lock import signals
    from django_redis_lock.contrib.prometheus import metrics
    kind = type(locks["locmem"])
    def count():
        metrics.count(signals.lock_unavailable, sender=kind, using="locmem")
    def count_on():
        while True:
            count()
    for _ in range(3):
        threading.Thread(target=count_on, daemon=True).start()
    codes = []
    for _ in range(4):
        pid = os.fork()
        if not pid:
            import signal
            signal.alarm(30)
            count()
            os._exit(0)
        codes.append(os.waitpid(pid, 0)[1])
    say(codes)
"""


@pytest.mark.timed
def test_child_forked_while_a_thread_counts_can_count() -> None:
    """A Celery worker's parent frees locks in a thread, and forks the next child meanwhile."""
    with Child(COUNTING) as child:
        assert child.hear() == str([0] * 4)


def test_what_the_app_needs_is_missed_when_django_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each acquired lock would log an error."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "missing"))
    with pytest.raises(ImproperlyConfigured, match="missing', which is not a directory"):
        AppConfig.create(NAME).ready()
    monkeypatch.delitem(sys.modules, metrics.__name__)
    monkeypatch.delattr(prometheus, "metrics")
    for module in [name for name in sys.modules if name.partition(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImproperlyConfigured, match=r"django-redis-lock\[prometheus\]"):
        AppConfig.create(NAME).ready()
