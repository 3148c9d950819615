"""What the tests say to steps in place of a driver."""

from __future__ import annotations

from typing import Any

import pytest

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import LocalWaiter, WaiterRegistry


def joined(registry: WaiterRegistry, token: str, name: str = "name") -> LocalWaiter:
    waiter = LocalWaiter(Request(name, token, 30.0, "{}"))
    registry.join(waiter)
    return waiter


def ended(steps: Any, answer: Any) -> Any:
    """Give steps their last answer, and return what they return."""
    with pytest.raises(StopIteration) as stop:
        steps.send(answer)
    return stop.value.value


def refused(name: str = "") -> LockUnavailable:
    """Return an error after which a call is not sent again."""
    error = LockUnavailable("refused", name=name)
    error.passing = False
    return error
