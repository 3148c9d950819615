"""``@lock`` on every kind of callable: the body runs with the lock held, or not at all."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from celery import Celery

from django_redis_lock import lock, lock_many, locks, semaphore
from django_redis_lock.celery import single_instance_task
from django_redis_lock.exceptions import LockNotAcquired
from django_redis_lock.primitives.handle import Handle

pytestmark = pytest.mark.usefixtures("server")

seen: list[bool] = []
"""Whether the lock was held, for each body that ran."""


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


MAKERS: dict[str, Callable[..., Any]] = {
    "lock": lock,
    "semaphore": functools.partial(semaphore, limit=2),
    "lock_many": lambda name, **arguments: lock_many([name, name + "!"], **arguments),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_seconds_in_place_of_blocking_are_refused(name: str, make: Callable[..., Any]) -> None:
    """They would have waited without limit."""
    why = r"blocking=0\.3 must be True or False: to .* s, pass blocking_timeout=0\.3\."
    with pytest.raises(TypeError, match=why):
        make(name, blocking=0.3)
    with pytest.raises(TypeError, match=why):
        make(name).acquire(0.3)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_limit_of_the_wait_needs_no_wait(name: str, make: Callable[..., Any]) -> None:
    """As in redis-py, ``blocking=False`` does not wait whatever ``blocking_timeout`` says."""
    with make(name, blocking=False, blocking_timeout=5):
        assert not lock(name).acquire(blocking=False, blocking_timeout=1e9)
        assert not lock(name, blocking=False, blocking_timeout=1e9).acquire()


@pytest.fixture(params=["lock", "lock_many"])
def handle(request: pytest.FixtureRequest) -> Handle:
    if request.param == "lock":
        return lock("one", timeout=20, blocking=False)
    return lock_many(["one", "two"], timeout=20, blocking=False)


def body(*args: Any) -> str:
    seen.append(locks["default"].holder("one") is not None)
    return "done"


async def abody(*args: Any) -> str:
    return body()


def generator(*args: Any) -> Iterator[str]:
    yield body()


async def agenerator(*args: Any) -> Any:
    yield body()


def ordinary(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate as most decorators do, which know nothing of coroutines."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Callables:
    async def __call__(self, *args: Any) -> str:
        return await abody()


ASYNCHRONOUS = {
    "function": abody,
    "object": Callables(),
    "marked": markcoroutinefunction(ordinary(abody)),
}
UNFORESEEN = {
    "coroutine": ordinary(abody),
    "generator": ordinary(generator),
    "asynchronous generator": ordinary(agenerator),
}


@pytest.mark.parametrize("kind", ASYNCHRONOUS)
def test_what_is_awaited(handle: Handle, kind: str) -> None:
    """The lock is held until the body has been awaited, and by one at a time."""
    decorated = handle(ASYNCHRONOUS[kind])
    assert iscoroutinefunction(decorated)

    async def main() -> None:
        await decorated()
        assert seen == [True]
        async with handle:  # each call has a handle of its own
            with pytest.raises(LockNotAcquired):
                await decorated()
        assert seen == [True]
        assert await locks["default"].aholder("one") is None

    asyncio.run(main())


@pytest.mark.parametrize("kind", UNFORESEEN)
def test_what_comes_back_unfinished(handle: Handle, kind: str) -> None:
    """None of it runs without the lock, nor after an ``await``; the error says so."""

    async def forgetful() -> Any:
        return UNFORESEEN[kind]()

    with pytest.raises(TypeError, match="without the lock"):
        handle(UNFORESEEN[kind])()
    with pytest.raises(TypeError, match=r"forgetful.* without the lock"):
        asyncio.run(handle(forgetful)())
    assert seen == []
    assert locks["default"].holder("one") is None


def test_above_staticmethod_and_classmethod() -> None:
    """The order of the decorators makes no difference."""

    class Shop:
        @lock("one", timeout=20)
        @staticmethod
        def static(value: int) -> tuple[str, int]:
            return body(), value

        @lock("one", timeout=20)
        @classmethod
        async def of_class(cls, value: int) -> tuple[type, str, int]:
            return cls, await abody(), value

    assert Shop.static(1) == Shop().static(1) == ("done", 1)
    assert asyncio.run(Shop().of_class(2)) == (Shop, "done", 2)
    assert seen == [True] * 3


@pytest.mark.parametrize("decorated", [generator, agenerator, Callables, 7])
def test_what_cannot_be_decorated(handle: Handle, decorated: Any) -> None:
    """Generators, whose bodies run after the call, classes, and objects that can't be called."""
    with pytest.raises(TypeError, match=r"generator|decorate only a function"):
        handle(decorated)


def test_a_name_that_is_written_as_a_template() -> None:
    with pytest.raises(ValueError, match=r"'import:\{shop\}' is not a template.*the same for all"):
        lock("import:{shop}")(lambda shop: None)
    lock("import:{shop}")(lambda: [(shop := 1), shop])  # which is given none


def test_a_task_that_returns_what_is_unfinished() -> None:
    """It fails; Celery would have discarded the result."""
    app = Celery("unfinished", set_as_current=False)
    task = app.task(single_instance_task(ordinary(abody)))
    with pytest.raises(TypeError, match="without the lock"):
        task.apply(throw=True)
    assert seen == []


@pytest.mark.parametrize("decorator", [lock, lock_many], ids=["lock", "lock_many"])
@pytest.mark.parametrize("function", [abody, dict])
def test_a_decorator_without_a_name(decorator: Any, function: Any) -> None:
    """It is refused where the function is defined, with what to write."""
    with pytest.raises(TypeError, match=rf"@{decorator.__name__} needs.* Use @"):
        decorator(function)
