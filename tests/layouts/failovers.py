"""Callers that come through a failover."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from django_redis_lock import lock
from django_redis_lock.exceptions import LockLost, LockUnavailable


def patiently(name: str) -> int:
    """Wait for a lock however often its server is unavailable; return its fence."""
    while True:
        with contextlib.suppress(LockUnavailable):
            with lock(name, timeout=60) as held:
                return held.fence


def answered(ask: Callable[[], Any]) -> bool:
    """Return whether a call was answered, if only with LockLost."""
    try:
        ask()
    except LockUnavailable:
        return False
    except LockLost:
        return True
    return True
