"""What the demo does, step by step; each returns its figures and the holders it saw."""

import os
import shlex
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from io import StringIO

from celery import chord
from celery.result import AsyncResult
from django.core.management import call_command
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from django_redis_lock import Holder, lock, locks
from example_project.demo.report import Figure, Sighting, look
from example_project.demo.services import HOST, PATIENCE_SECONDS, Services, wait_for
from example_project.shop.buyers import Answer, rush
from example_project.shop.models import Product
from example_project.shop.tasks import CATALOGUE_ROWS, add_up, import_products

UNITS = 100
BUYERS = 300
DUPLICATES = 20
# Within how many seconds the lock of a killed process is free, whatever is left of its lease.
AT_ONCE_SECONDS = 1
# What the command may take from its start until the waiter has the lock.
COMMAND_SECONDS = 1.0

Outcome = tuple[list[Figure], list[Sighting]]


def progress_bars(console: Console) -> Progress:
    """Return the bars of one step."""
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
        Figure.equal("guard on: any other answer", 0, statuses.total()),
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
    wait_for(services.worker, lambda: locks["default"].holder("import:1") is not None)
    seen = look("among the duplicates")

    def all_ready() -> bool:
        ready = sum(result.ready() for result in results)
        bars.update(bar, completed=ready)
        return ready == DUPLICATES

    wait_for(services.worker, all_ready)
    answers = {result.id: result.result for result in results if result.successful()}
    skipped = [answer for answer in answers.values() if answer.get("skipped")]
    ran = [task_id for task_id, answer in answers.items() if not answer.get("skipped")]
    told = [(answer["holder"] or {}).get("task_id") for answer in skipped]
    figures = [
        Figure.equal(f"duplicates: imports that ran, of {DUPLICATES}", 1, len(ran)),
        Figure.equal("duplicates: turned away", DUPLICATES - 1, len(skipped)),
        Figure.equal(
            "duplicates: of those, told who was running",
            DUPLICATES - 1,
            sum(told.count(task_id) for task_id in ran),
        ),
    ]
    return figures, seen


def killed_worker(services: Services, bars: Progress) -> Outcome:
    """Kill a worker's process in the middle of an import; see when its lock is free again."""
    victim = import_products.delay(2)
    wait_for(services.worker, lambda: Product.objects.filter(slug__startswith="shop-2-").exists())
    holder = _holder_of("import:2", victim, services)
    bar = bars.add_task("imports answered, one of them killed", total=2)

    os.kill(holder.pid, signal.SIGKILL)
    killed_at = time.monotonic()

    wait_for(services.worker, lambda: locks["default"].holder("import:2") is None)
    took = time.monotonic() - killed_at

    following = import_products.delay(2)
    wait_for(services.worker, lambda: locks["default"].holder("import:2") is not None)
    seen = look("after the kill")
    for result in (victim, following):
        wait_for(services.worker, result.ready)
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
    """Send three imports as a chord, two of them the same; see that its callback runs."""
    shops = (3, 4, 3)
    bar = bars.add_task("imports of the chord answered", total=len(shops))
    total = chord([import_products.s(shop) for shop in shops])(add_up.s())
    assert total.parent is not None

    def is_ready() -> bool:
        bars.update(bar, completed=total.parent.completed_count())
        return total.ready()

    wait_for(services.worker, lambda: locks["default"].holder("import:3") is not None)
    seen = look("in the chord")
    wait_for(services.worker, is_ready)
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
    """Stop a task's process; see it, break its lock, and let it find out."""
    name = "import:5"
    victim = import_products.delay(5)
    wait_for(services.worker, lambda: Product.objects.filter(slug__startswith="shop-5-").exists())
    pid = _holder_of(name, victim, services).pid
    os.kill(pid, signal.SIGSTOP)
    heir = lock(name)
    waiting = ThreadPoolExecutor(max_workers=1)
    served = waiting.submit(lambda: (heir.acquire(), time.monotonic())[1])
    wait_for(services.worker, lambda: bool(locks["default"].waiting(name)))
    seen = look("stuck, with a waiter")
    _manage(bars.console, "list", "import:*")

    released_at = time.monotonic()
    _manage(bars.console, "release", name, "--noinput", "--reason", "it has not moved for a while")
    took = served.result(timeout=PATIENCE_SECONDS) - released_at
    waiting.shutdown()
    os.kill(pid, signal.SIGCONT)
    bar = bars.add_task("the stopped process goes on", total=None)
    wait_for(services.worker, lambda: len(locks["default"].history(name)) == 2)
    wait_for(services.worker, victim.ready)
    bars.update(bar, total=1, completed=1)
    kept = heir.owned()
    heir.release()
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
        Figure.equal("stuck task: what the audit tells", "force_released, lost", ", ".join(events)),
        Figure.equal("stuck task: the next holder kept its lock", True, kept),
    ]
    return figures, seen


class _Screen(StringIO):
    """Text that the command fits to the width of the terminal."""

    def isatty(self) -> bool:
        return True


def _manage(console: Console, *words: str) -> None:
    """Run ``manage.py locks`` as an operator would, and show what it says."""
    console.print(f"$ manage.py locks {shlex.join(words)}", style="bold", highlight=False)
    screen = _Screen()
    call_command("locks", *words, stdout=screen, no_color=True)
    console.print(screen.getvalue(), end="", highlight=False, markup=False)


def nothing_left(services: Services, bars: Progress) -> Outcome:
    """Look for locks that somebody forgot."""
    return [Figure.equal("at the end: locks still held", 0, len(look("now")))], []


def _holder_of(name: str, victim: AsyncResult, services: Services) -> Holder:
    """Return who holds a lock for a task, having made sure that it is a process of our worker's."""
    holder = locks["default"].holder(name)
    if holder is None or holder.task_id != victim.id or holder.pid is None:
        raise RuntimeError(f"the import runs, but its lock is held by {holder}")
    if os.getsid(holder.pid) != services.worker.process.pid:
        raise RuntimeError(f"process {holder.pid} is none of our worker's")
    return holder


def _rows(result: AsyncResult) -> int:
    return result.result.get("rows", 0) if result.successful() else 0
