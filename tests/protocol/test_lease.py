"""Requests and leases as they begin."""

from __future__ import annotations

import math

import pytest

from django_redis_lock.protocol.lease import Request


@pytest.mark.parametrize(
    ("timeout", "lease_ms", "longest"),
    [(30.0, 30_000, 30.0), (0.29, 290, 0.29), (None, 10_000, math.inf)],
)
def test_a_request(timeout: float | None, lease_ms: int, longest: float) -> None:
    """What was not sent is not adrift."""
    asked = Request("name", "token", timeout, '{"pid":7}')
    assert (asked.lease_ms, asked.longest) == (lease_ms, longest)
    assert asked.entry("channel") == f'channel token {lease_ms} {{"pid":7}}'
    assert (asked.auto_renew, asked.sent, asked.adrift) == (False, False, False)
    asked.sent = True
    assert asked.adrift
