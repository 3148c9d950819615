"""What becomes of tasks over a limit: they are parked, wait in their worker, or come again."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from celery import Celery
from celery.signals import task_postrun, task_prerun
from redis import Redis

from benchmarks.contenders import configure
from benchmarks.scenarios import Bench, Figures, medians, server_seconds
from benchmarks.tasks import BROKER, LOCKS, PORT, RESULTS
from example_project.keeper import Keeper
from example_project.service import Service, start_worker

BROKER_URL = "BENCHMARK_BROKER"
"""The environment variable with the address of the broker."""
NOTES = 4
"""The database of the server in which the tasks leave their notes."""
LIMIT = 3
WORK = {"": (0.01, 1000, 60), ", long": (0.5, 48, 12)}
"""For how many seconds tasks work, and how many there are; the last one is for ``--quick``."""
WORKERS, CHILDREN = 2, 4
APART = 0.05
"""Seconds between two of the tasks that have no guard."""
PATIENCE = 300
GUARDS: dict[str, dict[str, Any]] = {
    "room": {"concurrency": 1000},
    "park": {"on_conflict": "park"},
    "wait": {"on_conflict": "wait", "blocking_timeout": None},
    "retry": {"on_conflict": "retry"},
}
"""By what a task does that finds no room; with ``room`` each finds some."""

turns = count()


def make_app(broker: str) -> Celery:
    """Return the app of the workers; in them it takes notes of what runs when."""
    server = f"redis://127.0.0.1:{os.environ[PORT]}"
    configure(f"{server}/{LOCKS}")
    from django_redis_lock.celery import single_instance_task

    notes = Redis.from_url(f"{server}/{NOTES}")
    app = Celery("limits", broker=broker, backend=f"{server}/{RESULTS}", set_as_current=False)
    app.conf.broker_connection_retry_on_startup = True

    def work(number: int, seconds: float) -> None:
        began = monotonic()
        sleep(seconds)
        notes.rpush("runs", f"{number} {began} {monotonic()}")

    def other(sent: float) -> None:
        notes.rpush("others", monotonic() - sent)

    app.task(name="other", shared=False)(other)
    for name, options in GUARDS.items():
        guard = single_instance_task(**{"key": name, "concurrency": LIMIT, **options})
        app.task(name=name, shared=False)(guard(work))
    began: dict[str, float] = {}

    @task_prerun.connect(weak=False)
    def note_start(task_id: str, **_: Any) -> None:
        began[task_id] = monotonic()

    @task_postrun.connect(weak=False)
    def note_end(task_id: str, task: Any, **_: Any) -> None:
        seconds = monotonic() - began.pop(task_id)
        if task.name in GUARDS:
            notes.incrbyfloat("occupied", seconds)

    return app


@contextmanager
def brokers(bench: Bench) -> Iterator[dict[str, str]]:
    """Yield the addresses of Redis and, if it is installed, of a RabbitMQ that is started."""
    found = {"Redis": f"redis://127.0.0.1:{os.environ[PORT]}/{BROKER}"}
    with ExitStack() as stack:
        if shutil.which("rabbitmq-server") and not bench.quick:
            from tests.brokers.rabbitmq import rabbitmq

            found["RabbitMQ"] = f"amqp://127.0.0.1:{stack.enter_context(rabbitmq()).port}//"
        yield found


def over_a_limit(bench: Bench) -> Figures:
    """1,000 tasks of 10 ms and 48 of 0.5 s, 3 at once, on two workers of 4, beside others."""
    os.environ[PORT] = str(bench.admin.connection_pool.connection_kwargs["port"])
    brief = replace(bench)
    brief.rounds = 1 if bench.quick else 3
    figures: Figures = {}
    with brokers(bench) as found:
        for title, url in found.items():
            with crew_of(url) as crew:
                crew.measure("room", 20, 0.01)
                for kind, (seconds, *numbers) in WORK.items():
                    measure = partial(_measure, crew, numbers[bench.quick], seconds)
                    rows = medians(brief.compare(list(GUARDS), measure))
                    figures |= {f"{title}, {name}{kind}": row for name, row in rows.items()}
    return figures


def _measure(crew: Crew, number: int, seconds: float, name: str, turn: int) -> dict[str, float]:
    return crew.measure(name, number, seconds)


@contextmanager
def crew_of(broker: str) -> Iterator[Crew]:
    directory = Path(tempfile.mkdtemp(prefix="celery-"))
    keeper = Keeper(directory)
    path = str(Path(__file__).parents[1])
    env = {**os.environ, "PYTHONDEVMODE": "", "PYTHONPATH": path, BROKER_URL: broker}
    options = ("--concurrency", str(CHILDREN), "--loglevel", "INFO", "--queues", "others")
    try:
        workers = [
            start_worker(keeper, directory, "benchmarks.limits:app", *options, env=env)
            for _ in range(WORKERS)
        ]
        for worker in workers:
            worker.wait_for(lambda worker=worker: worker.count(" ready.") > 0)
        with Redis(port=int(os.environ[PORT]), db=NOTES) as notes, make_app(broker) as app:
            yield Crew(app, workers, notes)
    finally:
        keeper.close()


@dataclass
class Crew:
    """Workers, and who sends to them and reads their notes."""

    app: Celery
    workers: list[Service]
    notes: Redis

    def measure(self, name: str, number: int, seconds: float) -> dict[str, float]:
        """Fill a queue and let the workers empty it.

        Messages, and the processor time of workers and Redis, are those of one task. ``child s`` is
        for how long children were occupied beyond the work; a pair of tasks is swapped if the later
        one began first.
        """
        queue = f"limits-{next(turns)}"
        self.notes.flushdb()
        received, used = self._received(name), self._processor_seconds()
        for each in range(number):
            self.app.tasks[name].apply_async((each, seconds), queue=queue)
        enough = threading.Event()
        others = threading.Thread(target=self._send_others, args=(enough,))
        began = monotonic()
        self.app.control.add_consumer(queue)
        others.start()
        self._wait_for("runs", number)
        enough.set()
        others.join()
        self._wait_for("others", int(self.notes.get("sent") or 0))
        sleep(0.5)  # the notes of the last one
        self.app.control.cancel_consumer(queue)
        used = self._processor_seconds() - used
        runs = [line.decode().split() for line in self.notes.lrange("runs", 0, -1)]
        spans = sorted((float(start), float(end), int(each)) for each, start, end in runs)
        most = max(sum(other[0] <= span[0] < other[1] for other in spans) for span in spans)
        if name != "room" and most > LIMIT:
            raise ValueError(f"{most} {name} ran at once")
        order = [each for _, _, each in spans]
        pairs = [a > b for at, a in enumerate(order) for b in order[at + 1 :]]
        delays = [float(each) for each in self.notes.lrange("others", 0, -1)]
        return {
            "tasks/s": number / (max(end for _, end, _ in spans) - began),
            "messages": (self._received(name) - received) / number,
            "child s": float(self.notes.get("occupied") or 0) - sum(b - a for a, b, _ in spans),
            "longest delay ms": 1e3 * max(delays, default=0),
            "swapped %": 100 * sum(pairs) / len(pairs),
            "processor ms": 1e3 * used / number,
        }

    def _send_others(self, enough: threading.Event) -> None:
        while not enough.wait(APART):
            self.app.tasks["other"].apply_async((monotonic(),), queue="others")
            self.notes.incr("sent")

    def _wait_for(self, what: str, number: int) -> None:
        until = monotonic() + PATIENCE
        while (done := int(self.notes.llen(what))) < number:
            if monotonic() > until:
                raise TimeoutError(f"{done} of {number} {what} within {PATIENCE} s")
            sleep(0.02)

    def _received(self, name: str) -> int:
        return sum(worker.count(f"Task {name}[", "] received") for worker in self.workers)

    def _processor_seconds(self) -> float:
        """Return what the workers with their children, and the server, have used."""
        sessions = {str(worker.process.pid) for worker in self.workers}
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if fields[3] in sessions:
                ticks += sum(map(int, fields[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK") + server_seconds(self.notes)


def __getattr__(name: str) -> Any:
    """Make the app when a worker asks for it; the benchmark imports this module without it."""
    if name != "app":
        raise AttributeError(name)
    return make_app(os.environ[BROKER_URL])
