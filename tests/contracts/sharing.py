"""Locks that several hold together: semaphores, readers and writers, and queues with a bound."""

from __future__ import annotations

import asyncio
import math
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
from django_redis_lock.operators import unheld
from django_redis_lock.testing import unavailable
from tests.contracts.base import Contract
from tests.tools import Background, eventually, queue, told


class _Sharing(Contract):
    def semaphore(self, name: str, limit: int, *args: Any, **kwargs: Any) -> Lock:
        return semaphore(name, limit, *args, using=self.using, **kwargs)

    def reader(self, name: str, *args: Any, **kwargs: Any) -> Lock:
        return self.lock(name, *args, shared=True, **kwargs)

    def permits(self, name: str, number: int, **options: Any) -> list[Lock]:
        """Take all permits of a semaphore that nobody holds."""
        return self.hold(*[self.semaphore(name, number, **options) for _ in range(number)])

    def hold(self, *handles: Lock) -> list[Lock]:
        """Acquire locks that have to be free."""
        assert [handle.acquire(blocking=False) for handle in handles] == [True] * len(handles)
        return [*handles]

    def refuses(self, *handles: Lock) -> bool:
        return not any(handle.acquire(blocking=False) for handle in handles)

    def waiting(self, name: str) -> int:
        return len(locks[self.using].waiting(name))

    def holders(self, name: str) -> list[Any]:
        return list(locks[self.using].holders_of([name]))

    def release_others(self, name: str) -> None:
        for holder in self.holders(name):
            locks[self.using].force_release(name, holder.token_id)


class SharingContract(_Sharing):
    """What those can rely on who hold a lock together, and who wait for them."""

    # How many at once.

    def test_each_caller_says_how_many(self, name: str) -> None:
        """The limit of the one who asks counts, and a lock that is held alone excludes all."""
        permits = self.permits(name, 2)
        assert self.refuses(self.semaphore(name, 2), self.lock(name))
        permits += self.hold(self.semaphore(name, 3))
        for permit in permits:
            permit.release()
        with self.lock(name):
            assert self.refuses(self.semaphore(name, 3), self.reader(name))
        decorated = self.semaphore(name, 1)(lambda: [item.limit for item in self.holders(name)])
        assert decorated() == [1]
        assert not self.semaphore(name, 0).acquire(blocking_timeout=0.05)
        assert self.waiting(name) == 0
        with pytest.raises(LockNotAcquired, match=r"at once: paused: limit 0\."):
            self.semaphore(name, 0, blocking=False).__enter__()
        self.permits(name, 1)

    @pytest.mark.parametrize(
        ("limit", "by", "why"),
        [
            (None, "", "all 2 permits are taken"),
            (1, "ada", "the only permit is taken"),
            (0, "ada\n", r"paused: limit 0, set by ada"),
            (0, "", "paused: limit 0, set by an operator"),
        ],
    )
    @pytest.mark.parametrize("way", ["sync", "async"])
    def test_error_says_why_there_is_no_permit(
        self, name: str, limit: int | None, by: str, why: str, way: str
    ) -> None:
        """A semaphore that an operator has paused is told from one whose permits are taken."""

        async def enter() -> None:
            async with self.semaphore(name, 2, blocking=False):
                pass

        self.hold(*[self.semaphore(name, 2) for _ in range(2)])
        locks[self.using].set_limit(name, limit, by=by)
        with pytest.raises(LockNotAcquired, match=rf"at once: {why}\.$") as caught:
            if way == "async":
                asyncio.run(enter())
            self.semaphore(name, 2, blocking=False).__enter__()
        assert caught.value.paused is (limit == 0)

    def test_readers_hold_it_together_and_writers_alone(self, name: str) -> None:
        """What an operator has set is for semaphores."""
        locks[self.using].set_limit(name, 0)
        readers = self.hold(*[self.reader(name) for _ in range(5)])
        assert self.refuses(self.lock(name))
        fences = [reader.fence for reader in readers]
        assert fences == sorted(set(fences))
        assert {item.limit for item in self.holders(name)} == {None}
        for reader in readers:
            reader.ensure_held()
            reader.release()
        with self.lock(name) as writer:
            assert self.refuses(self.reader(name))
            assert writer.fence > fences[-1]
        locks[self.using].set_limit(name, None)

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
        before, last = self.hold(self.lock(name)), 0
        started = [queue(*group) for group in groups]
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

    # Holders that are late or dead.

    def test_releases_that_come_late_or_twice(self, name: str) -> None:
        """They give back nobody's permit, where a counter would let in one more each time."""
        dead = self.semaphore(name, 2, timeout=0.05)
        (kept,) = self.hold(self.semaphore(name, 2), dead)[:1]
        heir = self.semaphore(name, 2, timeout=20)
        assert heir.acquire(blocking_timeout=20)
        kept.release()
        for former in (dead, dead, kept, kept):
            with pytest.raises((LockLost, LockNotOwned)):
                former.release()
        assert [holder.token_id for holder in self.holders(name)] == [heir.token_id]
        self.hold(self.semaphore(name, 2))
        assert self.refuses(self.semaphore(name, 2))

    # What one handle does.

    def test_tasks_share(self, name: str) -> None:
        """Tasks share and wait as threads do, and set limits."""
        backend = locks[self.using]

        async def main() -> None:
            async with self.lock(name) as writer:
                reading = asyncio.create_task(self.reader(name).aacquire())
                while not await backend.awaiting(name):
                    await asyncio.sleep(0.002)
                await writer.adowngrade()
                assert await reading
            await backend.aset_limit(name, 7, by="ann")
            assert (name, 7, "ann") in [
                (it.name, it.limit, it.by) for it in await backend.alimits()
            ]
            await backend.aset_limit(name, None)

        asyncio.run(main())

    def test_shared_lock_is_reentrant(self, name: str) -> None:
        """It is entered again as often as one likes, but by nobody who needs it alone."""
        options = {"reentrant": True}
        for make in (self.reader, lambda name, **options: self.semaphore(name, 1, **options)):
            with make(name, **options) as outer:
                with make(name, **options) as inner:
                    assert inner.fence == outer.fence
                    with pytest.raises(LockError, match=r"from shared to exclusive.*Release"):
                        self.lock(name, **options).acquire()
                    assert len(self.holders(name)) == 1
                outer.ensure_held()
            assert self.holders(name) == []
        with self.lock(name, **options) as alone:
            with self.reader(name, **options) as inner:
                assert inner.fence == alone.fence
                with pytest.raises(
                    LockError, match="can't be downgraded while 2 reentrant handles hold it"
                ):
                    alone.downgrade()
            assert not Background(lambda: self.reader(name).acquire(blocking=False)).outcome()
            alone.downgrade()
            with pytest.raises(LockError, match="downgrade"):
                alone.acquire()
        assert self.holders(name) == []

    def test_several_shared(self, name: str) -> None:
        """``lock_many`` shares all of its locks, waits for those who do not, or for nobody."""
        names = [f"{name}:{number}" for number in range(3)]
        with (
            lock_many(names, shared=True, using=self.using) as one,
            lock_many(names, shared=True, using=self.using) as other,
        ):
            assert all(one.fences[each] < other.fences[each] for each in names)
            assert not lock_many(names, blocking=False, using=self.using).acquire()
            (writing,) = queue(self.lock(names[1]))
            assert not lock_many(names, shared=True, using=self.using).acquire(blocking=False)
        assert writing.outcome() is True
        group = lock_many(names, max_waiters=0, using=self.using)
        full = rf"'{names[1]}': its queue is full \(max_waiters=0\)"
        with pytest.raises(LockNotAcquired, match=full) as caught:
            group.__enter__()
        assert caught.value.name == names[1]
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
        with pytest.raises(LockNotAcquired, match=f"'{names[1]}' at once: all 2 permits are taken"):
            group(blocking=False).__enter__()
        assert not self.holders(names[0])
        waiting = Background(group().acquire)
        eventually(lambda: self.waiting(names[1]) == 1)
        assert [len(self.holders(each)) for each in names] == [1, 2, 0]
        full[0].release()
        assert waiting.outcome() is True
        assert [len(self.holders(each)) for each in names] == [1, 2, 1]
        with pytest.raises(ValueError, match="shared conflicts with limit"):
            group(shared=True)

    def test_permit_passes_to_another_handle(self, name: str) -> None:
        """Detached it counts among the permits until it is taken over, but not alone."""
        held, _ = self.permits(name, 2)
        ticket = held.detach(20)
        assert self.refuses(self.semaphore(name, 2))
        assert not self.lock(name).take_over(ticket)
        successor = self.semaphore(name, 2)
        assert successor.take_over(ticket)
        assert {holder.limit for holder in self.holders(name)} == {2}
        successor.release()
        self.hold(self.semaphore(name, 2))

    # From alone to shared.

    def test_downgrade(self, name: str) -> None:
        """The readers next in line get in at once, the writer behind them does not."""
        held = self.lock(name, timeout=20)
        self.hold(held)
        readers = [self.reader(name), self.semaphore(name, 3)]
        *reading, writing, later = queue(*readers, self.lock(name), self.reader(name))
        held.extend(40, replace_ttl=True)
        fence = held.fence
        held.downgrade()
        assert len(self.holders(name)) == 3
        assert [each.outcome() for each in reading] == [True, True]
        assert fence < held.fence < readers[0].fence < readers[1].fence
        assert 20 < held.remaining <= 40
        assert self.waiting(name) == 2
        held.downgrade()
        held.ensure_held()
        assert len(self.holders(name)) == 3
        for each in (*readers, held):
            each.release()
        assert writing.outcome() is True
        assert self.waiting(name) == 1
        self.release_others(name)
        assert later.outcome() is True

    def test_downgrade_of_an_endless_lock(self, name: str) -> None:
        """It keeps no expiry until it is released beside one that dies."""
        with pytest.raises(LockNotOwned):
            self.lock(name).downgrade()
        with self.lock(name, timeout=None) as held:
            held.downgrade()
            assert held.remaining == math.inf
            assert [holder.ttl for holder in self.holders(name)] == [None]
            self.hold(self.reader(name, timeout=0.05))
        lost = self.lock(name)
        assert lost.acquire(blocking_timeout=5)
        locks[self.using].force_release(name)
        with pytest.raises(LockLost):
            lost.downgrade()
        assert lost.lost

    @pytest.mark.parametrize("limit", [None, 4])
    def test_upgrade_is_refused(self, name: str, limit: int | None) -> None:
        """Who shares the lock can't wait for having it alone, with an error that says why."""
        with self.reader(name) if limit is None else self.semaphore(name, limit) as shared:
            for wait in (None, 5):
                with pytest.raises(LockError, match=r"would deadlock.*downgrade\(\)"):
                    self.lock(name).acquire(blocking_timeout=wait)
            assert self.refuses(self.lock(name))
            assert self.waiting(name) == 0
            shared.ensure_held()

    def test_caller_that_waits_for_its_own_permits(self, name: str) -> None:
        """It is told so, unless somebody else may let it in."""
        ours = [self.semaphore(name, 2) for _ in range(2)]
        self.hold(*ours)

        def ask(*, wait: float | None = None) -> bool:
            asking = self.semaphore(name, 2)
            acquired = asking.acquire(blocking_timeout=wait)
            if acquired:
                asking.release()
            return acquired

        with pytest.raises(LockError, match="would wait for it forever"):
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
        held = self.permits(name, 2)
        started = queue(*[self.semaphore(name, 2) for _ in range(5)])

        def check(number: int) -> None:
            eventually(lambda: sum(not each.is_alive() for each in started) == number)
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
        self.release_others(name)
        assert self.holders(name) == []
        assert self.waiting(name) == 2
        assert self.refuses(self.semaphore(name, 9))
        backend.set_limit(name, None)
        check(5)
        assert name not in [item.name for item in backend.limits()]

    def test_a_limit_wakes_who_polls_in_this_process(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        freed = list[str]()
        monkeypatch.setattr(locks[self.using], "freed", freed.append)
        for limit in (2, None):
            locks[self.using].set_limit(name, limit)
        assert freed == [name, name]

    def test_queue_without_a_holder(self, name: str) -> None:
        """Operators see how many wait, whether a limit is set or not."""
        backend = locks[self.using]

        def found() -> list[Any]:
            found = unheld(backend, name.__eq__)
            return [(each.limit and each.limit.limit, each.waiters) for each in found]

        first, second = queue(self.semaphore(name, 0), self.lock(name))
        assert found() == [(None, 2)]
        backend.set_limit(name, 1)
        assert (first.outcome(), found()) == (True, [])
        self.release_others(name)
        assert (second.outcome(), found()) == (True, [])
        self.release_others(name)
        assert found() == [(1, 0)]
        backend.set_limit(name, None)
        assert found() == []

    @pytest.mark.parametrize("limit", [-1, True, 1.0, "3", 1_000_001])
    def test_senseless_limits_are_refused(self, name: str, limit: Any) -> None:
        refused = (TypeError, ValueError)
        with pytest.raises(refused, match=r"limit=.* must be a whole number from 0 to 1000000"):
            locks[self.using].set_limit(name, limit)
        for given in (limit, None):  # as a setting that is not set gives it
            with pytest.raises(refused, match=f"limit={given!r} must be a whole number from 0"):
                self.semaphore(name, cast("int", given))
        with pytest.raises(refused, match=r"max_waiters=.* must be a whole number"):
            self.lock(name, max_waiters=limit)
        with pytest.raises(TypeError, match="shared=1 must be True or False"):
            self.lock(name, shared=1)

    def test_forced_release_of_one_of_several(self, name: str) -> None:
        """It names the one; the others keep theirs, and the longest waiting gets in."""
        backend = locks[self.using]
        held = self.permits(name, 2)
        (started,) = queue(self.semaphore(name, 2))
        with pytest.raises(LockError, match="has 2 holders: pass the token_id"):
            backend.force_release(name)
        former = backend.force_release(name, held[0].token_id)
        assert (former.token_id, former.limit) == (held[0].token_id, 2)
        assert started.outcome() is True
        with pytest.raises(LockLost):
            held[0].release()
        held[1].ensure_held()
        assert backend.force_release(name, former.token_id) is None

    def test_thousand_permits_are_listed(self, name: str) -> None:
        """Each with its own holder; the first is ``holder()``."""
        permits = self.permits(name, 1000, timeout=60)
        assert self.refuses(self.semaphore(name, 1000))
        shown = list(locks[self.using].holders(name))
        assert {item.token_id for item in shown} == {permit.token_id for permit in permits}
        assert len(shown) == 1000
        assert {(item.shared, item.limit, item.waiters) for item in shown} == {(True, 1000, 0)}
        assert locks[self.using].holder(name).token_id == permits[0].token_id

    # A bound on the crowd.

    @pytest.mark.parametrize("make", ["lock", "reader", "semaphore"])
    def test_queue_with_a_bound(self, name: str, make: str) -> None:
        """When so many wait already, a further caller is told so at once, and only that one."""

        def asks(**options: Any) -> Lock:
            number = {"limit": 3} if make == "semaphore" else {}
            return cast("Lock", getattr(self, make)(name, **number, **options))

        (held,) = self.hold(self.lock(name))
        started = queue(asks(max_waiters=2), asks(max_waiters=2))
        with told(signals.lock_not_acquired) as calls:
            assert not asks(max_waiters=2).acquire()
            assert not asks(max_waiters=0).acquire(blocking_timeout=30)
        assert [call["reason"] for call in calls] == ["full", "full"]
        full = r"its queue is full \(max_waiters=2\)"
        with pytest.raises(LockNotAcquired, match=full):
            asks(max_waiters=2).__enter__()
        assert self.waiting(name) == 2
        started += queue(asks(max_waiters=3), asks())
        assert self.refuses(asks(max_waiters=2))
        held.release()
        while any(each.is_alive() for each in started):
            self.release_others(name)
        assert all(each.outcome() for each in started)


class UnsharedContract(_Sharing):
    """A backend whose locks can't be shared says so, and goes on working."""

    def test_sharing_is_refused(self, name: str) -> None:
        """At the call, with what to use instead; nothing is held or waited for, nor asked."""
        locks[self.using].failed_until[None] = math.inf
        for handle in (
            self.semaphore(name, 2, on_unavailable="run"),
            self.reader(name),
            self.lock(name, max_waiters=2),
            lock_many([name], shared=True, using=self.using),
            lock_many([name], limit=2, using=self.using),
        ):
            with unavailable(), pytest.raises(InvalidLockBackend, match=r"shared.*RedisLock"):
                handle.acquire(blocking=False)
        with pytest.raises(InvalidLockBackend, match="can't use shared"):
            locks[self.using].set_limit(name, 3)
        with self.lock(name) as held:
            with pytest.raises(InvalidLockBackend, match="can't use shared"):
                held.downgrade()
            held.ensure_held()
        assert locks[self.using].limits() == []
