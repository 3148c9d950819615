"""What is counted of the locks of a group, for the last hour."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from django_redis_lock import locks
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.tallies import ServerTally
from django_redis_lock.exceptions import LockLost
from tests.contracts.base import Contract, needs


class ContentionContract(Contract):
    """Acquired, refused, released and lost locks are counted by their groups."""

    def counting(self, name: str, monkeypatch: pytest.MonkeyPatch) -> BaseLockBackend:
        """Switch the counting on, with two groups whose names no other test uses."""
        backend = locks[self.using]
        groups = {f"{name}:1*": f"one-{name}", f"{name}:2*": f"two-{name}"}
        operators = replace(backend.operators, contention=True, groups=groups)
        monkeypatch.setattr(backend, "operators", operators)
        monkeypatch.setattr(backend, "tally", ServerTally(backend))
        return backend

    @needs("contention")
    def test_what_happens_to_the_locks_of_a_group_is_counted(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Acquisitions, refusals, holds and losses, each in the group of its lock."""
        backend = self.counting(name, monkeypatch)
        for number in range(3):
            with self.lock(f"{name}:1:{number}") as held:
                assert not self.lock(held.name).acquire(blocking=False)
        with self.lock(f"{name}:2", timeout=20) as held:
            assert not self.lock(held.name).acquire(blocking_timeout=0.06)
        taken = self.lock(f"{name}:2", timeout=20)
        taken.acquire()
        backend.force_release(taken.name)
        with pytest.raises(LockLost):
            taken.ensure_held()
        backend.send_counts()
        one, two = (backend.contention(f"{name}:{number}") for number in (1, 2))
        assert (one.group, two.group) == (f"one-{name}", f"two-{name}")
        total = one.total
        assert (total.acquired, total.busy, total.timed_out, total.lost) == (3, 3, 0, 0)
        assert total.held.number == 3
        total = two.total
        assert (total.acquired, total.busy, total.timed_out, total.lost) == (2, 0, 1, 1)
        assert total.held.number == 1
        assert 0.05 <= total.held.quantile(0.5) <= 5
        assert asyncio.run(backend.acontention(f"{name}:2")) == two

    @needs("contention")
    def test_counts_are_added_to_those_of_before(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever is sent adds up, in the slot of five minutes in which it is sent."""
        backend = self.counting(name, monkeypatch)
        began = time.time()
        for _ in range(3):
            with self.lock(f"{name}:1"):
                pass
            backend.send_counts()
        found = backend.contention(f"{name}:1")
        assert len(found.slots) == 12
        assert found.total.acquired == sum(slot.acquired for slot in found.slots[-2:]) == 3
        assert -1 < began - found.slots[-2].began.timestamp() <= 601
        assert (found.slots[-1].began - found.total.began).total_seconds() == 11 * 300

    @needs("contention")
    def test_a_group_without_events_is_all_zero(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        total = self.counting(name, monkeypatch).contention(f"{name}:1").total
        assert (total.acquired, total.refused, total.lost, total.held.number) == (0, 0, 0, 0)
        assert total.waited.quantile(0.5) is None

    def test_without_the_setting_nothing_is_counted(self, name: str) -> None:
        """There is nothing to read, and nothing that counts."""
        backend = locks[self.using]
        assert backend.tally is None
        assert backend.contention(name) is None
