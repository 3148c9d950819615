"""Exceptions of signal handlers as a lock is acquired."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from django_redis_lock import lock, lock_many, locks, semaphore, signals
from django_redis_lock.backends import renewal
from django_redis_lock.primitives import group, handle, held
from django_redis_lock.primitives import lock as lock_module
from django_redis_lock.protocol import calls, drivers, lease, locking
from tests.tools import eventually, told
from tests.tools.interruption import Interrupted, Interruption, strike

MODULES = (lock_module, handle, group, held, calls, drivers, lease, locking, renewal)


def enter(handle: Any) -> None:
    with handle:
        pass


def no_locks(client: redis.Redis, names: list[str]) -> bool:
    return not any(client.keys(f"*{name}*") for name in names)


@pytest.mark.parametrize(
    "make",
    [
        lambda name: lock(name, timeout=None),
        lambda name: semaphore(name, limit=2, timeout=None),
        lambda name: lock_many([f"{name}a", f"{name}b"], timeout=None),
    ],
    ids=["lock", "semaphore", "lock_many"],
)
def test_wherever_a_with_statement_is_interrupted_nothing_stays_locked(
    name: str, client: redis.Redis, make: Callable[[str], Any]
) -> None:
    """Python itself begins to leave the block, and the rest is ours. No loss is reported."""
    handles, names = list[Any](), list[str]()
    enter(make(f"{name}:first:"))
    with told(signals.lock_lost) as lost:
        for at in itertools.count():
            names.append(f"{name}:{at}:")
            handles.append(make(names[-1]))  # while it exists, its lease would be renewed
            interruption = Interruption(at, *MODULES)
            strike(interruption, partial(enter, handles[-1]))
            if interruption.place == "__exit__":
                names.pop()
            if not interruption.raised:
                break
        eventually(lambda: no_locks(client, names))
    assert at > 100
    assert lost == []


def test_wherever_an_acquisition_is_interrupted_the_handle_can_be_used_again(name: str) -> None:
    again = lock(name, timeout=20, blocking=False, using="locmem")
    for at in itertools.count():
        interruption = Interruption(at, lock_module, handle, group)
        with contextlib.suppress(Interrupted), interruption:
            again.acquire()
        if again.lease is not None:
            again.release()
        locks["locmem"].force_release(name)  # if it was given up, its release may be due only later
        assert again.acquire()
        again.release()
        if not interruption.raised:
            break
    assert at > 10
