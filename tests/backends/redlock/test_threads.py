"""Threads of the quorum: signal handlers that interrupt callers, ends, forks."""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
import traceback
from collections import Counter
from typing import Any
from unittest.mock import MagicMock

import pytest

from django_redis_lock import lock
from django_redis_lock.backends import redlock as backend_module
from django_redis_lock.backends.redlock import servers as servers_module
from django_redis_lock.backends.redlock.servers import Executor, Job
from django_redis_lock.protocol import calls, waiting
from tests.backends.redlock.conftest import backend
from tests.tools import Background, eventually
from tests.tools.interruption import Interruption, strike
from tests.tools.quorums import Quorum

# A process with threads forks here on purpose, as web servers do.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.mark.parametrize("running", [True, False])
def test_an_exception_from_a_signal_handler_anywhere(
    servers: Quorum, name: str, running: bool
) -> None:
    """Wherever it occurs in a caller, later calls work, and only one thread reads the answers."""

    def use() -> None:
        for server in backend().servers:
            job = Job(server.pack(calls.Inspect([key])), math.inf)
            server.executor.submit(job)
        assert backend().call(calls.Inspect([key]))[1] is None

    for at in itertools.count():
        if not running:
            backend().close()
        interruption = Interruption(at, backend_module, servers_module, waiting, threading)
        key = f"{name}:{at}"
        strike(interruption, use)
        for _ in range(2):
            said = Background(lambda key=key: backend().call(calls.Inspect([key])))
            assert said.outcome()[1:] == [None, -2, 0]
        eventually(lambda: all(count <= 1 for count in serving().values()))
        if not interruption.raised:
            break
    assert at > 20


def serving() -> Counter[Executor]:
    ours = {server.executor for server in backend().servers}
    code = {Executor._work_on.__code__}
    stacks = map(traceback.walk_stack, list(sys._current_frames().values()))
    found = (
        frame.f_locals["self"] for stack in stacks for frame, _ in stack if frame.f_code in code
    )
    return Counter(executor for executor in found if executor in ours)


def test_a_forked_child_has_its_own_connections(servers: Quorum, name: str) -> None:
    with lock(name, timeout=60, using="redlock") as held:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                other = lock(name + "child", timeout=60, using="redlock")
                mine = lock(name, blocking=False, using="redlock").acquire()
                os.write(writing, b"good" if other.acquire() and not mine else b"bad")
                other.release()
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as said:
            assert said.read() == b"good"
        os.waitpid(pid, 0)
        held.ensure_held()
    assert lock(name + "child", blocking=False, using="redlock").acquire()


def test_a_busy_server_gets_what_it_is_owed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other calls fail at once."""
    executor, answers = Executor(MagicMock(), 0.0), list[Any]()
    monkeypatch.setattr(executor, "wake", lambda due: None)
    executor._busy_since = 0.0
    owed, other = [Job(MagicMock(), math.inf, answers.append, owed) for owed in (True, False)]
    for job in (owed, other):
        executor.submit(job)
    assert ([*executor._jobs], len(answers)) == ([owed], 1)


def test_the_newest_of_too_many_owed_releases_are_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Executor, "MOST_OWED", 2)
    executor = Executor(MagicMock(side_effect=ConnectionError), 1.0)
    jobs = [Job(MagicMock(), math.inf, owed=True) for _ in range(3)]
    executor._jobs.extend(jobs)
    executor.work()
    assert executor._owed == jobs[1:]
