"""A lock backend that tells which thread imported it, on the output of its process."""

from __future__ import annotations

import os
import threading

from django_redis_lock.backends.redis import RedisLockBackend

IMPORTED = "imported the lock backend in"
print(f"{os.getpid()} {IMPORTED} {threading.current_thread().name}", flush=True)


class ToldLockBackend(RedisLockBackend):
    """The usual one."""
