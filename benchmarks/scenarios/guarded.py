"""What `single_instance_task` costs a task that nobody else wants to run, in a real worker."""

import os
import random
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter, sleep
from typing import Any

from redis import Redis

from ..celery_cost_app import PORT, RESULTS
from ..celery_worker import CeleryWorker, CeleryWorkerError
from ..contenders import Ours
from ..model import Bench, Chart, Column, Scenario
from ..show import count_spread, ratio_spread
from ..stats import Spread, ratios, spread

CHILDREN = 2
PATIENCE = 120
POLL = 0.002
PLAIN, GUARDED = "plain", Ours.slug

TASKS = {
    PLAIN: ("no guard", "plain", "plain"),
    GUARDED: (Ours.title, "guarded", "named"),
    "fixed": (f"{Ours.title}, fixed lease", "fixed", None),
    "queued": (f'{Ours.title}, scope="queue_and_run"', "queued", None),
}
"""The title of a row, the task that gets a key for each call, and the one with one key for all."""


@dataclass(frozen=True)
class Batch:
    """What came of one batch."""

    sent: float
    """Tasks per second that the sender put into the queue."""
    done: float
    """Tasks per second that the worker did."""
    cpu: float
    """Milliseconds of processor time that the worker took for each."""

    @property
    def per_cpu_second(self) -> float:
        """Tasks for each second of the worker's processor time."""
        return 1000 / self.cpu


class Line:
    """The sender's side of the worker, and the results by which it counts what is done."""

    def __init__(self, app: Any, worker: CeleryWorker, port: int) -> None:
        self.app = app
        self.worker = worker
        self.results = Redis(port=port, db=RESULTS)
        self.batches = 0

    def batch(self, name: str, count: int) -> Batch:
        """Fill a queue, then let the worker empty it.

        The first tenth is not timed: within it the worker gets going.
        """
        self.batches += 1
        queue = f"cost-{self.batches}"
        self.results.flushdb()
        task = self.app.tasks[name]
        began = perf_counter()
        for number in range(count):
            task.apply_async((number,), queue=queue)
        sent = count / (perf_counter() - began)
        self.app.control.add_consumer(queue)
        first = self._done(count // 10)
        began, before = perf_counter(), self.worker.cpu_seconds()
        last = self._done(count)
        took, used = perf_counter() - began, self.worker.cpu_seconds() - before
        self.app.control.cancel_consumer(queue)
        tasks = last - first
        return Batch(sent, tasks / took, 1000 * used / tasks)

    def one_by_one(self, name: str, count: int) -> float:
        """Send each task when the one before it is done; return tasks per second, by the median.

        Now and then Celery takes a tenth of a second over one, guarded or not, and more than the
        rest together.
        """
        task = self.app.tasks[name]
        seconds = []
        for number in range(count):
            began = perf_counter()
            answer = task.apply_async((number,), queue="cost").get(timeout=PATIENCE)
            assert answer is None, answer  # not skipped
            seconds.append(perf_counter() - began)
        return 1 / median(seconds)

    def _done(self, count: int) -> int:
        until = perf_counter() + PATIENCE
        while (done := int(self.results.dbsize())) < count:
            if perf_counter() > until:
                raise TimeoutError(f"{done} of {count} tasks were done within {PATIENCE} s")
            sleep(POLL)
        return done


def measure(bench: Bench) -> None:
    """Let each form of the task have its turn in each round, in an order drawn anew."""
    environment = {PORT: str(bench.port)}
    os.environ |= environment
    options = ("--concurrency", str(CHILDREN), "--loglevel", "WARNING", "--queues", "cost")
    try:
        with CeleryWorker("benchmarks.celery_cost_app", environment, *options) as worker:
            from ..celery_cost_app import make_app

            compare(bench, Line(make_app(), worker, bench.port))
    except (CeleryWorkerError, TimeoutError) as error:
        bench.rows[GUARDED] = {"error": str(error)}


def compare(bench: Bench, line: Line) -> None:
    """Measure with a worker that is up, each task once untimed."""
    sizes = bench.sizes
    batches: dict[str, list[Batch]] = {slug: [] for slug in TASKS}
    singles: dict[str, list[float]] = {slug: [] for slug, row in TASKS.items() if row[2]}
    for _, each, _ in TASKS.values():
        line.batch(each, sizes.task_batch // 5)
    for _ in range(sizes.task_rounds):
        for slug in random.sample(list(TASKS), len(TASKS)):
            batches[slug].append(line.batch(TASKS[slug][1], sizes.task_batch))
        for slug in random.sample(list(singles), len(singles)):
            singles[slug].append(line.one_by_one(str(TASKS[slug][2]), sizes.task_singles))
    for slug, (title, _, _) in TASKS.items():
        bench.rows[slug] = {
            "title": title,
            "tasks_per_second": spread([batch.done for batch in batches[slug]]),
            "ratio": _compared("done", batches, slug),
            "cpu_milliseconds": spread([batch.cpu for batch in batches[slug]]),
            "cpu_ratio": _compared("per_cpu_second", batches, slug),
            "sent_ratio": _compared("sent", batches, slug),
            "single_ratio": ratios(singles[slug], singles[PLAIN]) if slug in singles else None,
            "rounds": [asdict(batch) for batch in batches[slug]],
            "singles": singles.get(slug),
        }


def _compared(what: str, batches: dict[str, list[Batch]], slug: str) -> Spread | None:
    values, base = ([getattr(batch, what) for batch in batches[of]] for of in (slug, PLAIN))
    return ratios(values, base)


SCENARIO = Scenario(
    name="guarded",
    title="The cost of `single_instance_task`",
    how=(
        f"A Celery task that does nothing, in a real worker (prefork, {CHILDREN} children), broker "
        "and results on the same server. Each of {task_rounds} rounds fills a queue with "
        "{task_batch:,} tasks, every one with a key of its own, and times how fast the worker "
        "empties it; then it sends {task_singles} tasks one by one, each when the one before it is "
        "done, under the name of the task as the only key. The ratios are taken within each round, "
        "to the same task without a guard."
    ),
    measure=measure,
    columns=(
        Column("tasks_per_second", "tasks/s", count_spread),
        Column("ratio", "ratio to no guard", ratio_spread),
        Column("single_ratio", "the same, one by one", ratio_spread),
        Column("cpu_milliseconds", "worker's CPU ms a task", count_spread),
        Column("cpu_ratio", "tasks per CPU second, ratio", ratio_spread),
        Column("sent_ratio", "sent/s, ratio to no guard", ratio_spread),
    ),
    charts=(
        Chart(
            "A Celery task that does nothing",
            {"tasks_per_second.median": ""},
            "tasks per second",
            "higher",
        ),
    ),
)
