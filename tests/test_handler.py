"""``locks`` makes each backend at first use, and has one of each alias."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from django_redis_lock import lock, lock_many, locks, semaphore
from django_redis_lock.exceptions import LockError, LockNotAcquired
from example_project.embedded import EmbeddedServer
from tests.tools import Background, eventually, waiters

LOCMEM = "django_redis_lock.backends.locmem.LocMemLockBackend"


def test_threads_that_ask_at_first_get_one_backend(settings: Any) -> None:
    settings.LOCKS = {"default": {"BACKEND": LOCMEM}}
    ready = threading.Barrier(20)

    def ask() -> object:
        ready.wait(20)
        return locks["default"]

    asking = [Background(ask) for _ in range(20)]
    assert len({id(one.outcome()) for one in asking}) == 1


def test_a_thread_that_waits_for_itself_by_another_alias(
    settings: Any, server: EmbeddedServer, name: str
) -> None:
    """Two aliases of one database have the same locks; one of another database has others."""
    settings.LOCKS = {
        "default": {"LOCATION": server.url()},
        "same": {"LOCATION": server.url(), "OPTIONS": {"WAIT": "poll"}},
        "other": {"LOCATION": server.url(1)},
    }
    other = lock(name, using="other")
    assert Background(other.acquire).outcome()

    def release() -> None:
        eventually(lambda: waiters(name, "other") == 1)
        other.release()

    with lock(name) as held:
        with pytest.raises(LockError, match="this thread already holds"):
            lock(name, using="same").acquire()
        with pytest.raises(LockNotAcquired, match="another caller holds it"):
            lock(name, blocking=False, using="other").__enter__()
        releasing = Background(release)
        assert lock(name, using="other").acquire()
        releasing.outcome()
        held.ensure_held()


@pytest.mark.parametrize(
    "make", [lock, partial(semaphore, limit=2), lambda name: lock_many([name])]
)
def test_a_handle_has_no_truth(make: Any) -> None:
    with pytest.raises(TypeError, match="To acquire lock 'x', use a with statement"):
        assert make("x")
