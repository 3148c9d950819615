"""What ``single_instance_task`` costs a Celery task that does nothing, in a real worker."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from celery import Celery
from redis import Redis

from benchmarks.contenders import BEFORE, configure
from benchmarks.scenarios import Bench, Figures, medians
from example_project.keeper import Keeper
from example_project.service import start_worker

PORT = "BENCHMARK_PORT"
"""The environment variable with the port of the server."""
BROKER, RESULTS, LOCKS = 1, 2, 3
"""The databases of the server."""
PATIENCE = 120
GUARDS = ("plain", "run", "queue_and_run")


def make_app() -> Celery:
    server = f"redis://127.0.0.1:{os.environ[PORT]}"
    configure(f"{server}/{LOCKS}")
    from django_redis_lock.celery import single_instance_task

    app = Celery("benchmark", broker=f"{server}/{BROKER}", backend=f"{server}/{RESULTS}")
    app.conf.broker_connection_retry_on_startup = True
    for scope in GUARDS:

        def nothing(number: int) -> None:
            """Do nothing."""

        task = app.task(name=scope)(nothing)
        if scope != "plain":
            single_instance_task(key=scope + ":{number}", scope=scope)(task)
    return app


def guarded(bench: Bench) -> Figures:
    """Tasks a second that a worker with two children does, bare and guarded."""
    os.environ[PORT] = str(bench.admin.connection_pool.connection_kwargs["port"])
    figures = _measure(bench, "")
    if bench.before:
        figures |= {f"{BEFORE}, {name}": row for name, row in _measure(bench, bench.before).items()}
    return figures


@contextmanager
def running_worker(app: str, *options: str, **env: str) -> Iterator[None]:
    """Run a worker with two children until the end of the block."""
    directory = Path(tempfile.mkdtemp(prefix="celery-"))
    keeper = Keeper(directory)
    options = ("--concurrency", "2", "--loglevel", "INFO", *options)
    try:
        worker = start_worker(keeper, directory, app, *options, env={**os.environ, **env})
        worker.wait_for(lambda: worker.count(" ready.") > 0)
        yield
    finally:
        keeper.close()


def _measure(bench: Bench, checkout: str) -> Figures:
    path = os.pathsep.join(filter(None, [checkout, str(Path(__file__).parents[1])]))
    env = {"PYTHONDEVMODE": "", "PYTHONPATH": path}
    with running_worker("benchmarks.tasks:app", "--queues", "benchmark", **env):
        return _compare(bench)


def _compare(bench: Bench) -> Figures:
    count = 100 if bench.quick else 300
    app = _sender()
    results = Redis(port=int(os.environ[PORT]), db=RESULTS)
    turns = iter(range(1_000_000))

    def batch(name: str) -> dict[str, float]:
        """Fill a queue and let the worker empty it; the first tenth is not timed."""
        queue = f"benchmark-{next(turns)}"
        results.flushdb()
        for number in range(count):
            app.tasks[name].apply_async((number,), queue=queue)
        app.control.add_consumer(queue)
        first = _done(results, count // 10)
        began = perf_counter()
        last = _done(results, count)
        took = perf_counter() - began
        app.control.cancel_consumer(queue)
        return {"tasks/s": (last - first) / took}

    for name in GUARDS:
        batch(name)
    found = bench.compare(list(GUARDS), lambda name, _: batch(name))
    return medians(found, **{"tasks/s": "plain"})


def _done(results: Redis, count: int) -> int:
    until = perf_counter() + PATIENCE
    while (done := int(results.dbsize())) < count:
        if perf_counter() > until:
            raise TimeoutError(f"{done} of {count} tasks were done within {PATIENCE} s")
        sleep(0.002)
    return done


_made: list[Celery] = []


def _sender() -> Celery:
    if not _made:
        _made.append(make_app())
    return _made[0]


def __getattr__(name: str) -> Any:
    """Make the app when the worker asks for it; the benchmark imports this module without it."""
    if name != "app":
        raise AttributeError(name)
    return _sender()
