"""Uses a lock as a program does: one that no program uses."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import Future
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


class _Broken(Exception):
    """Something did not happen; the message says what."""


def run_selftest(backend: BaseLockBackend) -> Finding:
    """Acquire a lock, wait for it, hand it over, list it and take it away by force."""
    test = _SelfTest(backend)
    try:
        test.run()
    except _Broken as error:
        return fail("self-test", f"{test.step}: {error}", LOOK)
    except LockError as error:
        return _refused(backend, test.step, str(error))
    finally:
        test.clean_up()
    return ok("self-test", "acquired, listed, waited, handed over, and released by force")


def _refused(backend: BaseLockBackend, step: str, why: str) -> Finding:
    command = _COMMAND.search(why)
    pool = getattr(backend, "pool", None)
    user = (pool.connection_kwargs.get("username") if pool else None) or "default"
    if command:
        remedy = f"ACL SETUSER {user} +{command[1].lower()}"
    elif "permission" in why.lower():
        remedy = GRANT
    else:
        remedy = LOOK
    return fail("self-test", f"{step}: {why}", remedy)


class _SelfTest:
    def __init__(self, backend: BaseLockBackend) -> None:
        self._backend = backend
        self._name = f"django-redis-lock-doctor-{token_hex(8)}"
        self._first, self._next = self._lock(), self._lock()
        self._waiter: threading.Thread | None = None
        self.step = ""
        """What is being tried."""

    def _lock(self) -> Lock:
        return Lock(lambda: self._backend, self._name, LEASE, blocking_timeout=PATIENCE)

    def run(self) -> None:
        """Raises ``LockError`` and ``_Broken``."""
        self.step = "acquire"
        if not self._first.acquire():
            raise _Broken("the lock is held")
        self.step = "list"
        if not any(self._backend.holders(self._name)):
            raise _Broken("the held lock is not listed")
        self.step = "wait"
        if self._next.acquire(blocking_timeout=PAUSE):
            raise _Broken("two holders have the lock")
        waiting: Future[bool] = Future()
        self._waiter = threading.Thread(target=self._wait, args=[waiting], daemon=True)
        self._waiter.start()
        while not (waiting.done() or self._is_awaited()):
            time.sleep(PAUSE)
        if waiting.done():
            waiting.result()
        self.step = "hand over"
        self._first.release()
        if not waiting.result():
            raise _Broken(f"the waiter did not get the lock within {PATIENCE:g} s")
        self.step = "forced release"
        if not self._backend.force_release(self._name, by="locks doctor", reason="self-test"):
            raise _Broken("the lock has no holder")
        self._next = self._lock()  # the old handle would report a loss
        self.step = "release"
        if not self._first.acquire(blocking=False):
            raise _Broken("the lock is still held after the forced release")
        self._first.release()

    def _is_awaited(self) -> bool:
        """Whether the waiter waits, as far as the server knows."""
        holder = self._backend.holder(self._name)
        return holder is None or holder.waiters != 0

    def _wait(self, waiting: Future[bool]) -> None:
        try:
            waiting.set_result(self._next.acquire())
        except BaseException as error:
            waiting.set_exception(error)

    def clean_up(self) -> None:
        """Release what is still held."""
        self._give_back(self._first)
        if self._waiter is not None:
            self._waiter.join()
            self._give_back(self._next)

    def _give_back(self, lock: Lock) -> None:
        with suppress(LockError):
            if lock.owned():
                lock.release()
