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


def test_failover_while_a_lock_is_held_and_waited_for(own: Sentinel, name: str) -> None:
    """The holder goes on, the waiter rejoins the queue and is served, and fences rise."""
    held = lock(name, timeout=60)
    held.acquire()
    fence = held.fence
    waiting = Background(lambda: patiently(name))
    eventually(lambda: waiters(name) == 1)
    replicated(own)
    before = own.kill_master()
    assert own.failover() is not before
    eventually(lambda: answered(held.ensure_held))
    assert not held.lost
    assert held.fence == fence
    eventually(lambda: waiters(name) == 1)
    held.release()
    assert waiting.outcome() > fence


def test_holder_whose_lock_did_not_survive_learns_it(own: Sentinel, name: str) -> None:
    """A lock that the new master does not have is lost: its holder is told."""
    before = lock(name, timeout=60)
    before.acquire()
    fence = before.fence
    before.release()
    held = lock(name, timeout=6, auto_renew=True)
    held.acquire()
    replicated(own)
    for replica in own.replicas():  # as if it had not come so far
        with client(replica) as one:
            one.config_set("replica-read-only", "no")
            assert one.delete(f"lock:{name}") == 1
    own.kill_master()
    own.failover()
    eventually(lambda: held.lost)
    with pytest.raises(LockLost):
        held.release()
    assert patiently(name) > fence
