"""Waits that could never end, and waits that stop an event loop."""

from __future__ import annotations

import asyncio
import logging
import re
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from django_redis_lock import Lock, locks
from django_redis_lock.exceptions import LockError
from tests.contracts.base import Contract, needs
from tests.tools import Background, eventually, waiters

FOREVER = r"this {} already holds .* forever\. Pass reentrant=True .* set blocking_timeout"


def _enter(one: Contract, name: str) -> None:
    with one.lock(name):
        pass


def _call(one: Contract, name: str) -> None:
    one.lock(name)(lambda: None)()


def _enter_several(one: Contract, name: str) -> None:
    with one.group([f"{name}!", name]):
        pass


def _enter_by_stack(one: Contract, name: str) -> None:
    ExitStack().enter_context(one.lock(name)).release()


async def _aenter(one: Contract, name: str) -> None:
    async with one.lock(name):
        pass


async def _aenter_several(one: Contract, name: str) -> None:
    async with one.group([f"{name}!", name]):
        pass


class StandstillContract(Contract):
    """A caller is told of a wait that stands in its own way."""

    @pytest.mark.parametrize("enter", [_enter, _call, _enter_several])
    @pytest.mark.parametrize(
        "options", [{}, {"timeout": None}, {"timeout": 20, "auto_renew": True}]
    )
    def test_thread_that_waits_for_itself(
        self, name: str, enter: Callable[..., None], options: dict[str, Any]
    ) -> None:
        """It gets an error and no wait that never ends, and keeps its lock; others may wait."""

        def nested() -> None:
            with self.lock(name, **options) as held:
                with pytest.raises(LockError, match=FOREVER.format("thread")) as caught:
                    enter(self, name)
                assert caught.value.name == name
                held.ensure_held()
                assert not self.lock(f"{name}!").locked()
                other = Background(self.lock(name).acquire)
                eventually(lambda: waiters(name, self.using) == 1)
            assert other.outcome() is True

        Background(nested).outcome()

    def test_several_locks_that_are_held_here(self, name: str) -> None:
        """What holds a lock of a group waits for itself as well."""
        with self.group([name, f"{name}!"]):
            with pytest.raises(LockError, match=FOREVER.format("thread")):
                self.lock(f"{name}!").acquire()

    @pytest.mark.parametrize("enter", [_aenter, _aenter_several, _enter])
    def test_asyncio_task_that_waits_for_itself(self, name: str, enter: Callable[..., Any]) -> None:
        """So does an asyncio task, whichever way it waits; another task waits for it."""

        async def main() -> bool:
            async with self.lock(name):
                with pytest.raises(LockError, match=FOREVER.format("task")):
                    await (enter(self, name) or asyncio.sleep(0))
                other = asyncio.create_task(self.lock(name).aacquire())
                await asyncio.sleep(0)
            return await other

        assert Background(lambda: asyncio.run(main())).outcome() is True

    def release_to_waiter(self, held: Lock) -> None:
        eventually(lambda: waiters(held.name, self.using) == 1)
        held.release()

    @needs("passing")
    @pytest.mark.parametrize("how", ["released", "passed on", "taken away"])
    def test_lock_that_another_has_by_now(self, name: str, how: str) -> None:
        """A thread that no longer has the lock waits for it, though it may not know of its loss."""

        def passed_on(former: Lock) -> Lock:
            successor = self.lock(name)
            if how == "passed on":
                assert successor.take_over(former.detach(20))
                return successor
            if how == "released":
                former.release()
            else:
                locks[self.using].force_release(name)
            assert successor.acquire()
            return successor

        former, waiter = self.lock(name), self.lock(name)
        assert former.acquire()
        successor = Background(lambda: passed_on(former)).outcome()
        releasing = Background(lambda: self.release_to_waiter(successor))
        assert waiter.acquire()
        releasing.outcome()
        waiter.ensure_held()

    def test_own_lease_that_ends(self, name: str, caplog: pytest.LogCaptureFixture) -> None:
        """A fixed lease ends the wait, which is logged."""
        held = self.lock(name, timeout=20)

        def shorten() -> None:
            eventually(lambda: caplog.records)
            held.extend(0.02, replace_ttl=True)

        with caplog.at_level(logging.WARNING, "django_redis_lock"):
            assert held.acquire()
            shortening = Background(shorten)
            assert self.lock(name).acquire()
        shortening.outcome()
        assert held.lost
        assert re.search(
            r"Began to wait \d+\.\d s for its own lease: this thread already holds", caplog.text
        )

    @pytest.mark.parametrize("enter", [_enter, _call, _enter_several, _enter_by_stack])
    def test_blocking_wait_in_an_event_loop(self, name: str, enter: Callable[..., None]) -> None:
        """It warns once for each place in the caller's code, and only if it has to wait."""

        releasing = []

        def held(number: int) -> str:
            other = self.lock(f"{name}{number}")
            assert Background(other.acquire).outcome()
            releasing.append(Background(lambda: self.release_to_waiter(other)))
            return other.name

        async def main() -> list[tuple[str, int]]:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                enter(self, name)
                await _aenter(self, held(1))
                assert not caught
                enter(self, held(2))
                enter(self, held(3))
            assert all(item.category is RuntimeWarning for item in caught)
            assert all("await aacquire()" in str(item.message) for item in caught)
            return [(item.filename, item.lineno) for item in caught]

        enter(self, held(4))
        assert asyncio.run(main()) == [(__file__, enter.__code__.co_firstlineno + 1)]
        for each in releasing:
            each.outcome()
