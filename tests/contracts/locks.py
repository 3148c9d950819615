"""What every backend promises; a test class for each backend extends ``LockContract``.

What a backend ``lacks`` is not asked of it: a test that ``needs`` it is not collected.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import pytest

from django_redis_lock import Lock, locks, signals
from django_redis_lock.exceptions import LockError, LockLost, LockNotAcquired
from tests.contracts.base import needs
from tests.contracts.callers import CallerContract
from tests.contracts.handles import HandleContract
from tests.contracts.records import RecordContract
from tests.contracts.standstills import StandstillContract
from tests.contracts.waiting import WaitingContract
from tests.tools import Background


class LayoutContract(HandleContract, WaitingContract, StandstillContract, RecordContract):
    """What depends on the servers that keep the locks, and on how they are reached."""

    @pytest.mark.parametrize("blocking_timeout", [0, 0.05])
    def test_second_holder_is_kept_out(self, name: str, blocking_timeout: float) -> None:
        """Another caller gets False, and its ``with`` statement raises; ``locked`` tells why."""
        assert not self.lock(name).locked()
        with self.lock(name) as held:
            other = self.lock(name)
            assert other.locked()
            assert held.owned()
            assert not other.owned()
            assert self.lock(name).acquire(blocking=False) is False
            assert self.lock(name).acquire(blocking_timeout=blocking_timeout) is False
            with pytest.raises(LockNotAcquired) as caught:
                self.lock(name, blocking_timeout=blocking_timeout).__enter__()
            assert caught.value.name == name

    @needs("fencing")
    def test_fences_rise(self, name: str) -> None:
        """Each holder's fence is greater than every earlier one's."""
        fences = []
        for _ in range(50):
            with self.lock(name) as held:
                fences.append(held.fence)
        assert fences == sorted(set(fences))

    def test_endless_lock_excludes(self, name: str) -> None:
        """``timeout=None`` is not a lease of zero: the lock stays held."""
        with self.lock(name, timeout=None) as held:
            holder = locks[self.using].holder(name)
            assert (holder.ttl, holder.expires_at) == (None, None)
            assert not self.lock(name, timeout=None).acquire(blocking_timeout=0.05)
            assert not self.lock(name).acquire(blocking=False)
            held.ensure_held()

    @needs("precision")
    def test_clock_of_the_client_decides_nothing(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A client whose wall clock jumps holds, waits and expires as others do."""
        jumps = iter(range(0, 10**9, 86_400))
        monkeypatch.setattr(time, "time", lambda: float(next(jumps)))
        with self.lock(name, timeout=1, auto_renew=True) as held:
            first = held.fence
            assert not self.lock(name).acquire(blocking_timeout=0.05)
            assert 0 < held.remaining <= 1
            held.ensure_held()
        dead = self.lock(name, timeout=0.1)
        dead.acquire()
        end = time.monotonic() + dead.remaining
        with self.lock(name, blocking_timeout=5) as held:
            assert held.fence > first
            assert time.monotonic() - end > -0.01

    def test_expired_lock_is_free(self, name: str) -> None:
        """A fixed lease is not renewed; who held it learns that, and can't free its successor's."""
        held = self.lock(name, timeout=0.05)
        held.acquire()
        with self.lock(name, blocking_timeout=5) as successor:
            assert (held.lost, held.guarded, held.remaining) == (True, False, 0.0)
            for use in (held.ensure_held, lambda: held.extend(5), held.release):
                with pytest.raises(LockLost) as caught:
                    use()
                assert caught.value.name == name
            successor.ensure_held()
            assert not self.lock(name, blocking=False).acquire()

    def test_release_from_another_thread(self, name: str) -> None:
        held = self.lock(name)
        held.acquire()
        Background(held.release).outcome()
        assert self.lock(name, blocking=False).acquire()

    def test_reentrant(self, name: str) -> None:
        """The same thread enters again, and the lock is free after the last exit."""
        with self.lock(name, reentrant=True) as outer:
            with self.lock(name, reentrant=True) as inner:
                assert inner.fence == outer.fence
                other = self.lock(name, blocking=False, reentrant=True)
                assert Background(other.acquire).outcome() is False
                with pytest.raises(LockError, match="already holds") as caught:
                    Background(outer.acquire).outcome()
                assert "reentrant=True" not in str(caught.value)
            outer.ensure_held()
            assert outer.locked()
        assert not outer.locked()

    def test_abandoned_generators_do_not_deadlock(self, name: str) -> None:
        """The garbage collector may close a generator that holds a lock at any moment."""

        def hold(number: int) -> Any:
            me = []
            with self.lock(f"{name}:{number}", reentrant=True):
                me.append(me)  # a cycle, so that only the collector ends it
                yield me

        before = gc.get_threshold()
        gc.set_threshold(7)
        try:
            for number in range(150):
                next(hold(number))
                with self.lock(name, reentrant=True):
                    pass
        finally:
            gc.set_threshold(*before)
            gc.collect()

    def test_reentrant_tasks_do_not_share(self, name: str) -> None:
        """Another asyncio task does not enter its creator's lock."""

        async def main() -> None:
            async with self.lock(name, reentrant=True):
                async with self.lock(name, reentrant=True, blocking=False):
                    pass
                other = self.lock(name, reentrant=True)
                assert not await asyncio.create_task(other.aacquire(blocking=False))
            assert await asyncio.create_task(other.aacquire(blocking=False))
            await other.arelease()

        asyncio.run(main())

    def test_finished_tasks_do_not_pass_on_their_locks(self, name: str) -> None:
        """A lock that a finished task or thread left held is not entered by a later one."""

        async def main() -> None:
            left: list[Lock] = []

            async def leave_held() -> None:
                left.append(self.lock(name, reentrant=True))
                await left[0].aacquire()

            await asyncio.create_task(leave_held())
            for _ in range(50):
                other = self.lock(name, reentrant=True)
                assert not await asyncio.create_task(other.aacquire(blocking=False))
            await left[0].arelease()

        asyncio.run(main())
        held = self.lock(name, reentrant=True)
        Background(held.acquire).outcome()
        for _ in range(50):
            other = self.lock(name, reentrant=True, blocking=False)
            assert Background(other.acquire).outcome() is False
        held.release()

    def test_loss_found_under_asyncio_is_told_to_async_receivers(self, name: str) -> None:
        """``lock_lost`` reaches an async receiver, and the caller gets LockLost."""
        told: list[str] = []

        async def receive(**kwargs: Any) -> None:
            told.append(kwargs["name"])

        async def main() -> None:
            held = self.lock(name, timeout=20)
            await held.aacquire()
            await locks[self.using].aforce_release(name)
            with pytest.raises(LockLost):
                await held.aensure_held()
            with pytest.raises(LockLost):
                await held.arelease()

        signals.lock_lost.connect(receive)
        try:
            asyncio.run(main())
        finally:
            signals.lock_lost.disconnect(receive)
        assert told == [name]


class LockContract(CallerContract, LayoutContract):
    """All that a backend promises which excludes."""
