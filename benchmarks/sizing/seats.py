"""What the processes of a run do: hold locks, renew them, wait for them."""

import asyncio
import os
from threading import Thread
from time import perf_counter

from benchmarks.bench import Seat
from benchmarks.frame.server import wait_until

LONG = 600
"""Seconds of a lease that outlasts a part."""
BATCH = 500
"""Locks in one call of a renewal, as in the package."""
EACH = 100
"""Waiters of one lock."""


def pid(_seat: Seat) -> int:
    return os.getpid()


def warm_admin(seat: Seat) -> None:
    """Open the connection by which a process looks at the queues."""
    seat.contender.admin.ping()


def hold_renewed(seat: Seat, first: int, count: int, lease: int) -> None:
    """Hold so many locks, renewed in the background as by default."""
    make = seat.contender.make
    names = (f"held:{number:07}" for number in range(first, first + count))
    seat.handles = [make(name, timeout=lease, auto_renew=True) for name in names]
    for handle in seat.handles:
        handle.acquire()


def lost(seat: Seat) -> int:
    return sum(handle.lost for handle in seat.handles)  # type: ignore[attr-defined]


def hold_batch(seat: Seat, first: int) -> None:
    """Hold as many locks as one call renews, with a fixed lease."""
    make = seat.contender.make
    seat.handles = [make(f"rush:{first + number:07}", timeout=LONG) for number in range(BATCH)]
    for handle in seat.handles:
        handle.acquire()


def renew_all(seat: Seat, seconds: float) -> float:
    """Renew them over and over; return the renewals per second."""
    from django_redis_lock.protocol.calls import Renew
    from django_redis_lock.protocol.conversation import ask

    backend = seat.contender.backend
    holds = [(handle.name, handle._lease.token, 1000 * LONG) for handle in seat.handles]  # type: ignore[attr-defined]
    done = 0
    began = perf_counter()
    while (elapsed := perf_counter() - began) < seconds:
        backend.run(ask(Renew(holds)))
        done += len(holds)
    return done / elapsed


def hold_for_waiters(seat: Seat, count: int) -> None:
    """Hold the locks that waiters will wait for."""
    seat.handles = [seat.contender.lock(f"wanted:{number}", LONG) for number in range(count)]
    for handle in seat.handles:
        handle.acquire()


def wait_in_threads(seat: Seat, count: int) -> None:
    def body(name: str) -> None:
        seat.contender.lock(name).acquire()

    seat.threads = [
        Thread(target=body, args=(f"wanted:{number // EACH}",), daemon=True)
        for number in range(count)
    ]
    for thread in seat.threads:
        thread.start()
    _queued(seat, count)


def wait_in_tasks(seat: Seat, count: int) -> None:
    """Let tasks of an event loop wait, in a thread of its own."""

    async def loop() -> None:
        handles = [seat.contender.lock(f"wanted:{number // EACH}") for number in range(count)]
        await asyncio.gather(*(handle.aacquire() for handle in handles))

    seat.threads = [Thread(target=asyncio.run, args=(loop(),), daemon=True)]
    seat.threads[0].start()
    _queued(seat, count)


def _queued(seat: Seat, count: int) -> None:
    names = [f"lock-queue:wanted:{number}" for number in range(-(-count // EACH))]
    admin = seat.contender.admin
    wait_until(lambda: sum(map(admin.llen, names)) == count, f"{count} waiters", 60)
