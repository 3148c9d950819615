"""Random operations on locks, in memory and on a server, against a model.

``LOCKS_TEST_EXAMPLES=2000`` tries as many sequences, other ones each time, and shortens one that
fails.
"""

from __future__ import annotations

import os
from time import monotonic

import redis
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from django_redis_lock.backends.locmem import LocMemLockBackend
from tests.contracts.machine import LockMachine
from tests.settings import server_url
from tests.tools import eventually

EXAMPLES = int(os.environ.get("LOCKS_TEST_EXAMPLES", "0"))
PROFILE = settings(
    max_examples=EXAMPLES or 40,
    stateful_step_count=40,
    derandomize=not EXAMPLES,
    print_blob=bool(EXAMPLES),
    database=None,
    deadline=None,
    # A sequence that fails may end with a long wait, and shortening it with many.
    phases=tuple(Phase) if EXAMPLES else (Phase.generate,),
)


class LocMemMachine(LockMachine):
    using = "locmem"

    def expire(self, name: str) -> None:
        backend = self.backend
        assert isinstance(backend, LocMemLockBackend)
        for held in backend.store._holders[self.full(name)].values():
            held.end = monotonic()


class RedisMachine(LockMachine):
    using = "default"

    def expire(self, name: str) -> None:
        key = self.backend.lock_keys + self.full(name)
        with redis.Redis.from_url(server_url()) as client:
            assert client.pexpire(key, 1)
            eventually(lambda: not client.exists(key))


def test_locks_in_memory() -> None:
    """Each random sequence of operations has the outcome that the model predicts."""
    run_state_machine_as_test(LocMemMachine, settings=PROFILE)


def test_locks_on_a_server(server: object) -> None:
    """On a server, too: in the same order, with the same errors."""
    run_state_machine_as_test(RedisMachine, settings=PROFILE)
