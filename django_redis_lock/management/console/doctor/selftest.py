"""Uses a lock as a program does: one that no program uses."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from secrets import token_hex

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.exceptions import LockError
from django_redis_lock.management.console.doctor.servers import Finding, fail, ok
from django_redis_lock.primitives.lock import Lock

LEASE = 20.0
"""Seconds after which the lock is free, even if this process is killed."""
PATIENCE = 10.0
"""Seconds to wait for the lock."""
PAUSE = 0.01
_COMMAND = re.compile(r"run the '([\w|]+)' command")
LOOK = "Check the server's state and log."
GRANT = "Compare the user's rule with the one in the documentation, Restrict the user by ACL."


def run_selftest(backend: BaseLockBackend) -> Finding:
    """Acquire a lock, wait for it, hand it over, list it and take it away by force."""
    step = ""
    try:
        for step in _steps(backend):  # noqa: B007 - is read when one fails
            pass
    except LockError as error:
        remedy, why = LOOK, str(error)
        if command := _COMMAND.search(why):
            pool = getattr(backend, "pool", None)
            user = (pool.connection_kwargs.get("username") if pool else None) or "default"
            remedy = f"ACL SETUSER {user} +{command[1].lower()}"
        elif "permission" in why.lower():
            remedy = GRANT
        return fail("self-test", f"{step}: {why}", remedy)
    return ok("self-test", "acquired, listed, waited, handed over, and released by force")


def _steps(backend: BaseLockBackend) -> Iterator[str]:
    """Try each step after its name. Raises ``LockError``; what is still held is released."""
    name = f"django-redis-lock-doctor-{token_hex(8)}"

    def handle() -> Lock:
        return Lock(lambda: backend, name, LEASE, blocking_timeout=PATIENCE)

    first, successor, threads = handle(), handle(), ThreadPoolExecutor(1)
    try:
        yield "acquire"
        _expect(first.acquire(), "the lock is held")
        yield "list"
        _expect(any(backend.holders(name)), "the held lock is not listed")
        yield "wait"
        _expect(not successor.acquire(blocking_timeout=PAUSE), "two holders have the lock")
        waiting = threads.submit(successor.acquire)
        while not waiting.done():
            holder = backend.holder(name)
            if holder is None or holder.waiters != 0:  # as far as the server knows
                break
            time.sleep(PAUSE)
        else:
            waiting.result()
        yield "hand over"
        first.release()
        _expect(waiting.result(), f"the waiter did not get the lock within {PATIENCE:g} s")
        yield "forced release"
        taken = backend.force_release(name, by="locks doctor", reason="self-test")
        _expect(taken, "the lock has no holder")
        successor = handle()  # the old handle would report a loss
        yield "release"
        _expect(first.acquire(blocking=False), "the lock is still held after the forced release")
        first.release()
    finally:
        _give_back(first)
        threads.shutdown()
        _give_back(successor)


def _expect(succeeded: object, otherwise: str) -> None:
    if not succeeded:
        raise LockError(otherwise)


def _give_back(lock: Lock) -> None:
    with suppress(LockError):
        if lock.owned():
            lock.release()
