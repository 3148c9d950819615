"""Locks that several hold together: semaphores, readers and writers, and queues with a bound."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from django_redis_lock import Lock, LockGroup, lock_many, locks, semaphore, signals
from django_redis_lock.exceptions import (
    InvalidLockBackend,
    LockError,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
)
from tests.contracts.base import Contract
from tests.tools import SOON, Background, eventually, told


class _Sharing(Contract):
    def semaphore(self, name: str, limit: int, *args: Any, **kwargs: Any) -> Lock:
        return semaphore(name, limit, *args, using=self.using, **kwargs)

    def reader(self, name: str, *args: Any, **kwargs: Any) -> Lock:
        return self.lock(name, *args, shared=True, **kwargs)

    def hold(self, *handles: Lock) -> None:
        """Acquire locks that have to be free."""
        assert [handle.acquire(blocking=False) for handle in handles] == [True] * len(handles)

    def waiting(self, name: str) -> int:
        return len(locks[self.using].waiting(name))

    def queue(self, handle: Lock, **options: Any) -> Background:
        """Let a handle wait, behind those that do already."""
        ahead = self.waiting(handle.name)
        started = Background(lambda: handle.acquire(**options))
        eventually(lambda: self.waiting(handle.name) > ahead or not started.is_alive(), "it waits")
        return started

    def queue_all(self, handles: Iterable[Lock]) -> list[Background]:
        return [self.queue(handle) for handle in handles]

    def holders(self, name: str) -> list[Any]:
        return list(locks[self.using].holders_of([name]))


class SharingContract(_Sharing):
    """What those can rely on who hold a lock together, and who wait for them."""

    # How many at once.

    def test_never_more_than_the_limit(self, name: str) -> None:
        """As many hold a permit as the limit says, and each has a fence of its own."""
        inside: list[int] = []
        seen: list[int] = []
        fences: list[int] = []

        def work(number: int) -> None:
            for _ in range(3):
                with self.semaphore(name, 3) as permit:
                    inside.append(number)
                    fences.append(permit.fence)
                    seen.append(len(inside))
                    time.sleep(0.002)
                    inside.remove(number)

        for worker in [Background(lambda number=number: work(number)) for number in range(10)]:
            worker.outcome()
        assert max(seen) == 3
        assert len(set(fences)) == 30
        assert self.holders(name) == []

    def test_each_caller_says_how_many(self, name: str) -> None:
        """The limit of the one who asks counts, and a lock that is held alone excludes all."""
        one, two = self.semaphore(name, 2), self.semaphore(name, 2)
        self.hold(one, two)
        assert not self.semaphore(name, 2).acquire(blocking=False)
        assert not self.lock(name).acquire(blocking=False)
        third = self.semaphore(name, 3)
        self.hold(third)
        for permit in (one, two, third):
            permit.release()
        with self.lock(name):
            assert not self.semaphore(name, 3).acquire(blocking=False)
            assert not self.reader(name).acquire(blocking=False)

    def test_readers_hold_it_together_and_writers_alone(self, name: str) -> None:
        readers = [self.reader(name) for _ in range(5)]
        self.hold(*readers)
        assert not self.lock(name).acquire(blocking=False)
        fences = [reader.fence for reader in readers]
        assert fences == sorted(set(fences))
        for reader in readers:
            reader.ensure_held()
            reader.release()
        with self.lock(name) as writer:
            assert not self.reader(name).acquire(blocking=False)
            assert writer.fence > fences[-1]

    def test_limit_of_nought_lets_nobody_in(self, name: str) -> None:
        assert not self.semaphore(name, 0).acquire(blocking_timeout=0.05)
        assert self.waiting(name) == 0
        self.hold(self.semaphore(name, 1))

    # Whose turn it is.

    def test_all_wait_in_one_queue(self, name: str) -> None:
        """Whoever comes first goes first, and adjacent ones that fit together go at once."""
        groups = [
            [self.reader(name), self.reader(name)],
            [self.lock(name)],
            [self.semaphore(name, 2), self.semaphore(name, 2)],
            [self.lock(name)],
            [self.lock(name)],
            [self.reader(name), self.semaphore(name, 3), self.reader(name)],
        ]
        before, last = [self.lock(name)], 0
        self.hold(*before)
        started = [self.queue_all(group) for group in groups]
        left = sum(map(len, groups))
        for group, backgrounds in zip(groups, started, strict=True):
            for held in before:
                assert self.waiting(name) == left
                held.release()
            assert [each.outcome() for each in backgrounds] == [True] * len(group)
            left -= len(group)
            assert self.waiting(name) == left
            fences = [held.fence for held in group]
            assert fences == sorted(fences)
            assert fences[0] > last
            before, last = group, fences[-1]
        for held in before:
            held.release()
        assert self.holders(name) == []

    def test_nobody_passes_those_who_wait(self, name: str) -> None:
        """Readers that come later don't starve a writer, nor writers a reader."""
        first, writer, reader = self.reader(name), self.lock(name), self.reader(name)
        self.hold(first)
        writing, reading = self.queue_all([writer, reader])
        for newcomer in (self.reader(name), self.semaphore(name, 9), self.lock(name)):
            assert not newcomer.acquire(blocking=False)
        later = self.queue(self.lock(name))
        first.release()
        assert writing.outcome() is True
        assert not self.reader(name).acquire(blocking=False)
        writer.release()
        assert reading.outcome() is True
        assert self.waiting(name) == 1
        reader.release()
        assert later.outcome() is True

    def test_permits_pass_in_order_of_arrival(self, name: str) -> None:
        """Each release lets in one of those who wait, the longest waiting first."""
        held = [self.semaphore(name, 2) for _ in range(2)]
        self.hold(*held)
        queued = [self.semaphore(name, 2) for _ in range(4)]
        started = self.queue_all(queued)
        for number, waiter in enumerate(queued):
            held.pop(0).release()
            assert started[number].outcome() is True
            assert self.waiting(name) == 3 - number
            held.append(waiter)
        assert len(self.holders(name)) == 2

    @pytest.mark.parametrize("how", ["timeout", "cancelled"])
    def test_waiters_that_leave_let_in_those_behind(self, name: str, how: str) -> None:
        """A writer that stops waiting no longer holds up the readers behind it."""
        self.hold(self.reader(name))

        def wait_and_leave() -> float:
            async def main() -> None:
                task = asyncio.create_task(self.lock(name).aacquire())
                while len(await locks[self.using].awaiting(name)) < 3:
                    await asyncio.sleep(0.002)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

            if how == "cancelled":
                asyncio.run(main())
            else:
                assert not self.lock(name).acquire(blocking_timeout=0.3)
            return time.monotonic()

        leaving = Background(wait_and_leave)
        eventually(lambda: self.waiting(name) == 1)
        readers = self.queue_all([self.reader(name), self.semaphore(name, 3)])
        left = leaving.outcome()
        assert [each.outcome() for each in readers] == [True, True]
        assert max(each.ended_at for each in readers) - left < SOON

    # Holders that are late or dead.

    def test_permits_of_dead_holders_come_back(self, name: str) -> None:
        """Several whose leases end at once let in as many as wait for them."""
        dead = [self.semaphore(name, 3, timeout=1) for _ in range(3)]
        self.hold(*dead)
        started = self.queue_all(self.semaphore(name, 3) for _ in range(4))
        end = time.monotonic() + max(permit.remaining for permit in dead)
        eventually(lambda: sum(not each.is_alive() for each in started) == 3)
        assert [each.outcome() for each in started[:3]] == [True] * 3
        late = [each.ended_at - end for each in started[:3]]
        assert all(-0.1 < seconds < SOON for seconds in late), late
        assert self.waiting(name) == 1
        assert all(permit.lost for permit in dead)
        locks[self.using].force_release(name, self.holders(name)[0].token_id)
        assert started[3].outcome() is True

    def test_dead_holders_leak_no_permit(self, name: str) -> None:
        """However many die, exactly as many permits can be held afterwards as before."""
        for _ in range(12):
            assert self.semaphore(name, 2, timeout=0.02).acquire()
        held = [self.semaphore(name, 2) for _ in range(2)]
        assert [permit.acquire(blocking_timeout=5) for permit in held] == [True, True]
        assert not self.semaphore(name, 2).acquire(blocking=False)
        for permit in held:
            permit.release()
        assert self.holders(name) == []
        self.hold(*[self.semaphore(name, 2) for _ in range(2)])

    def test_second_and_late_releases_change_nothing(self, name: str) -> None:
        """A limit of one stays one, though every former holder releases after its lease."""
        former: list[Lock] = []
        for _ in range(6):
            permit = self.semaphore(name, 1, timeout=0.03, blocking_timeout=5)
            assert permit.acquire()
            former.append(permit)
        with self.semaphore(name, 1, blocking_timeout=5) as held:
            for permit in former:
                with pytest.raises(LockLost):
                    permit.release()
                with pytest.raises(LockNotOwned):
                    permit.release()
                assert not self.semaphore(name, 1).acquire(blocking=False)
            held.ensure_held()

    def test_late_holder_revives_no_permit(self, name: str) -> None:
        """A holder that was thought dead, and renews, gets no permit beside the others."""
        late = self.semaphore(name, 1, timeout=0.05)
        self.hold(late)
        with self.semaphore(name, 1, blocking_timeout=5) as held:
            for revive in (lambda: late.extend(9), late.reacquire, late.ensure_held):
                with pytest.raises(LockLost):
                    revive()
            with pytest.raises(LockLost):
                late.detach(9)
            (holder,) = self.holders(name)
            assert holder.token_id == held.token_id

    def test_permits_are_renewed(self, name: str) -> None:
        """Each in the background for as long as its handle lives, beside others that end."""
        renewed = [self.semaphore(name, 3, timeout=0.6, auto_renew=True) for _ in range(2)]
        fixed = self.semaphore(name, 3, timeout=0.3)
        self.hold(*renewed, fixed)
        first = [permit._lease.deadline for permit in renewed]
        for permit, deadline in zip(renewed, first, strict=True):
            eventually(lambda: permit._lease.deadline > deadline + 0.2)  # noqa: B023
        eventually(lambda: len(self.holders(name)) == 2)
        assert fixed.lost
        for permit in renewed:
            permit.release()
        assert self.holders(name) == []

    # What one handle does.

    def test_lease_of_a_permit(self, name: str) -> None:
        """It is extended, replaced, reset, asked for and shown as that of a lock."""
        with (
            self.semaphore(name, 2, timeout=40) as other,
            self.semaphore(name, 2, timeout=10) as held,
        ):
            held.extend(20)
            assert 29 < held.remaining <= 30
            held.extend(5, replace_ttl=True)
            assert 4 < held.remaining <= 5
            held.reacquire()
            assert 9 < held.remaining <= 10
            held.ensure_held()
            assert held.owned()
            assert held.locked()
            shown = {holder.token_id: holder for holder in self.holders(name)}
            assert 9 < shown[held.token_id].ttl <= 10
            assert 39 < shown[other.token_id].ttl <= 40
        assert not held.locked()

    def test_endless_permit(self, name: str) -> None:
        """It excludes others for as long as it is held, and leaves nothing behind."""
        with self.semaphore(name, 2, timeout=None) as held:
            assert held.remaining == math.inf
            with self.semaphore(name, 2, timeout=None), self.semaphore(name, 3, timeout=20):
                assert [item.ttl for item in self.holders(name)].count(None) == 2
                assert not self.semaphore(name, 2).acquire(blocking=False)
                held.ensure_held()
            with pytest.raises(LockError, match="never expires"):
                held.extend(5)
            self.hold(self.semaphore(name, 2, timeout=0.1))  # and it dies
        with self.lock(name, blocking_timeout=5):
            pass
        assert list(locks[self.using].holders(name)) == []

    def test_decorator(self, name: str) -> None:
        seen = []

        @self.semaphore(name, 2)
        def work() -> None:
            seen.append([(item.shared, item.limit) for item in self.holders(name)])

        @self.reader(name)
        async def read() -> None:
            seen.append([(item.shared, item.limit) for item in self.holders(name)])

        work()
        asyncio.run(read())
        assert seen == [[(True, 2)], [(True, None)]]

    def test_async_face(self, name: str) -> None:
        """Tasks share and wait as threads do."""

        async def main() -> int:
            inside, most = 0, 0

            async def work() -> None:
                nonlocal inside, most
                async with self.semaphore(name, 3) as permit:
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0.005)
                    await permit.aensure_held()
                    inside -= 1

            await asyncio.gather(*[work() for _ in range(12)])
            writer = self.lock(name)
            async with writer:
                reading = asyncio.create_task(self.reader(name).aacquire())
                while not await locks[self.using].awaiting(name):
                    await asyncio.sleep(0.002)
                await writer.adowngrade()
                assert await reading
            await locks[self.using].aset_limit(name, 7, by="ann")
            (limit,) = [item for item in await locks[self.using].alimits() if item.name == name]
            await locks[self.using].aset_limit(name, None)
            assert (limit.limit, limit.by) == (7, "ann")
            return most

        assert asyncio.run(main()) == 3

    def test_reentrant(self, name: str) -> None:
        """It is entered again as often as one likes, but by nobody who needs it alone."""
        with self.reader(name, reentrant=True) as outer:
            with self.reader(name, reentrant=True) as inner:
                assert inner.fence == outer.fence
                with pytest.raises(LockError, match="can't get it alone as well"):
                    self.lock(name, reentrant=True).acquire()
                assert len(self.holders(name)) == 1
            outer.ensure_held()
        assert self.holders(name) == []
        with self.lock(name, reentrant=True) as alone:
            with self.reader(name, reentrant=True) as inner:
                assert inner.fence == alone.fence
            assert not Background(lambda: self.reader(name).acquire(blocking=False)).outcome()

    def test_several_shared(self, name: str) -> None:
        """``lock_many`` shares all of its locks, and waits for those who do not."""
        names = [f"{name}:{number}" for number in range(3)]
        with (
            lock_many(names, shared=True, using=self.using) as one,
            lock_many(names, shared=True, using=self.using) as other,
        ):
            assert all(one.fences[each] < other.fences[each] for each in names)
            group = lock_many([*names, f"{name}:0"], blocking=False, using=self.using)
            assert not group.acquire()
            writing = self.queue(self.lock(names[1]))
            assert not lock_many(names, shared=True, using=self.using).acquire(blocking=False)
        assert writing.outcome() is True
        assert [holder.name for each in names for holder in self.holders(each)] == [names[1]]

    def test_several_permits(self, name: str) -> None:
        """``lock_many`` takes a permit of each semaphore, or none, and waits for one in each."""
        names = [f"{name}:{number}" for number in range(3)]

        def group(**options: Any) -> LockGroup:
            return lock_many(names, limit=2, using=self.using, **options)

        with group() as one, group() as other:
            assert all(one.fences[each] < other.fences[each] for each in names)
            assert {holder.limit for each in names for holder in self.holders(each)} == {2}
            assert not self.semaphore(names[2], 2).acquire(blocking=False)
        full = [self.semaphore(names[1], 2) for _ in range(2)]
        self.hold(*full)
        with pytest.raises(LockNotAcquired, match=f"'{names[1]}' at once: no permit was free"):
            group(blocking=False).__enter__()
        assert not self.holders(names[0])
        waiting = Background(group().acquire)
        eventually(lambda: self.waiting(names[1]) == 1)
        assert [len(self.holders(each)) for each in names] == [1, 2, 0]
        full[0].release()
        assert waiting.outcome() is True
        assert [len(self.holders(each)) for each in names] == [1, 2, 1]
        with pytest.raises(ValueError, match="shared and limit exclude each other"):
            group(shared=True)

    def test_permit_passes_to_another_handle(self, name: str) -> None:
        """Detached it counts among the permits until it is taken over, with a greater fence."""
        held = self.semaphore(name, 2)
        self.hold(held, self.semaphore(name, 2))
        fence, ticket = held.fence, held.detach(20)
        assert not self.semaphore(name, 2).acquire(blocking=False)
        assert ticket in [holder.token_id for holder in self.holders(name)]
        assert not self.lock(name).take_over(ticket)  # it would have it alone
        successor = self.semaphore(name, 2)
        assert successor.take_over(ticket)
        assert successor.fence > fence
        assert not self.semaphore(name, 2).take_over(ticket)
        assert {holder.limit for holder in self.holders(name)} == {2}
        successor.release()
        self.hold(self.semaphore(name, 2))

    # From alone to shared.

    def test_downgrade(self, name: str) -> None:
        """The readers next in line get in at once, the writer behind them does not."""
        held = self.lock(name, timeout=20)
        self.hold(held)
        readers = [self.reader(name), self.semaphore(name, 3)]
        reading = self.queue_all(readers)
        writing, later = self.queue_all([self.lock(name), self.reader(name)])
        held.extend(40, replace_ttl=True)
        fence = held.fence
        held.downgrade()
        assert [each.outcome() for each in reading] == [True, True]
        assert fence < held.fence < readers[0].fence < readers[1].fence
        assert 39 < held.remaining <= 40
        assert self.waiting(name) == 2
        held.downgrade()
        held.ensure_held()
        assert len(self.holders(name)) == 3
        for each in (*readers, held):
            each.release()
        assert writing.outcome() is True
        assert self.waiting(name) == 1
        locks[self.using].force_release(name)
        assert later.outcome() is True

    def test_downgrade_of_an_endless_lock(self, name: str) -> None:
        """It stays without end."""
        with self.lock(name, timeout=None) as held:
            held.downgrade()
            assert held.remaining == math.inf
            assert [holder.ttl for holder in self.holders(name)] == [None]
            self.hold(self.reader(name, timeout=0.05))
        assert self.lock(name).acquire(blocking_timeout=5)

    def test_downgrades_that_can_not_be(self, name: str) -> None:
        with pytest.raises(LockNotOwned):
            self.lock(name).downgrade()
        lost = self.lock(name)
        self.hold(lost)
        locks[self.using].force_release(name)
        with pytest.raises(LockLost):
            lost.downgrade()
        assert lost.lost
        with self.lock(name, reentrant=True) as held, self.lock(name, reentrant=True):
            with pytest.raises(LockError, match="entered 2 times and can't be downgraded"):
                held.downgrade()
            assert not self.holders(name)[0].shared

    @pytest.mark.parametrize("limit", [None, 4])
    def test_upgrade_is_refused(self, name: str, limit: int | None) -> None:
        """Who shares the lock can't wait for having it alone, with an error that says why."""
        shared = self.reader(name) if limit is None else self.semaphore(name, limit)
        self.hold(shared)
        for wait in (None, 5):
            with pytest.raises(LockError, match=r"would wait for each other.*downgrade\(\)"):
                self.lock(name).acquire(blocking_timeout=wait)
        assert not self.lock(name).acquire(blocking=False)
        assert self.waiting(name) == 0
        shared.ensure_held()

    def test_caller_that_waits_for_its_own_permits(self, name: str) -> None:
        """It is told so, unless somebody else may let it in."""
        ours = [self.semaphore(name, 2) for _ in range(2)]
        self.hold(*ours)

        def ask(*, wait: float | None = None) -> bool:
            return self.semaphore(name, 2).acquire(blocking_timeout=wait)

        with pytest.raises(LockError, match="would wait for itself for ever"):
            ask()
        assert not ask(wait=0.01)
        ours[0].release()
        another = self.semaphore(name, 2)
        assert Background(another.acquire).outcome() is True

        backend = locks[self.using]

        def let_in(limit: int | None = None) -> None:
            eventually(lambda: self.waiting(name) == 1)
            another.release() if limit is None else backend.set_limit(name, limit)

        ending = Background(let_in)
        assert ask()
        ending.outcome()
        backend.set_limit(name, 0)
        ending = Background(lambda: let_in(9))
        assert ask()
        ending.outcome()

    # What operators do.

    def test_limit_of_an_operator(self, name: str) -> None:
        """It goes before that of the callers, at once, until it is cleared."""
        backend = locks[self.using]
        held = [self.semaphore(name, 2) for _ in range(2)]
        self.hold(*held)
        started = self.queue_all(self.semaphore(name, 2) for _ in range(5))

        def let_in() -> int:
            return sum(not each.is_alive() for each in started)

        def check(number: int) -> None:
            eventually(lambda: let_in() == number)
            assert self.waiting(name) == 5 - number

        backend.set_limit(name, 4, by="ann")
        check(2)
        (limit,) = [item for item in backend.limits() if item.name == name]
        assert (limit.limit, limit.by, limit.using) == (4, "ann", self.using)
        assert {(item.shared, item.limit) for item in self.holders(name)} == {(True, 4)}
        assert {item.limit for item in backend.waiting(name)} == {2}
        backend.set_limit(name, 3)
        held[0].release()  # three are left, as many as may be
        assert len(self.holders(name)) == 3
        assert self.waiting(name) == 3
        held[1].release()
        check(3)
        backend.set_limit(name, 0)
        for holder in self.holders(name):
            backend.force_release(name, holder.token_id)
        assert self.holders(name) == []
        assert self.waiting(name) == 2
        assert not self.semaphore(name, 9).acquire(blocking=False)
        backend.set_limit(name, None)
        check(5)
        assert name not in [item.name for item in backend.limits()]

    def test_limit_is_for_semaphores(self, name: str) -> None:
        """Readers and writers are let in all the same."""
        locks[self.using].set_limit(name, 0)
        with self.reader(name), self.reader(name):
            assert {item.limit for item in self.holders(name)} == {None}
        with self.lock(name):
            pass
        locks[self.using].set_limit(name, None)

    @pytest.mark.parametrize("limit", [-1, True, 1.0, "3", 1_000_001])
    def test_senseless_limits_are_refused(self, name: str, limit: Any) -> None:
        with pytest.raises(ValueError, match=r"limit=.* must be a whole number from 0 to 1000000"):
            locks[self.using].set_limit(name, limit)
        with pytest.raises(ValueError, match=r"limit=.* must be a whole number from 0 to 1000000"):
            self.semaphore(name, limit)
        with pytest.raises(ValueError, match="limit=None must be a whole number from 0 to 1000000"):
            self.semaphore(name, cast("int", None))
        with pytest.raises(ValueError, match=r"max_waiters=.* must be a whole number"):
            self.lock(name, max_waiters=limit)
        with pytest.raises(TypeError, match="shared=1 must be True or False"):
            self.lock(name, shared=1)

    def test_holders_come_in_the_order_in_which_they_got_it(self, name: str) -> None:
        """Whenever their leases end."""
        held = [self.semaphore(name, 3, timeout=20) for _ in range(3)]
        self.hold(*held)
        held[0].extend(40)
        assert [one.fence for one in self.holders(name)] == [each.fence for each in held]

    def test_forced_release_of_one_of_several(self, name: str) -> None:
        """It names the one; the others keep theirs, and the longest waiting gets in."""
        backend = locks[self.using]
        held = [self.semaphore(name, 2) for _ in range(2)]
        self.hold(*held)
        started = self.queue(self.semaphore(name, 2))
        with pytest.raises(LockError, match="has 2 holders; give the token_id"):
            backend.force_release(name)
        with told(signals.lock_force_released, signals.lock_lost) as calls:
            former = backend.force_release(name, held[0].token_id, by="ann", reason="stuck")
            assert started.outcome() is True
            with pytest.raises(LockLost):
                held[0].release()
        assert (former.token_id, former.limit) == (calls[0]["holder"].token_id, 2)
        assert [call["signal"] for call in calls] == [
            signals.lock_force_released,
            signals.lock_lost,
        ]
        held[1].ensure_held()
        (entry,) = backend.history(name)
        assert (entry.by, entry.reason, entry.token_id) == ("ann", "stuck", former.token_id)
        assert backend.force_release(name, former.token_id) is None

    def test_thousand_permits_are_listed(self, name: str) -> None:
        """Each with its own holder; the first is ``holder()``."""
        permits = [self.semaphore(name, 1000, timeout=60) for _ in range(1000)]
        self.hold(*permits)
        assert not self.semaphore(name, 1000).acquire(blocking=False)
        shown = list(locks[self.using].holders(name))
        assert {item.token_id for item in shown} == {permit.token_id for permit in permits}
        assert len(shown) == 1000
        assert {(item.shared, item.limit, item.waiters) for item in shown} == {(True, 1000, 0)}
        assert locks[self.using].holder(name) in shown or self.holders(name)

    # A bound on the crowd.

    @pytest.mark.parametrize("make", ["lock", "reader", "semaphore"])
    def test_queue_with_a_bound(self, name: str, make: str) -> None:
        """When so many wait already, a further caller is told so at once, and only that one."""
        kinds: dict[str, Callable[..., Lock]] = {
            "lock": self.lock,
            "reader": self.reader,
            "semaphore": lambda name, **options: self.semaphore(name, 3, **options),
        }
        held = self.lock(name)
        self.hold(held)
        started = self.queue_all(kinds[make](name, max_waiters=2) for _ in range(2))
        began = time.monotonic()
        with told(signals.lock_not_acquired) as calls:
            assert not kinds[make](name, max_waiters=2).acquire()
            assert not kinds[make](name, max_waiters=0).acquire(blocking_timeout=30)
        assert time.monotonic() - began < SOON
        assert [call["reason"] for call in calls] == ["full", "full"]
        with pytest.raises(
            LockNotAcquired, match="at once, as max_waiters=2 allows no more that wait"
        ):
            kinds[make](name, max_waiters=2).__enter__()
        assert self.waiting(name) == 2
        third = self.queue(kinds[make](name, max_waiters=3))
        unbounded = self.queue(kinds[make](name))
        assert not kinds[make](name, max_waiters=2).acquire(blocking=False)
        held.release()
        for each in (*started, third, unbounded):
            if make == "lock" or each is unbounded:
                eventually(lambda: not each.is_alive() or self.holders(name))  # noqa: B023
            while each.is_alive():
                for holder in self.holders(name):
                    locks[self.using].force_release(name, holder.token_id)
            assert each.outcome() is True

    def test_several_with_a_bound(self, name: str) -> None:
        """A group that does not get into one of the queues gives the others back."""
        self.hold(self.lock(f"{name}:2"))
        group = lock_many([f"{name}:1", f"{name}:2"], max_waiters=0, using=self.using)
        full = f"'{name}:2' at once, as max_waiters=0 allows no more that wait"
        with pytest.raises(LockNotAcquired, match=full) as caught:
            group.__enter__()
        assert caught.value.name == f"{name}:2"
        self.hold(self.lock(f"{name}:1"))


class UnsharedContract(_Sharing):
    """A backend whose locks can't be shared says so, and goes on working."""

    def test_sharing_is_refused(self, name: str) -> None:
        """At the call, with what to use instead; nothing is held or waited for."""
        for handle in (
            self.semaphore(name, 2),
            self.reader(name),
            self.lock(name, max_waiters=2),
            lock_many([name], shared=True, using=self.using),
            lock_many([name], limit=2, using=self.using),
        ):
            with pytest.raises(InvalidLockBackend, match=r"can't be shared.* RedisLockBackend"):
                handle.acquire(blocking=False)
        with pytest.raises(InvalidLockBackend, match="can't be shared"):
            locks[self.using].set_limit(name, 3)
        with self.lock(name) as held:
            with pytest.raises(InvalidLockBackend, match="can't be shared"):
                held.downgrade()
            held.ensure_held()
        assert locks[self.using].limits() == []
