"""Waiting for a lock: order, deadlines, cancellation."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from datetime import timedelta

import pytest

from django_redis_lock import Holder, Lock, locks, signals
from django_redis_lock.exceptions import LockError
from tests.contracts.base import Contract, needs
from tests.tools import PATIENCE, Background, eventually, told, waiters


class WaitingContract(Contract):
    """What waiters can rely on."""

    def check_order(self, served: list[int], count: int) -> None:
        """Check that all waiters were served, in order of arrival if the backend promises it."""
        if "queue" in self.lacks:
            served = sorted(served)
        assert served == list(range(count))

    def test_waiters_are_served_in_order(self, name: str) -> None:
        """Waiters are served one at a time, in order of arrival."""
        served: list[int] = []
        inside: list[int] = []

        def wait(number: int) -> None:
            with self.lock(name):
                inside.append(number)
                assert inside == [number]
                served.append(number)
                inside.remove(number)

        with self.lock(name):
            queue = []
            for number in range(8):
                queue.append(Background(lambda number=number: wait(number)))
                eventually(lambda number=number: waiters(name, self.using) == number + 1)
        for waiting in queue:
            waiting.outcome()
        self.check_order(served, 8)

    def test_waiting_signal(self, name: str) -> None:
        """It is sent once for a wait, when it begins, and not without one."""
        with told(signals.lock_waiting, signals.lock_acquired) as calls:
            held, waiting = self.lock(name), self.lock(name)
            held.acquire()
            self.lock(name).acquire(blocking=False)
            background = Background(waiting.acquire)
            eventually(lambda: len(calls) == 2, "the wait's signal")
            held.release()
            assert background.outcome()
        assert [call["signal"] for call in calls] == [
            signals.lock_acquired,
            signals.lock_waiting,
            signals.lock_acquired,
        ]
        assert (calls[1]["name"], calls[1]["using"]) == (name, self.using)
        assert calls[1]["lock"] is waiting

    @needs("waiters")
    def test_waiter_that_gives_up_leaves_the_queue(self, name: str) -> None:
        """A waiter that times out leaves nothing behind, and the next is served."""
        with self.lock(name):
            for _ in range(2):  # the second knows the server's clock already
                assert not self.lock(name).acquire(blocking_timeout=0.05)
                assert locks[self.using].waiting(name) == []
            patient = Background(self.lock(name).acquire)
            eventually(lambda: waiters(name, self.using) == 1)
        assert patient.outcome() is True

    @needs("waiters")
    def test_queue_is_shown(self, name: str) -> None:
        """``waiting`` shows who waits, in which order, since when, and for which lease."""
        backend = locks[self.using]
        with self.lock(name):
            began = backend.holder(name).acquired_at
            first = self.lock(name, timeout=7, metadata={"shop": "7\n"})
            second = self.lock(name)
            waiting = [Background(lambda: self.take_turn(first))]
            eventually(lambda: waiters(name, self.using) == 1)
            waiting.append(Background(lambda: self.take_turn(second)))
            eventually(lambda: waiters(name, self.using) == 2)
            queue = backend.waiting(name)
            assert asyncio.run(backend.awaiting(name))[0].token_id == queue[0].token_id
            assert [item.thread for item in queue] == [item.name for item in waiting]
            assert [(item.lease, item.auto_renew) for item in queue] == [
                (7.0, False),
                (backend.timeout, True),
            ]
            assert {(item.name, item.using, item.pid) for item in queue} == {
                (name, self.using, os.getpid())
            }
            assert queue[0].metadata == {"shop": "7\n"}
            tolerance = timedelta(seconds=0.02)
            assert began - tolerance <= queue[0].since <= queue[1].since + tolerance
            assert 0 <= queue[0].waited < 10
            assert queue[0].waited > queue[1].waited - 0.02
            assert str(queue[0].pid) in str(queue[0])
        turns = [item.outcome() for item in waiting]
        assert [turn.token_id for turn in turns] == [item.token_id for item in queue]
        assert [turn.metadata for turn in turns] == [{"shop": "7\n"}, {}]
        assert backend.waiting(name) == []

    def take_turn(self, waiter: Lock) -> Holder:
        """Wait for a lock and release it; return who held it meanwhile."""
        with waiter:
            holder = locks[self.using].holder(waiter.name)
            assert holder is not None
            return holder

    @needs("precision")
    def test_short_wait_for_a_lock_that_comes_free(self, name: str) -> None:
        """A wait shorter than any polling interval gets a lock that comes free within it."""
        self.lock(name, timeout=0.03).acquire()
        assert self.lock(name).acquire(blocking_timeout=0.24)

    @needs("waiters")
    def test_deadline_is_kept_through_many_wake_ups(self, name: str) -> None:
        """A wait of one second ends after one second however often the waiter is woken."""
        with self.lock(name, timeout=30) as held:
            began = time.monotonic()
            waiting = Background(lambda: self.lock(name).acquire(blocking_timeout=1))
            eventually(lambda: waiters(name, self.using) == 1)
            leases = (max(20 * 0.99**number, 5.0) for number in itertools.count())
            while waiting.is_alive():
                held.extend(next(leases), replace_ttl=True)  # a shorter lease wakes the next waiter
                assert time.monotonic() < began + PATIENCE
            assert waiting.outcome() is False
            assert waiting.ended_at - began >= 1

    @needs("queue")
    def test_shortened_lease_is_noticed_by_waiters(self, name: str) -> None:
        """After a lease is cut short the next waiter waits only for the rest of it."""
        held = self.lock(name, timeout=30)
        held.acquire()
        waiting = Background(self.lock(name).acquire)
        eventually(lambda: waiters(name, self.using) == 1)
        held.extend(0.2, replace_ttl=True)
        assert waiting.outcome() is True

    def test_two_threads_acquiring_one_handle(self, name: str) -> None:
        """A handle that already waits refuses a second acquire; the first goes on."""
        with self.lock(name):
            shared = self.lock(name)
            waiting = Background(shared.acquire)
            eventually(lambda: waiters(name, self.using) == 1)
            with pytest.raises(LockError, match="already"):
                shared.acquire()
        assert waiting.outcome() is True

    def test_not_acquired_signal(self, name: str) -> None:
        """It tells a wait that ran out from a caller that did not want to wait."""
        with told(signals.lock_not_acquired) as calls, self.lock(name):
            self.lock(name).acquire(blocking_timeout=0.02)
            self.lock(name).acquire(blocking=False)
        assert [call["name"] for call in calls] == [name, name]
        assert [call["reason"] for call in calls] == ["timeout", "busy"]
        assert calls[0]["waited"] >= 0.02

    @needs("waiters")
    def test_async_waiters_are_served_in_order(self, name: str) -> None:
        """Asyncio tasks wait in the same queue."""

        async def main() -> list[int]:
            served: list[int] = []

            async def wait(number: int) -> None:
                async with self.lock(name):
                    served.append(number)

            async with self.lock(name):
                tasks = []
                for number in range(20):
                    tasks.append(asyncio.create_task(wait(number)))
                    while (await locks[self.using].aholder(name)).waiters <= number:
                        await asyncio.sleep(0)
            await asyncio.gather(*tasks)
            return served

        self.check_order(asyncio.run(main()), 20)

    @needs("waiters")
    def test_cancelled_async_acquire_leaves_the_queue(self, name: str) -> None:
        """Cancelling an async acquire gives the place up and strands nothing."""

        async def main() -> None:
            async with self.lock(name):
                task = asyncio.create_task(self.lock(name).aacquire())
                while (await locks[self.using].aholder(name)).waiters == 0:
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (await locks[self.using].aholder(name)).waiters == 0
            assert await self.lock(name).aacquire(blocking=False)

        asyncio.run(main())

    def test_threads_and_tasks_exclude_each_other(self, name: str) -> None:
        """A thread waits for an asyncio task, and a task for a thread."""
        ready, go = threading.Event(), threading.Event()

        async def hold() -> None:
            async with self.lock(name):
                ready.set()
                await asyncio.to_thread(go.wait)

        holding = Background(lambda: asyncio.run(hold()))
        assert ready.wait(5)
        waiting = Background(self.lock(name).acquire)
        eventually(lambda: waiters(name, self.using) == 1)
        go.set()
        holding.outcome()
        assert waiting.outcome() is True
