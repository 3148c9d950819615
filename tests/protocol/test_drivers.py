"""The drivers: what an interrupted one leaves behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redis_lock.protocol import drivers
from django_redis_lock.protocol.calls import Step
from django_redis_lock.protocol.drivers import Steps


class Connection:
    """Something that a step has in hand."""


class Interrupted(Step):
    """A step that is interrupted with a connection in hand."""

    __slots__ = ("connection",)

    def do(self, port: Any) -> None:
        in_hand = Connection()
        self.connection = weakref.ref(in_hand)
        raise KeyboardInterrupt


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Let only reference counts free objects."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("driver", [drivers.run, drivers.drive])
def test_an_interruption_keeps_nothing_that_was_in_hand(driver: Callable[..., None]) -> None:
    """Otherwise a connection is lost to its pool until the garbage collector runs."""
    step = Interrupted()

    def steps() -> Steps[None]:
        yield step

    try:
        driver(None, steps())
    except KeyboardInterrupt:
        pass
    else:
        pytest.fail("the interruption was swallowed")
    assert step.connection() is None
