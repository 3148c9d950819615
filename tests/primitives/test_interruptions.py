"""Exceptions of signal handlers as a lock is acquired."""

from __future__ import annotations

import contextlib
import itertools

from django_redis_lock import lock, locks
from django_redis_lock.primitives import group, handle
from django_redis_lock.primitives import lock as lock_module
from tests.tools.interruption import Interrupted, Interruption


def test_wherever_an_acquisition_is_interrupted_the_handle_can_be_used_again(name: str) -> None:
    again = lock(name, timeout=20, blocking=False, using="locmem")
    for at in itertools.count():
        interruption = Interruption(at, lock_module, handle, group)
        with contextlib.suppress(Interrupted), interruption:
            again.acquire()
        if again._lease is not None:
            again.release()
        locks["locmem"].force_release(name)  # if it was given up, its release may be due only later
        assert again.acquire()
        again.release()
        if not interruption.raised:
            break
    assert at > 10
