"""What `single_instance_task` costs a task without duplicates, in a real worker."""

import os
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter, sleep
from typing import Any

from redis import Redis

from benchmarks.bench import Bench, Chart, Scenario
from benchmarks.contenders import Ours
from benchmarks.frame.celery_worker import celery_worker
from benchmarks.frame.figures import Spread, count_spread, ratio_spread, ratios, spread
from benchmarks.frame.processes import cpu_seconds, group
from benchmarks.frame.table import Column
from benchmarks.scenarios.celery_cost_app import PORT, RESULTS, make_app
from example_project.service import Service, ServiceError

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
"""The title of a row, the task with a key for each call, and the task with one key for all."""


@dataclass(frozen=True)
class Batch:
    sent: float
    """Tasks sent per second."""
    done: float
    """Tasks done per second."""
    cpu: float
    """CPU time of the worker per task, in milliseconds."""

    @property
    def per_cpu_second(self) -> float:
        """Tasks per second of the worker's CPU time."""
        return 1000 / self.cpu


class Sender:
    """Sends tasks to the worker, and counts what is done by the results."""

    def __init__(self, app: Any, worker: Service, port: int) -> None:
        self.app = app
        self.worker = worker
        self.results = Redis(port=port, db=RESULTS)
        self.batches = 0

    def batch(self, name: str, count: int) -> Batch:
        """Fill a queue and let the worker empty it; the first tenth is not timed."""
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
        began, before = perf_counter(), self._cpu()
        last = self._done(count)
        took, used = perf_counter() - began, self._cpu() - before
        self.app.control.cancel_consumer(queue)
        tasks = last - first
        return Batch(sent, tasks / took, 1000 * used / tasks)

    def one_by_one(self, name: str, count: int) -> float:
        """Send each task once the one before it is done; return tasks per second.

        It is the median's rate: now and then Celery takes a tenth of a second for a task, guarded
        or not, more than all others together.
        """
        task = self.app.tasks[name]
        seconds = []
        for number in range(count):
            began = perf_counter()
            answer = task.apply_async((number,), queue="cost").get(timeout=PATIENCE)
            assert answer is None, answer  # not skipped
            seconds.append(perf_counter() - began)
        return 1 / median(seconds)

    def _cpu(self) -> float:
        return cpu_seconds(group(self.worker.process.pid))

    def _done(self, count: int) -> int:
        until = perf_counter() + PATIENCE
        while (done := int(self.results.dbsize())) < count:
            if perf_counter() > until:
                raise TimeoutError(f"{done} of {count} tasks were done within {PATIENCE} s")
            sleep(POLL)
        return done


def measure(bench: Bench) -> None:
    os.environ[PORT] = str(bench.port)
    options = ("--concurrency", str(CHILDREN), "--loglevel", "WARNING", "--queues", "cost")
    try:
        with celery_worker("benchmarks.scenarios.celery_cost_app", *options) as worker:
            compare(bench, Sender(make_app(), worker, bench.port))
    except (ServiceError, TimeoutError) as error:
        bench.rows[GUARDED] = {"error": str(error)}


def compare(bench: Bench, sender: Sender) -> None:
    sizes = bench.sizes
    for _, each, _ in TASKS.values():
        sender.batch(each, sizes.task_batch // 5)

    def once(slug: str, _turn: int) -> tuple[Batch, float | None]:
        _, each, named = TASKS[slug]
        batch = sender.batch(each, sizes.task_batch)
        return batch, sender.one_by_one(named, sizes.task_singles) if named else None

    found = bench.run.rounds(sizes.task_rounds, list(TASKS), once)
    batches = {slug: [batch for batch, _ in each] for slug, each in found.items()}
    singles = {slug: [rate for _, rate in each if rate] for slug, each in found.items()}
    for slug, (title, _, _) in TASKS.items():
        bench.rows[slug] = {
            "title": title,
            "tasks_per_second": spread([batch.done for batch in batches[slug]]),
            "ratio": _compared("done", batches, slug),
            "cpu_milliseconds": spread([batch.cpu for batch in batches[slug]]),
            "cpu_ratio": _compared("per_cpu_second", batches, slug),
            "sent_ratio": _compared("sent", batches, slug),
            "single_ratio": ratios(singles[slug], singles[PLAIN]),
            "rounds": [asdict(batch) for batch in batches[slug]],
            "singles": singles[slug],
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
        "{task_batch:,} tasks, each with its own key, and times how fast the worker empties it; "
        "then it sends {task_singles} tasks one by one, each once the one before it is done, with "
        "the name of the task as the only key. The ratios are taken within each round, to the "
        "same task without a guard."
    ),
    measure=measure,
    seconds=lambda sizes: (
        12 + sizes.task_rounds * (sizes.task_batch / 40 + sizes.task_singles / 20)
    ),
    columns=(
        Column("tasks_per_second", "tasks/s", count_spread),
        Column("ratio", "ratio to no guard", ratio_spread),
        Column("single_ratio", "the same, one by one", ratio_spread),
        Column("cpu_milliseconds", "worker's CPU ms a task", count_spread),
        Column("cpu_ratio", "tasks per CPU second, ratio", ratio_spread),
        Column("sent_ratio", "sent/s, ratio to no guard", ratio_spread),
    ),
    charts=(Chart("tasks_per_second.median", "tasks per second; higher is better"),),
)
