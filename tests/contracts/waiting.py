"""Waiting for a lock: order, deadlines, cancellation."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

import pytest

from django_redis_lock import Holder, Lock, locks, signals
from django_redis_lock.exceptions import LockError
from tests.contracts.base import Contract, needs
from tests.tools import Background, eventually, told, waiters


class WaitingContract(Contract):
    def test_waiters_are_served_in_order(self, name: str) -> None:
        served: list[int] = []
        inside: list[int] = []

        def work(number: int) -> None:
            inside.append(number)
            assert inside == [number]
            served.append(number)
            inside.remove(number)

        async def wait_in_task(number: int) -> None:
            async with self.lock(name):
                work(number)

        def wait(number: int) -> None:
            if number % 2:
                asyncio.run(wait_in_task(number))
                return
            with self.lock(name):
                work(number)

        with self.lock(name):
            queue = []
            for number in range(8):
                queue.append(Background(lambda number=number: wait(number)))
                eventually(lambda number=number: waiters(name, self.using) == number + 1)
        for waiting in queue:
            waiting.outcome()
        # In order of arrival, if the backend promises it.
        assert (sorted(served) if "queue" in self.lacks else served) == list(range(8))

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
            assert queue[0].waited >= 0
            assert queue[0].waited > queue[1].waited - 0.02
            assert str(queue[0].pid) in str(queue[0])
        turns = [item.outcome() for item in waiting]
        assert [turn.token_id for turn in turns] == [item.token_id for item in queue]
        assert [turn.metadata for turn in turns] == [{"shop": "7\n"}, {}]
        assert backend.waiting(name) == []

    def take_turn(self, waiter: Lock) -> Holder:
        with waiter:
            holder = locks[self.using].holder(waiter.name)
            assert holder is not None
            return holder

    def test_two_threads_acquiring_one_handle(self, name: str) -> None:
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
    def test_cancelled_async_acquire_leaves_the_queue(self, name: str) -> None:
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
