"""The quorum against the contract, and against servers that fail while locks are held."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from django_redis_lock import locks
from tests.contract import LockContract
from tests.quorums import Quorum, in_use, started
from tests.tools import Background, eventually, waiters


@pytest.fixture(scope="module", params=[3, 5])
def session_quorum(request: pytest.FixtureRequest) -> Iterator[Quorum]:
    """Servers for all tests of this module."""
    with started(request.param) as quorum:
        yield quorum


@pytest.fixture
def quorum(session_quorum: Quorum) -> Iterator[Quorum]:
    """The servers, empty, as an entry of LOCKS."""
    with in_use(session_quorum):
        yield session_quorum


@pytest.mark.usefixtures("quorum")
class TestContract(LockContract):
    """The quorum keeps the contract of all backends, but for the order of those who wait."""

    using = "redlock"
    lacks = frozenset({"queue"})

    def test_all_waiters_are_served(self, name: str) -> None:
        """All are served, one at a time; in which order is not promised."""
        served: list[int] = []
        inside: list[int] = []

        def wait(number: int) -> None:
            with self.lock(name):
                inside.append(number)
                assert inside == [number]
                served.append(number)
                inside.remove(number)

        with self.lock(name):
            line = []
            for number in range(8):
                line.append(Background(lambda number=number: wait(number)))
                eventually(lambda number=number: waiters(name, self.using) == number + 1)
        for waiting in line:
            waiting.outcome()
        assert sorted(served) == list(range(8))

    def test_all_async_waiters_are_served(self, name: str) -> None:
        """All tasks are served; in which order is not promised."""

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

        assert sorted(asyncio.run(main())) == list(range(20))


# Who waits is shown, as by backends that keep an order; there is only no order.
for shown in (
    LockContract.test_waiter_that_gives_up_leaves_the_line,
    LockContract.test_line_is_shown,
    LockContract.test_since_stays_while_one_waits,
    LockContract.test_waiter_that_was_interrupted_leaves_the_line,
    LockContract.test_deadline_is_kept_through_many_wake_ups,
    LockContract.test_force_release_hands_over,
    LockContract.test_cancelled_async_acquire_leaves_the_line,
):
    setattr(TestContract, shown.__name__, shown)
