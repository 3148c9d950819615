"""What the steps do, and what they say of themselves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from django_redis_lock.protocol.calls import (
    Acquire,
    Glance,
    Listen,
    Pause,
    Post,
    Step,
    Wait,
)
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import Hub, LocalWaiter

REQUEST = Request("name", "secret", 30.0, "{}")


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        (Acquire(REQUEST, "channel"), "<Acquire 'name'>"),
        (Wait(Hub(), LocalWaiter(REQUEST), 0.0), "<Wait 'name'>"),
        (Pause(1.0), "<Pause ''>"),
    ],
)
def test_a_step_tells_its_lock_and_not_its_token(step: Step, shown: str) -> None:
    """A traceback shows it."""
    assert repr(step) == shown


class Port(Hub):
    """Notes what it is asked to do, as a backend and as a hub."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Any, ...]] = []

    def listen(self, name: str = "", until: float = math.inf) -> None:
        self.asked.append(("listen", name))

    async def alisten(self, name: str = "") -> None:
        self.asked.append(("alisten", name))

    def wait(self, waiter: LocalWaiter, until: float) -> None:
        self.asked.append(("wait", waiter, until))

    async def await_(self, waiter: LocalWaiter, until: float) -> None:
        self.asked.append(("await_", waiter, until))

    def post(self, call: Any) -> None:
        self.asked.append(("post", call))

    async def apost(self, call: Any) -> None:
        self.asked.append(("apost", call))


GLANCE = Glance("name")
WAITER = LocalWaiter(REQUEST)


@pytest.mark.parametrize(
    ("step", "blocking", "under_asyncio"),
    [
        (lambda port: Listen(port, "name"), ("listen", "name"), ("alisten", "name")),
        (lambda port: Wait(port, WAITER, 7.0), ("wait", WAITER, 7.0), ("await_", WAITER, 7.0)),
        (lambda port: Post(GLANCE), ("post", GLANCE), ("apost", GLANCE)),
    ],
)
def test_what_a_step_does(
    step: Callable[[Port], Step], blocking: tuple[Any, ...], under_asyncio: tuple[Any, ...]
) -> None:
    port = Port()
    step(port).do(port)
    asyncio.run(step(port).ado(port))
    assert port.asked == [blocking, under_asyncio]
