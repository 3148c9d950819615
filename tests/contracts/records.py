"""What backends tell of holders, and what operators and workers do with it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest

from django_redis_lock import AuditEntry, Holder, locks, signals
from django_redis_lock.backends.redlock import RedlockLockBackend
from django_redis_lock.exceptions import LockError, LockLost, LockNotOwned, LockUnavailable
from django_redis_lock.protocol.calls import ForceRelease
from tests.contracts.base import Contract, needs
from tests.tools import Background, eventually, told, waiters


class RecordContract(Contract):
    """Records, listing, forced releases, the audit, and locks passed from handle to handle."""

    @needs("records")
    def test_holder_record(self, name: str) -> None:
        """A holder's record has the holder, its times, and the caller's metadata."""
        with self.lock(name, timeout=20, metadata={"shop": "7", "é": "\n"}) as held:
            holder = locks[self.using].holder(name)
            assert isinstance(holder, Holder)
            assert holder.name == name
            assert holder.using == self.using
            assert holder.fence == held.fence
            assert 10 < holder.ttl <= 20
            assert holder.auto_renew is False
            assert holder.thread == threading.current_thread().name
            assert holder.waiters in ({0, None} if "queue" in self.lacks else {0})
            assert holder.metadata == {"shop": "7", "é": "\n"}
            assert 19 < (holder.expires_at - holder.acquired_at).total_seconds() < 30
            assert len(holder.token_id) == 16
            assert str(holder.pid) in str(holder)
        assert locks[self.using].holder(name) is None

    @needs("listing")
    def test_listing(self, name: str) -> None:
        """``holders`` yields what is held and matches, the newest lease end first."""
        held = [self.lock(f"{name}:{number}", timeout=10 + number) for number in range(5)]
        endless = self.lock(f"{name}:endless", timeout=None)
        for item in [*held, endless]:
            item.acquire()
        found = [holder.name for holder in locks[self.using].holders(f"{name}:*")]
        assert found == [endless.name, *[item.name for item in reversed(held)]]
        held[2].release()
        found = [holder.name for holder in locks[self.using].holders(f"{name}:[0-9]")]
        assert found == [held[4].name, held[3].name, held[1].name, held[0].name]
        assert not list(locks[self.using].holders(f"{name}"))

    @needs("precision")
    def test_expired_locks_are_not_listed(self, name: str) -> None:
        self.lock(name, timeout=0.02).acquire()
        eventually(lambda: locks[self.using].holder(name) is None)
        assert not list(locks[self.using].holders(name))

    @needs("records")
    def test_force_release(self, name: str) -> None:
        """It frees the lock, and names the loser, who learns of it.

        The audit has who lost which hold, when, to whom and why, the newest first.
        """
        backend = locks[self.using]
        held = self.lock(name, metadata={"shop": "7"})
        held.acquire()
        before = backend.holder(name)
        with told(signals.lock_force_released) as calls:
            loser = backend.force_release(name, by="ada", reason=" it hangs\n")
        assert (loser.fence, calls[0]["holder"]) == (held.fence, loser)
        assert backend.holder(name) is None
        with pytest.raises(LockLost):
            held.ensure_held()
        assert held.lost
        with pytest.raises(LockLost):
            held.release()
        (entry,) = backend.history(name)
        assert isinstance(entry, AuditEntry)
        assert (entry.event, entry.by, entry.reason) == ("force_released", "ada", "it hangs")
        assert (entry.name, entry.using) == (name, self.using)
        assert (entry.fence, entry.token_id) == (loser.fence, before.token_id)
        assert (entry.host, entry.pid, entry.thread) == (before.host, before.pid, before.thread)
        assert (entry.task_id, entry.task_name) == (None, None)
        assert str(entry) == str(before)
        assert (entry.at - before.acquired_at).total_seconds() >= -0.001  # to the millisecond

        assert backend.force_release(name, by="ada") is None  # nobody lost anything
        self.lock(name).acquire()
        backend.force_release(name)
        newest, *_ = asyncio.run(backend.ahistory(name, limit=1))
        assert [newest] == backend.history(limit=1) == backend.history(name, 1)
        assert [item.event for item in backend.history(name)].count("force_released") == 2

    @needs("records")
    def test_forced_release_that_came_too_late_is_none(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the holder released the lock between two sendings, nobody lost it."""
        backend = locks[self.using]
        carry_out = backend.call
        held = self.lock(name)
        held.acquire()

        def lose_the_first(call: Any) -> Any:
            if isinstance(call, ForceRelease) and call.first_sent_at is None:
                call.sending()
                held.release()
                raise LockUnavailable("the call was lost")
            return carry_out(call)

        monkeypatch.setattr(backend, "call", lose_the_first)
        assert backend.force_release(name) is None
        assert backend.history(name) == []

    @needs("records")
    def test_freed_lock_is_no_release_by_force(self, name: str) -> None:
        """A lock that a worker frees for a dead holder has its own signal and event."""
        backend = locks[self.using]
        with told(signals.lock_freed, signals.lock_force_released) as calls:
            self.lock(name).acquire()
            shown = backend.holder(name)
            assert backend.free(name, "0" * 16) is None
            assert backend.free(name, shown.token_id, reason="killed") == replace(
                shown, held_for=ANY, ttl=ANY, expires_at=ANY
            )
        assert backend.holder(name) is None
        ((_, news),) = [(item.pop("signal"), item) for item in calls]
        assert {**news, "holder": news["holder"].token_id, "held_for": 0} == {
            "sender": type(backend),
            "using": self.using,
            "name": name,
            "holder": shown.token_id,
            "held_for": 0,
            "reason": "killed",
        }
        (entry,) = backend.history(name)
        assert (entry.event, entry.by, entry.reason) == ("freed", "", "killed")
        assert (entry.token_id, entry.fence, entry.pid) == (shown.token_id, shown.fence, shown.pid)

    @needs("records")
    def test_audit_has_an_end(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """It keeps about as many entries as the alias says."""
        backend = locks[self.using]
        cap = 50
        monkeypatch.setattr(backend, "operators", replace(backend.operators, audit_entries=cap))
        for number in range(cap + 220):
            held = self.lock(name, timeout=5)
            held.acquire(blocking=False)
            backend.force_release(name, reason=str(number))
        kept = [item.reason for item in backend.history(name, limit=10 * cap)]
        assert cap <= len(kept) <= cap + 100
        assert kept[:2] == [str(cap + 219), str(cap + 218)]

    @needs("records")
    def test_history_is_read_in_pages(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pages of any size give the whole history, in order, each event once."""
        backend = locks[self.using]
        for number in range(12):
            held = self.lock(f"{name}:{number % 3}", timeout=5)
            held.acquire(blocking=False)
            if number % 4:
                backend.force_release(held.name, reason=str(number))
            else:
                backend.free(held.name, backend.holder(held.name).token_id, reason=str(number))

        def reasons(wanted: str | None, limit: int = 100) -> list[int]:
            told = backend.history(wanted, limit)
            assert [one.at for one in told] == sorted((one.at for one in told), reverse=True)
            # A loss of another test's lock may be noted at any time.
            return [int(one.reason) for one in told if one.name.startswith(name)]

        for page in (1, 2, 5, 100):
            monkeypatch.setattr("django_redis_lock.protocol.calls.PAGE", page)
            assert sorted(reasons(None)) == [*range(12)]
            ones, two = reasons(f"{name}:1"), reasons(f"{name}:0", 2)
            assert {*ones} == {10, 7, 4, 1}
            assert {*two} < {9, 6, 3, 0}
            # A server of a quorum may write its copy of an event after those of later ones.
            late = isinstance(backend, RedlockLockBackend)
            assert late or (ones, two) == ([10, 7, 4, 1], [9, 6])
            assert len(backend.history(limit=1)) == 1
            assert backend.history(f"{name}:none") == []

    @needs("passing")
    def test_take_over_from_a_named_holder(self, name: str) -> None:
        """The lock passes from one holder to another; no waiter comes in between."""
        first, second = self.lock(name, timeout=20), self.lock(name, timeout=30)
        first.acquire()
        waiting = Background(self.lock(name, timeout=20).acquire)
        eventually(lambda: waiters(name, self.using) == 1)
        assert second.take_over("0" * 16) is False
        first.ensure_held()
        assert second.take_over(first.token_id) is True
        assert second.fence > first.fence
        second.ensure_held()
        assert 20 < second.remaining <= 30
        assert waiters(name, self.using) == 1
        assert not first.owned()
        with pytest.raises(LockLost):
            first.release()
        second.release()
        assert waiting.outcome() is True

    @needs("passing")
    def test_take_over_of_a_free_lock(self, name: str) -> None:
        """If the holder has gone there is nothing to take over, not even a free lock."""
        first, second = self.lock(name), self.lock(name)
        first.acquire()
        token_id = first.token_id
        first.release()
        assert second.take_over(token_id) is False
        assert second.acquire(blocking=False)
        assert asyncio.run(self.lock(name).atake_over(token_id)) is False
        assert asyncio.run(self.lock(name).atake_over(second.token_id)) is True

    @needs("passing")
    def test_detached_lock_stays_held_until_it_is_taken_over(self, name: str) -> None:
        """A detached lock stays held; a caller with its ticket takes it over, once."""
        first = self.lock(name, metadata={"state": "working"})
        first.acquire()
        ticket = first.ticket
        assert first.detach(15, metadata={"state": "parked"}) == ticket
        assert first.remaining == 0.0
        with pytest.raises(LockNotOwned):
            first.release()
        holder = locks[self.using].holder(name)
        assert (holder.token_id, holder.auto_renew) == (ticket, False)
        assert 0 < holder.ttl <= 15
        assert holder.metadata == {"state": "parked"}
        assert not self.lock(name, blocking=False).acquire()
        second, third = self.lock(name), self.lock(name)
        assert second.take_over(ticket) is True
        assert third.take_over(ticket) is False
        asyncio.run(second.adetach(0.05))
        assert third.acquire(blocking_timeout=10)
        locks[self.using].force_release(name)
        with self.lock(name) as successor:
            for error in (LockLost, LockNotOwned):  # and not its successor's lock
                with pytest.raises(error):
                    third.detach(10)
            successor.ensure_held()

    @needs("passing")
    def test_mistakes_in_detaching(self, name: str) -> None:
        """A lock can't be detached without an end, nor one that is entered twice."""
        with self.lock(name, reentrant=True) as held, self.lock(name, reentrant=True):
            with pytest.raises(ValueError, match="needs a lease"):
                held.detach(None)  # type: ignore[arg-type]
            with pytest.raises(LockError, match="while 2 reentrant handles hold it"):
                held.detach(5)

    @needs("records")
    def test_force_release_of_a_shown_holder_only(self, name: str) -> None:
        """With a token_id only that holder loses the lock; a successor is left alone."""
        with self.lock(name):
            shown = locks[self.using].holder(name)
        with self.lock(name) as successor:
            assert locks[self.using].force_release(name, token_id=shown.token_id) is None
            successor.ensure_held()
            mine = locks[self.using].holder(name).token_id
            assert mine != shown.token_id
            assert asyncio.run(locks[self.using].aforce_release(name, mine)).token_id == mine
            with pytest.raises(LockLost):
                successor.ensure_held()
            assert successor.acquire(blocking=False)
