"""Failovers by sentinels while locks are held and waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import override_settings

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockLost
from tests.layouts.failovers import answered, patiently
from tests.layouts.servers import Sentinel, client
from tests.tools import Background, eventually, waiters


@pytest.fixture
def own() -> Iterator[Sentinel]:
    with Sentinel() as sentinel, override_settings(**sentinel.locks()):
        yield sentinel
        locks.reset()


def replicated(sentinel: Sentinel) -> None:
    with client(sentinel.master) as one:
        one.set("written", 1)
        assert one.execute_command("WAIT", 2, 10_000) == 2


def test_failover_while_locks_are_held_and_waited_for(own: Sentinel, name: str) -> None:
    """A replicated lock goes on and is handed off; one unknown to the new master is lost."""
    held = lock(name, timeout=60)
    held.acquire()
    fence = held.fence
    waiting = Background(lambda: patiently(name))
    eventually(lambda: waiters(name) == 1)
    late = lock(f"{name}:late", timeout=6, auto_renew=True)
    late.acquire()
    replicated(own)
    for replica in own.replicas():  # as if it had not come so far
        with client(replica) as one:
            one.config_set("replica-read-only", "no")
            assert one.delete(f"lock:{late.name}") == 1
    former = own.master
    former.kill()
    own.promoted(former)
    eventually(lambda: answered(held.ensure_held))
    assert not held.lost
    assert held.fence == fence
    eventually(lambda: waiters(name) == 1)
    held.release()
    assert waiting.outcome() > fence
    eventually(lambda: late.lost)
    with pytest.raises(LockLost):
        late.release()
    assert patiently(late.name) > fence
