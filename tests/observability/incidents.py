"""What operators want to see in the metrics: a sale, duplicates, and everything that can go wrong.

It runs as a program with the settings of the shop, given the port of its web server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import django

HOLDER = """
import django, sys
django.setup()
from django_redis_lock import lock
held = lock("import:stopped")
held.acquire()
print("held", flush=True)
sys.stdin.read()
"""
WAITERS = 20
QUIET = 4.0
"""Seconds of mere traffic after a scene, for Prometheus to see it as one of its own."""
SERVED = 60.0
"""Seconds after which what has not happened is taken not to come."""


def main(port: int) -> None:
    """Play one scene after another, with traffic in the background."""
    django.setup()
    ended = threading.Event()
    traffic = threading.Thread(target=background, args=(ended,))
    traffic.start()
    for scene in (duplicates, duplicates, killed_worker):
        scene()
        ended.wait(QUIET)
    sale(port)
    ended.wait(QUIET)
    with ExitStack() as stack:
        stopped = stack.enter_context(stopped_holder())
        growing_queue()
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.communicate()
    ended.wait(QUIET)
    forced_release()
    ended.wait(QUIET)
    ended.set()
    traffic.join()


def background(ended: threading.Event) -> None:
    """Hold other locks for a moment, some of them at once, until the end."""
    from django_redis_lock import lock

    turn = 0
    while not ended.wait(0.05):
        turn += 1
        with lock(f"report:{turn}", 5), lock(f"product:{turn}", 5):
            time.sleep(0.001 * (turn % 40))


def duplicates() -> None:
    """Send an import several times."""
    from example_project.shop.tasks import import_products

    for result in [import_products.delay(1) for _ in range(6)]:
        result.get(timeout=SERVED, propagate=False)


def killed_worker() -> None:
    """Kill the process of an import."""
    from django_redis_lock import locks
    from example_project.shop.tasks import import_products

    victim = import_products.delay(2)
    until = time.monotonic() + SERVED
    while (holder := locks["default"].holder("import:2")) is None:
        assert time.monotonic() < until, "the import never began"
        time.sleep(0.05)
    os.kill(holder.pid or 0, signal.SIGKILL)
    victim.get(timeout=SERVED, propagate=False)


class stopped_holder(subprocess.Popen[str]):  # noqa: N801 - reads as a context manager
    """A process that holds a lock and can't renew it, because it is stopped."""

    def __init__(self) -> None:
        super().__init__(
            [sys.executable, "-c", HOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.stdout is not None
        self.stdout.readline()
        os.kill(self.pid, signal.SIGSTOP)


def sale(port: int) -> None:
    """Sell a product to more buyers than there are units."""
    from example_project.service import HOST
    from example_project.shop.buyers import rush
    from example_project.shop.models import Product

    product = Product.objects.create(name="Lamp", slug="lamp", stock=60, price="39.90")
    for _ in rush(HOST, port, f"/buy/{product.pk}/?guard=lock", 90):
        pass


def growing_queue() -> None:
    """Hold a lock while more and more callers wait for it, some of them in vain."""
    from django_redis_lock import lock

    def hold_briefly() -> None:
        handle = lock("product:long", 5)
        if handle.acquire(blocking_timeout=6):
            time.sleep(0.02)
            handle.release()

    with lock("product:long", 30):
        threads = [threading.Thread(target=hold_briefly) for _ in range(WAITERS)]
        for thread in threads:
            thread.start()
            time.sleep(0.4)
        for _ in range(3):
            lock("product:long", blocking=False).acquire()
    for thread in threads:
        thread.join()


def forced_release() -> None:
    """Take a lock from its holder, who notices."""
    from django_redis_lock import lock, locks
    from django_redis_lock.exceptions import LockLost

    held = lock("product:forced", 30)
    held.acquire()
    locks["default"].force_release("product:forced", reason="the test says so")
    try:
        held.release()
    except LockLost:
        return
    raise AssertionError("the loss was not noticed")


if __name__ == "__main__":
    main(int(sys.argv[1]))
