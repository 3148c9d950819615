"""The steps of the demo; each returns its figures and the holders that it saw."""

import os
import shlex
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import NamedTuple

from celery import chord
from celery.result import AsyncResult
from django.core.management import call_command
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from django_redis_lock import Holder, lock, locks
from example_project.demo.report import Figure, Sighting, look
from example_project.demo.services import Services
from example_project.service import HOST, PATIENCE_SECONDS
from example_project.shop.buyers import Answer, rush
from example_project.shop.models import Product
from example_project.shop.tasks import CATALOGUE_ROWS, add_up, ask_supplier, import_products

UNITS = 100
BUYERS = 300
DUPLICATES = 20
AT_ONCE = 3
CALLS = {"large": 9, "small": 3}
"""Calls to the supplier by tenant, in the order in which they are sent."""
# The lock of a killed process is free within this time, however long its lease.
AT_ONCE_SECONDS = 1
# The command and the hand-off to the waiter may take this long.
COMMAND_SECONDS = 1.0

Outcome = tuple[list[Figure], list[Sighting]]


def progress_bars(console: Console) -> Progress:
    return Progress(
        TextColumn("  {task.description:<36}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def flash_sale(services: Services, bars: Progress) -> Outcome:
    """Sell 100 units to 300 buyers at once, without the lock and then with it."""
    off = Product.objects.create(name="Desk lamp", slug="desk-lamp", stock=UNITS, price="39.90")
    on = Product.objects.create(name="Headphones", slug="headphones", stock=UNITS, price="79.00")

    _sale(services, bars, off, "guard=none", "guard off")
    answers, seen = _sale(services, bars, on, "guard=lock", "guard on")

    statuses = Counter(answer.status for answer in answers)
    sold, sold_out = statuses.pop(201, 0), statuses.pop(410, 0)
    promised = {answer.buyer for answer in answers if answer.status == 201}
    served = set(on.orders.values_list("buyer", flat=True))
    oversold = off.orders.count()
    off.refresh_from_db()
    on.refresh_from_db()
    figures = [
        Figure(
            f"guard off: orders for {UNITS} units", f"over {UNITS}", str(oversold), oversold > UNITS
        ),
        Figure(
            "guard off: sold units still counted as stock",
            "over 0",
            str(off.stock + oversold - UNITS),
            off.stock + oversold > UNITS,
        ),
        Figure.equal(f"guard on: orders for {UNITS} units", UNITS, on.orders.count()),
        Figure.equal("guard on: stock left", 0, on.stock),
        Figure.equal('guard on: buyers told "sold"', UNITS, sold),
        Figure.equal("guard on: of those, without an order", 0, len(promised - served)),
        Figure.equal('guard on: buyers told "sold out"', BUYERS - UNITS, sold_out),
        Figure.equal("guard on: other answers", 0, statuses.total()),
    ]
    return figures, seen


def _sale(
    services: Services, bars: Progress, product: Product, query: str, title: str
) -> tuple[list[Answer], list[Sighting]]:
    opened = bars.add_task(f"{title}: buyers with the page open", total=BUYERS)
    bought = bars.add_task(f"{title}: buyers answered", total=BUYERS)
    answers: list[Answer] = []
    seen: list[Sighting] = []
    for event in rush(HOST, services.port, f"/buy/{product.pk}/?{query}", BUYERS):
        if isinstance(event, Answer):
            answers.append(event)
            bars.advance(bought)
            if len(answers) == UNITS // 2:
                seen = look("in the sale")
        else:
            bars.advance(opened)
    return answers, seen


def duplicates(services: Services, bars: Progress) -> Outcome:
    """Send the same import 20 times at once."""
    bar = bars.add_task("imports answered", total=DUPLICATES)
    results = [import_products.delay(1) for _ in range(DUPLICATES)]
    services.worker.wait_for(lambda: locks["default"].holder("import:1") is not None)
    seen = look("among the duplicates")

    def all_ready() -> bool:
        ready = sum(result.ready() for result in results)
        bars.update(bar, completed=ready)
        return ready == DUPLICATES

    services.worker.wait_for(all_ready)
    answers = {result.id: result.result for result in results if result.successful()}
    skipped = [answer for answer in answers.values() if answer.get("skipped")]
    ran = [task_id for task_id, answer in answers.items() if not answer.get("skipped")]
    told = [(answer["holder"] or {}).get("task_id") for answer in skipped]
    figures = [
        Figure.equal(f"duplicates: imports that ran, of {DUPLICATES}", 1, len(ran)),
        Figure.equal("duplicates: skipped", DUPLICATES - 1, len(skipped)),
        Figure.equal(
            "duplicates: of those, told which task was running",
            DUPLICATES - 1,
            sum(told.count(task_id) for task_id in ran),
        ),
    ]
    return figures, seen


def killed_worker(services: Services, bars: Progress) -> Outcome:
    """Kill a worker process during an import; measure when its lock is free."""
    victim = import_products.delay(2)
    services.worker.wait_for(lambda: Product.objects.filter(slug__startswith="shop-2-").exists())
    holder = _holder_of("import:2", victim, services)
    bar = bars.add_task("imports answered, one of them killed", total=2)

    os.kill(holder.pid, signal.SIGKILL)
    killed_at = time.monotonic()

    services.worker.wait_for(lambda: locks["default"].holder("import:2") is None)
    took = time.monotonic() - killed_at

    following = import_products.delay(2)
    services.worker.wait_for(lambda: locks["default"].holder("import:2") is not None)
    seen = look("after the kill")
    for result in (victim, following):
        services.worker.wait_for(result.ready)
        bars.advance(bar)
    figures = [
        Figure(
            f"killed worker: lock free after, with {holder.ttl:.1f} s of lease left",
            f"under {AT_ONCE_SECONDS} s",
            f"{took:.2f} s",
            took < AT_ONCE_SECONDS,
        ),
        Figure.equal("killed worker: its task", "FAILURE", victim.state),
        Figure.equal("killed worker: rows of the next import", CATALOGUE_ROWS, _rows(following)),
    ]
    return figures, seen


def chord_with_duplicate(services: Services, bars: Progress) -> Outcome:
    """Send a chord of three imports, two of them the same; its callback must run."""
    shops = (3, 4, 3)
    bar = bars.add_task("imports of the chord answered", total=len(shops))
    total = chord([import_products.s(shop) for shop in shops])(add_up.s())
    assert total.parent is not None

    def is_ready() -> bool:
        bars.update(bar, completed=total.parent.completed_count())
        return total.ready()

    services.worker.wait_for(lambda: locks["default"].holder("import:3") is not None)
    seen = look("in the chord")
    services.worker.wait_for(is_ready)
    summed = total.result if total.successful() else {}
    figures = [
        Figure.equal(
            "chord with a duplicate: results that its callback got",
            len(shops),
            summed.get("imports"),
        ),
        Figure.equal("chord with a duplicate: of those, skipped", 1, summed.get("skipped")),
    ]
    return figures, seen


def stuck_task(services: Services, bars: Progress) -> Outcome:
    """Suspend a task's process, force-release its lock, and resume the process."""
    name = "import:5"
    victim = import_products.delay(5)
    services.worker.wait_for(lambda: Product.objects.filter(slug__startswith="shop-5-").exists())
    pid = _holder_of(name, victim, services).pid
    os.kill(pid, signal.SIGSTOP)
    successor = lock(name)
    waiting = ThreadPoolExecutor(max_workers=1)
    served = waiting.submit(lambda: (successor.acquire(), time.monotonic())[1])
    services.worker.wait_for(lambda: bool(locks["default"].waiting(name)))
    seen = look("stuck, with a waiter")
    _manage(bars.console, "list", "import:*")

    released_at = time.monotonic()
    _manage(bars.console, "release", name, "--noinput", "--reason", "it has not moved for a while")
    took = served.result(timeout=PATIENCE_SECONDS) - released_at
    waiting.shutdown()
    os.kill(pid, signal.SIGCONT)
    bar = bars.add_task("the stopped process goes on", total=None)
    services.worker.wait_for(victim.ready)
    bars.update(bar, total=1, completed=1)
    kept = successor.owned()
    successor.release()
    _manage(bars.console, "history", name)
    events = [entry.event for entry in reversed(locks["default"].history(name))]
    figures = [
        Figure.equal(
            "stuck task: seen with its waiter", "1 waits", f"{seen[0].holder.waiters} waits"
        ),
        Figure(
            "stuck task: its waiter has the lock after",
            f"at most {COMMAND_SECONDS:g} s",
            f"{took:.2f} s",
            took <= COMMAND_SECONDS,
        ),
        Figure.equal("stuck task: events in the audit", "force_released", ", ".join(events)),
        Figure.equal("stuck task: the next holder kept its lock", True, kept),
    ]
    return figures, seen


def over_the_limit(services: Services, bars: Progress) -> Outcome:
    """Send more calls than the supplier allows at once, most of them for one tenant."""
    locks["default"].set_limit("supplier", 0, by="the demo")  # so that all of them are parked
    sent = [ask_supplier.delay(tenant) for tenant, calls in CALLS.items() for _ in range(calls)]
    bar = bars.add_task("calls to the supplier answered", total=len(sent))
    services.worker.wait_for(lambda: len(locks["default"].waiting("supplier")) == len(sent))
    locks["default"].set_limit("supplier", None, by="the demo")
    services.worker.wait_for(lambda: locks["default"].holder("supplier") is not None)
    seen = look("over the limit")

    def all_ready() -> bool:
        ready = sum(result.ready() for result in sent)
        bars.update(bar, completed=ready)
        return ready == len(sent)

    services.worker.wait_for(all_ready)
    runs = [Run(*result.result) for result in sent if result.successful()]
    _print_runs(bars.console, runs)
    at_once = max(sum(run.lasts(moment) for run in runs) for moment in (one.began for one in runs))
    last = {run.tenant: run.began for run in sorted(runs)}
    figures = [
        Figure.equal("over the limit: calls that ran", len(sent), len(runs)),
        Figure(
            "over the limit: most at once",
            f"at most {AT_ONCE}",
            str(at_once),
            at_once <= AT_ONCE,
        ),
        Figure(
            "over the limit: tenant served last",
            "large",
            max(last, key=last.__getitem__),
            last["small"] < last["large"],
        ),
    ]
    return figures, seen


class Run(NamedTuple):
    """When a call to the supplier began and ended, and for whom."""

    began: float
    ended: float
    tenant: str

    def lasts(self, moment: float) -> bool:
        return self.began <= moment < self.ended


def _print_runs(console: Console, runs: list[Run]) -> None:
    """Print how many ran of each tenant, and in all, every fifth of a second."""
    first, end = min(run.began for run in runs), max(run.ended for run in runs)
    moments = [first + 0.1 + 0.2 * number for number in range(round((end - first) / 0.2))]
    for label, tenants in [*((one, [one]) for one in CALLS), ("both", [*CALLS])]:
        counts = (
            sum(run.lasts(moment) and run.tenant in tenants for run in runs) for moment in moments
        )
        line = " ".join(map(str, counts))
        console.print(f"  calls at once, every 0.2 s: {label:<7} {line}", highlight=False)


class _Screen(StringIO):
    """Makes the command fit its text to the width of the terminal."""

    def isatty(self) -> bool:
        return True


def _manage(console: Console, *arguments: str) -> None:
    """Run ``manage.py locks`` as an operator would, and print its output."""
    console.print(f"$ manage.py locks {shlex.join(arguments)}", style="bold", highlight=False)
    screen = _Screen()
    call_command("locks", *arguments, stdout=screen, no_color=True)
    console.print(screen.getvalue(), end="", highlight=False, markup=False)


def nothing_left() -> list[Figure]:
    """Look for locks that were not released."""
    return [Figure.equal("at the end: locks still held", 0, len(look("now")))]


def metrics(services: Services) -> list[Figure]:
    """Read what a Prometheus would scrape."""
    return [
        Figure.equal(
            f"metrics: {what}", expected, int(services.metric(f"django_redis_lock_{name}"))
        )
        for what, expected, name in (
            ("duplicates skipped, that of the chord included", DUPLICATES, "tasks_skipped_total"),
            ("locks freed of a killed process", 1, "freed_total"),
            ("locks released by force", 1, "force_released_total"),
            ("locks lost", 1, "lost_total"),
            ("locks held", 0, "held"),
        )
    ]


def _holder_of(name: str, victim: AsyncResult, services: Services) -> Holder:
    """Return the holder; raise unless it is the task `victim` in one of our worker's processes."""
    holder = locks["default"].holder(name)
    if holder is None or holder.task_id != victim.id or holder.pid is None:
        raise RuntimeError(f"the import runs, but its lock is held by {holder}")
    if os.getsid(holder.pid) != services.worker.process.pid:
        raise RuntimeError(f"process {holder.pid} does not belong to our worker")
    return holder


def _rows(result: AsyncResult) -> int:
    return result.result.get("rows", 0) if result.successful() else 0
