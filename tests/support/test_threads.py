"""Threads of the library that an exception for the thread that starts them strikes."""

from __future__ import annotations

import ctypes
import math
import operator
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from django_redis_lock import lock
from django_redis_lock.support import threads
from tests.tools import eventually
from tests.tools.interruption import Interrupted

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture(autouse=True)
def struck(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Strike each new thread as task queues end a job, before the first line of its function."""
    start, idents = threads._thread.start_new_thread, list[int]()

    def start_struck(function: Callable[..., object], args: tuple[Any, ...]) -> None:
        gate = threading.Lock()
        gate.acquire()
        # No Python code runs in the thread before the function does.
        steps = map(operator.call, [gate.acquire, partial(function, *args)])
        ident = start(list, (steps,))
        strike = partial(ctypes.pythonapi.PyThreadState_SetAsyncExc, ctypes.c_ulong(ident))
        eventually(lambda: strike(ctypes.py_object(Interrupted)) == 1)  # it has a number then
        idents.append(ident)
        gate.release()

    monkeypatch.setattr(threads._thread, "start_new_thread", start_struck)
    return idents


def test_leases_are_renewed(name: str, struck: list[int]) -> None:
    held = lock(name, timeout=0.3, auto_renew=True)
    held.acquire()
    lease = held.lease
    assert lease is not None
    ends = lease.deadline
    eventually(lambda: lease.deadline > ends)
    held.release()
    assert struck


def test_what_comes_as_a_thread_ends_wakes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE", 0.0)
    background, woken, due = threads.Background("late"), list[float](), [math.inf, math.inf, 7.0]
    monkeypatch.setattr(background, "work", lambda: due.pop(0))
    monkeypatch.setattr(background, "wake", woken.append)
    background._run()
    assert woken == [0.0]
