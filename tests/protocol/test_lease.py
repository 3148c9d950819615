"""Requests and leases as they begin."""

from __future__ import annotations

import math
import weakref

import pytest

from django_redis_lock.protocol import lease as leases
from django_redis_lock.protocol.lease import Lease, Request


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


def test_a_request_joins_the_queue_once() -> None:
    """Its entry stays the same, and is not written before the server's clock is known."""
    asked = Request("name", "token", 30.0, '{"pid":7}')
    asked.join_queue(None)
    assert (asked.since, asked.record) == (None, '{"pid":7}')
    asked.join_queue(5_000)
    asked.join_queue(6_000)
    assert (asked.since, asked.record) == (5_000, '{"pid":7,"since":5000}')


@pytest.mark.parametrize("auto_renew", [False, True])
def test_a_lease(auto_renew: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has happened to it, and those who want to know of all leases know of it."""
    made: weakref.WeakSet[Lease] = weakref.WeakSet()
    monkeypatch.setattr(leases, "made", made)
    lease = Request("name", "token", 30.0, "{}", auto_renew=auto_renew).granted(7, 100.0)
    assert (lease.name, lease.token, lease.timeout, lease.record) == ("name", "token", 30.0, "{}")
    assert (lease.fence, lease.deadline, lease.auto_renew) == (7, 100.0, auto_renew)
    assert lease.longest == 30.0
    assert (lease.lost, lease.reported, lease.given_up) == (False, False, False)
    assert (lease.version, lease.entries, lease.renew_until) == (0, 1, math.inf)
    assert (lease.verify_by, lease.release_sent_at, lease.execution) == (None, None, None)
    assert list(made) == [lease]
