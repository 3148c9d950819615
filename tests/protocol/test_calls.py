"""What the steps do, and what they say of themselves."""

from __future__ import annotations

import pytest

from django_redis_lock.protocol.calls import (
    Acquire,
    Pause,
    Step,
    Wait,
)
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import LocalWaiter, WaiterRegistry

REQUEST = Request("name", "secret", 30.0, "{}")


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        (Acquire(REQUEST, "channel"), "<Acquire 'name'>"),
        (Wait(WaiterRegistry(), LocalWaiter(REQUEST), 0.0), "<Wait 'name'>"),
        (Pause(1.0), "<Pause ''>"),
    ],
)
def test_a_step_tells_its_lock_and_not_its_token(step: Step, shown: str) -> None:
    """A traceback shows it."""
    assert repr(step) == shown
