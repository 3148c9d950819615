"""Time limits, shutdowns, and pools whose tasks share a process."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import celery
import pytest
import redis
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from django_redis_lock import lock, locks
from tests.apps.celery import deaths as tasks
from tests.tools import alive, eventually, waiters
from tests.tools.celery_worker import WAIT, Worker, free, go, started
from tests.tools.proxy import Proxy
from tests.workers.conftest import (
    BUSY,
    check_one_at_a_time,
    free_beyond_the_proxy,
    holder_of,
    waiting,
    worker_of_deaths,
)


def test_hard_time_limit_lets_nobody_begin_before_the_child_is_dead(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """The next run begins after the body was ended, or its process; then at once."""
    limited = {
        f"{name}-waiting": tasks.work.apply_async((f"{name}-waiting",), time_limit=1),
        f"{name}-busy": tasks.work.apply_async((f"{name}-busy", math.inf), time_limit=1),
    }
    pids = {each: started(client, each) for each in limited}
    successors = {each: tasks.successor.delay(each) for each in limited}
    for each in limited:
        began = started(client, each)
        assert began != pids[each]
    assert not alive(pids[f"{name}-busy"])
    for each, result in limited.items():
        with pytest.raises(TimeLimitExceeded):
            result.get(timeout=WAIT)
        go(client, each)
        assert successors[each].get(timeout=WAIT) == "go"
        check_one_at_a_time(client, each, runs=2)


def test_soft_time_limit_in_the_body_frees_the_lock(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    result = tasks.work.apply_async((name,), soft_time_limit=1)
    started(client, name)
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=WAIT)
    free(name)


def test_soft_time_limit_while_acquiring_leaves_no_waiter(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    with lock(name) as ours:
        result = tasks.successor.apply_async((name,), soft_time_limit=3)
        waiting(name)
        with pytest.raises(SoftTimeLimitExceeded):
            result.get(timeout=WAIT)
        eventually(lambda: waiters(name) == 0, "no waiter")
        ours.ensure_held()
    assert locks["default"].holder(name) is None
    check_one_at_a_time(client, name, runs=0)


def test_soft_time_limit_while_releasing_keeps_the_result(
    client: redis.Redis, worker: Worker, proxy: Proxy, name: str
) -> None:
    """Work that is done stays done, and its lock is released as soon as the server answers."""
    result = tasks.proxied.apply_async((name,), soft_time_limit=2)
    started(client, name)
    proxy.silence()
    try:
        go(client, name)
        assert result.get(timeout=WAIT) == "go"
        free_beyond_the_proxy(name)
    finally:
        proxy.cut()
    assert worker.lines(f"[{result.id}] reached its soft time limit after its end")


def test_warm_shutdown_lets_tasks_end_and_leaves_no_lock(
    client: redis.Redis, name: str, tmp_path: Path
) -> None:
    queue = f"queue-{name}"
    with worker_of_deaths(tmp_path, queue=queue) as worker:
        results = {}
        for each, task in ((f"{name}-early", tasks.work), (f"{name}-late", tasks.late)):
            results[each] = task.apply_async((each,), queue=queue)
            started(client, each)
        worker.process.send_signal(signal.SIGTERM)
        eventually(lambda: worker.lines("Warm shutdown"), "the shutdown")
        for each, result in results.items():
            assert holder_of(each).task_id == result.id
            go(client, each)
        worker.process.wait(WAIT)
        assert [locks["default"].holder(each) for each in results] == [None, None]
        assert [result.get(timeout=WAIT) for result in results.values()] == ["go", "go"]


def test_cold_shutdown_leaves_no_lock_beyond_its_lease(
    client: redis.Redis, name: str, tmp_path: Path
) -> None:
    sent = {f"{name}-early": tasks.work, f"{name}-late": tasks.late, f"{name}-busy": tasks.brief}
    queue = f"queue-{name}"
    with worker_of_deaths(tmp_path, queue=queue, concurrency=3) as worker:
        for each, task in sent.items():
            args = (each, BUSY) if task is tasks.brief else (each,)
            task.apply_async(args, queue=queue)
            started(client, each)
        worker.process.send_signal(signal.SIGQUIT)
        for each in sent:
            free(each)
        worker.process.wait(WAIT)
        assert [locks["default"].holder(each) for each in sent] == [None] * 3
    for each in sent:
        check_one_at_a_time(client, each, runs=1)


@pytest.mark.parametrize("timeout", [1] if celery.VERSION >= (5, 5) else [])
def test_soft_shutdown_leaves_no_lock(
    client: redis.Redis, name: str, tmp_path: Path, timeout: int
) -> None:
    ending, cut_off = f"{name}-ending", f"{name}-cut-off"
    options = ("--", f"worker_soft_shutdown_timeout={timeout}")
    queue = f"queue-{name}"
    with worker_of_deaths(tmp_path, *options, queue=queue) as worker:
        results = {}
        for each in (ending, cut_off):
            results[each] = tasks.late.apply_async((each,), queue=queue)
            started(client, each)
        worker.process.send_signal(signal.SIGQUIT)
        eventually(lambda: worker.lines("Initiating Soft Shutdown"), "the shutdown")
        go(client, ending)
        assert results[ending].get(timeout=WAIT) == "go"
        assert holder_of(cut_off).task_id == results[cut_off].id
        free(ending)
        free(cut_off)
        worker.process.wait(WAIT)
    for each in (ending, cut_off):
        check_one_at_a_time(client, each, runs=1)


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
def test_tasks_of_one_process_have_locks_of_their_own(
    client: redis.Redis, name: str, tmp_path: Path, pool: str
) -> None:
    """Keys run side by side, duplicates are skipped or wait, and nobody ends another's hold."""
    queue = f"queue-{name}"
    one, two = f"{name}-one", f"{name}-two"
    with worker_of_deaths(tmp_path, pool=pool, queue=queue, concurrency=8) as worker:
        first, second = [tasks.work.apply_async((each,), queue=queue) for each in (one, two)]
        assert {started(client, each) for each in (one, two)} == {worker.process.pid}
        before = {each: holder_of(each) for each in (one, two)}
        assert [holder.task_id for holder in before.values()] == [first.id, second.id]
        assert before[one].token_id != before[two].token_id
        for _ in range(3):
            duplicate = tasks.work.apply_async((one,), queue=queue)
            assert duplicate.get(timeout=WAIT)["holder"]["task_id"] == first.id
        third = tasks.successor.apply_async((one,), queue=queue)
        waiting(one)
        go(client, one, say="look")
        known = {"fence": before[one].fence, "lost": False, "error": None}
        assert first.get(timeout=WAIT) == known
        started(client, one)
        assert holder_of(one).task_id == third.id
        assert holder_of(two).token_id == before[two].token_id
        for each, result in ((one, third), (two, second)):
            go(client, each)
            assert result.get(timeout=WAIT) == "go"
        for each, runs in ((one, 2), (two, 1)):
            free(each)
            check_one_at_a_time(client, each, runs)
