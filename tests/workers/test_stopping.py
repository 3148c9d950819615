"""Workers that are to stop while tasks wait in them for their locks."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import redis

from django_redis_lock import lock
from tests.apps.celery import deaths as tasks
from tests.apps.celery.app import app
from tests.tools import eventually, waiters
from tests.tools.celery_worker import WAIT, Worker, go, messages, running_worker
from tests.workers.conftest import check_one_at_a_time


def by_signal(worker: Worker) -> None:
    worker.process.send_signal(signal.SIGTERM)


def by_command(worker: Worker) -> None:
    app.control.shutdown()


STOPS: dict[str, tuple[int, Callable[[Worker], None]]] = {
    "prefork": (2, by_signal),
    "threads": (2, by_command),
    "gevent": (2, by_signal),
    "solo": (1, by_signal),
}
"""The pools, how many tasks each runs at a time, and how it is told to stop."""


@pytest.mark.usefixtures("server_of_deaths")
def test_messages_of_waiting_tasks_go_back_to_the_queue(
    client: redis.Redis, name: str, tmp_path: Path
) -> None:
    """From workers of each pool, acknowledged early or late; at last each task runs once."""
    start = partial(running_worker, tmp_path, queue=name)
    with lock(name):
        results = [
            task.apply_async((name,), queue=name)
            for task in (tasks.successor, tasks.late_successor)
        ]
        for pool, (concurrency, stop) in STOPS.items():
            with start(pool=pool, concurrency=concurrency) as worker:
                eventually(lambda number=concurrency: waiters(name) == number)
                stop(worker)
                assert worker.process.wait(WAIT) == 0, worker.log.read_text()
            assert waiters(name) == 0
            assert messages(name) == len(results)
    with start():
        go(client, name, times=2)
        assert [result.get(timeout=WAIT) for result in results] == ["go", "go"]
    check_one_at_a_time(client, name, runs=2)
