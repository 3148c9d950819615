"""The locks that a test has left: they are found by the index, reported and released."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.handler import locks
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import current_process
from django_redis_lock.testing.holds import take
from django_redis_lock.testing.leases import abandon, lease_of, settle

logger = logging.getLogger("django_redis_lock")
Holds = dict[tuple[str, str, str], tuple[BaseLockBackend, Holder]]
"""Held locks by alias, name and token id."""
RESTING = "resting"
"""The state of the lock of a Celery task that keeps it for a while on purpose."""
ROUNDS = 1000
"""How often locks are released that waiters get in the meantime."""


def assert_no_locks_held(using: str | None = None) -> None:
    """Raise ``AssertionError`` if a lock is held, saying which, by which thread and since when.

    It looks at all aliases that were used, or at one. Outside of a ``LockSpace``, only locks that
    this process holds count. A task's lock that rests (``at_least_for``) never does. Releases that
    failed are sent first. Raises ``LockUnavailable``.
    """
    backends = locks.made() if using is None else [locks[using]]
    settle(backends)
    space = locks.space
    check(held(backends, others=space is not None and space.isolated))


def held(backends: Iterable[BaseLockBackend], *, others: bool) -> Holds:
    """Return the locks that are held; with ``others``, by other processes as well."""
    found: Holds = {}
    me = current_process()
    for backend in backends:
        for holder in backend.holders():
            if others or (holder.pid == os.getpid() and holder.host == me.host):
                found[backend.alias, holder.name, holder.token_id] = backend, holder
    return found


def check(left: Holds) -> None:
    """Raise ``AssertionError`` if there is a lock that should have been released."""
    owed = {key: hold for key, hold in left.items() if hold[1].metadata.get("state") != RESTING}
    if owed:
        raise AssertionError(report(owed))


def report(left: Holds) -> str:
    """Return what to tell of locks that are held."""
    count = "1 lock is" if len(left) == 1 else f"{len(left)} locks are"
    return "\n".join([f"{count} still held:", *(_line(holder) for _, holder in left.values())])


def _line(holder: Holder) -> str:
    line = f"  {holder.name!r} (LOCKS[{holder.using!r}])"
    if holder.held_for is not None and holder.acquired_at is not None:
        line += f", for {holder.held_for:.2f} s since {holder.acquired_at:%H:%M:%S} UTC"
    if holder.pid is not None:
        line += f", by thread {holder.thread!r} of process {holder.pid}"
    if holder.task_name:
        line += f", for task {holder.task_name}[{holder.task_id}]"
    return line


def release(left: Holds, backends: Collection[BaseLockBackend], kept: Holds) -> None:
    """Release locks, and those that their waiters get, all but ``kept``."""
    for _ in range(ROUNDS):
        if not left:
            return
        for backend, holder in left.values():
            lease = lease_of(holder.token_id)
            if lease is not None:
                abandon(lease)
            take(backend, holder, "left by a test")
        left = {key: hold for key, hold in held(backends, others=True).items() if key not in kept}
    logger.warning("Threads of a test go on to take locks. %s", report(left))
