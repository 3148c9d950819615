"""Tasks that wait in each kind of pool for a lock that goes to a message."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery.result import AsyncResult

from example_project.embedded import EmbeddedServer
from tests.apps.celery import scopes as tasks
from tests.apps.celery.app import app
from tests.tools import eventually, waiters
from tests.tools.celery_worker import WAIT, Worker, all_free, events, go, key_of, ran, started
from tests.tools.celery_worker import worker_of_module as run_worker


@pytest.fixture(scope="module", params=["prefork", "threads", "gevent", "solo"])
def worker(
    request: pytest.FixtureRequest,
    session_server: EmbeddedServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Worker]:
    """A worker that has two tasks in hand at a time, or one."""
    directory = tmp_path_factory.mktemp("worker")
    with run_worker(session_server, directory, pool=request.param, concurrency=2) as worker:
        yield worker


def test_nobody_occupies_a_worker_that_the_holder_needs(worker: Worker, name: str) -> None:
    """The run that all wait for retries; its message gets the worker that it needs."""
    with events() as client:
        first = tasks.returning.delay(name)
        started(client, name)
        others = [app.send_task(tasks.returning.name, [name]).id for _ in range(3)]
        if "solo" not in worker.log.name:  # the others are in its queue
            eventually(lambda: waiters(key_of(tasks.returning, name)), "one of the others to wait")
        go(client, name, say="retry")
        go(client, name, times=4)
        assert first.get(timeout=WAIT) == 1
        assert [AsyncResult(each, app=app).get(timeout=WAIT) for each in others] == [0] * 3
        assert ran(client, name) == ["1"] * 5
        all_free(name)
