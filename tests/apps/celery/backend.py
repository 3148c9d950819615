"""A lock backend that prints which thread imported it."""

from __future__ import annotations

import os
import threading

from django_redis_lock.backends.redis import RedisLockBackend

IMPORTED = "imported the lock backend in"
print(f"{os.getpid()} {IMPORTED} {threading.current_thread().name}", flush=True)


class ToldLockBackend(RedisLockBackend):
    """The usual one."""
