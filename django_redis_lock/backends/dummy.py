"""Locks that are always free, to switch locking off."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call
from django_redis_lock.protocol.waiting import WaiterRegistry


class DummyLockBackend(BaseLockBackend):
    """Acquires at once, excludes no caller and stores nothing. LOCATION is ignored."""

    excludes: ClassVar[str] = "no callers"

    def make_registry(self, scheme: str) -> WaiterRegistry:
        return WaiterRegistry()

    def call(self, call: Call) -> Any:
        call.sending()
        answer: Any = None
        match call:
            case calls.Acquire() | calls.TakeOver():
                answer = time.time_ns() // 1000
            case calls.Release():
                answer = 1
            case calls.Renew(leases=leases):
                answer = [lease_ms or None for _, _, lease_ms in leases]
            case calls.Inspect(names=names):
                answer = [time.time_ns() // 1_000_000, *[None, -2, 0] * len(names)]
            case calls.ReadQueue():
                answer = [time.time_ns() // 1_000_000]
            case calls.ReadIndex():
                answer = [b"", b"", b""]
            case calls.ReadHistory() | calls.ReadLimits():
                answer = []
        return answer
