"""The drivers: how they clean up after an interruption, and what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol import drivers
from django_redis_lock.protocol.calls import Pause, ReadQueue, Step, Steps
from django_redis_lock.protocol.drivers import Port
from django_redis_lock.support.process import Process, known_process

Driver = Callable[[Any, Steps[Any]], Any]
DRIVERS = [Port.run, lambda port, steps: asyncio.run(port.arun(steps))]
both = pytest.mark.parametrize("driver", DRIVERS, ids=["blocking", "asyncio"])


class Interruption(Step):
    """A step in which a signal handler, or the caller of a task, interrupts."""


class Forks(Step):
    """A step after which another process goes on."""


class Server(Port):
    """Answers calls with the name of their lock, or not at all; knows who has asked."""

    def __init__(self) -> None:
        self.answering = threading.Event()
        self.answering.set()
        self.asked_by: list[Any] = []
        self.in_hand: weakref.ref[Any] | None = None

    def call(self, step: Any) -> Any:
        if isinstance(step, ReadQueue):
            self.asked_by.append(threading.current_thread())
            self.answering.wait()
        return self._answer(step, KeyboardInterrupt)

    async def acall(self, step: Any) -> Any:
        if isinstance(step, ReadQueue):
            self.asked_by.append(asyncio.current_task())
            while not self.answering.is_set():
                await asyncio.sleep(0.001)
        return self._answer(step, asyncio.CancelledError)

    def _answer(self, step: Any, interruption: type[BaseException]) -> str:
        if isinstance(step, Interruption):
            connection = threading.Event()
            self.in_hand = weakref.ref(connection)
            raise interruption
        if isinstance(step, Forks):
            drivers.known_process = Process  # type: ignore[attr-defined]
        elif step.name == "fails":
            raise LookupError("fails")
        return f"answer about {step.lock_name}"


def interrupted(*cleaning: Step) -> Steps[list[Any]]:
    found: list[Any] = []
    try:
        yield Interruption()
    except (KeyboardInterrupt, asyncio.CancelledError):
        for step in cleaning:
            try:
                found.append((yield step))
            except (LookupError, LockUnavailable) as error:
                found.append(error)
    return found


def test_an_interruption_keeps_nothing_that_was_in_hand() -> None:
    """Otherwise a connection is lost to its pool until the garbage collector runs."""
    server = Server()

    def steps() -> Steps[None]:
        yield Interruption()

    gc.disable()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server.run(steps())
        assert server.in_hand is not None
        assert server.in_hand() is None
    finally:
        gc.enable()


@both
@pytest.mark.parametrize("answers", [True, False])
def test_cleaning_up(driver: Driver, answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer soon then is unavailable, and a pause is cut short."""
    server, steps = Server(), [ReadQueue("one"), ReadQueue("fails"), ReadQueue("two")]
    if answers:
        monkeypatch.setattr(drivers, "TIDY_FOR", 60.0)
        one, error, two = driver(server, interrupted(*steps))
        assert (one, two) == ("answer about one", "answer about two")
        assert isinstance(error, LookupError)
        return
    server.answering.clear()
    *errors, pause = driver(server, interrupted(*steps, Pause(3600)))
    server.answering.set()
    assert {type(error) for error in errors} == {LockUnavailable}
    assert "within 0.25 s" in str(errors[0])
    assert pause is None


def test_a_task_that_is_cancelled_twice_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a task of its own, which is kept until it has ended."""
    monkeypatch.setattr(drivers, "TIDY_FOR", 60.0)
    server = Server()
    server.answering.clear()
    found: list[Any] = []

    def steps() -> Steps[None]:
        try:
            yield ReadQueue("one")
        finally:
            found.append((yield ReadQueue("two")))

    async def main() -> None:
        task = asyncio.ensure_future(server.arun(steps()))
        for asked in (1, 2):
            while len(server.asked_by) < asked:
                await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (kept,) = drivers._retained
        assert server.asked_by == [task, kept]
        server.answering.set()
        await asyncio.wait([kept])
        await asyncio.sleep(0)  # for its callbacks
        assert not drivers._retained

    asyncio.run(main())
    assert found == ["answer about two"]


@both
@pytest.mark.parametrize("last", [True, False])
def test_a_child_does_not_go_on_with_what_its_parent_began(
    driver: Driver, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was forked in the last step or before."""
    parent = known_process()
    monkeypatch.setattr(drivers, "known_process", known_process)  # to be undone
    closed = []

    def steps() -> Steps[str]:
        try:
            yield ReadQueue("n")
            yield Forks()
            if not last:
                yield ReadQueue("m")
        finally:
            closed.append(True)
        return "the result"

    server = Server()
    with pytest.raises(LockError) as caught:
        driver(server, steps())
    assert len(server.asked_by) == 1
    assert caught.value.name == "n"
    assert f"The parent process {parent.pid} began this operation on lock 'n'" in str(caught.value)
    assert closed
