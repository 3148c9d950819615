"""What the command makes of holders that hang or are dead: real processes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from django_redis_lock import lock, locks
from django_redis_lock.operators import judge
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import began_at, pid_space, state_of
from example_project.embedded import EmbeddedServer
from tests.tools import Child
from tests.tools.console import command

HOLDER = """
    held = [lock(name, 60) for name in sys.argv[1:]]
    for item in held:
        item.acquire()
    say("ready")
    hear()
"""


def test_only_dead_releases_what_the_dead_left(server: EmbeddedServer, db: None) -> None:
    mine = lock("mine", 60)
    mine.acquire()
    with (
        Child(HOLDER, "left:1", "left:2") as child,
        Child(HOLDER, "living") as living,
        Child(HOLDER, "stopped") as stopped,
    ):
        assert child.hear() == living.hear() == stopped.hear() == "ready"
        stopped.stop()
        why = f"process {stopped.pid} is stopped"
        assert f"life        stopped: {why}\n" in command("show", "stopped").out
        (known,) = json.loads(command("show", "stopped", "--format", "json").out)["locks"]
        assert (known["life"], known["life_because"]) == ("stopped", why)
        kept = command("release", "stopped", "--only-dead", "--noinput")
        assert (kept.code, f"Skipped 1 lock: {why}." in kept.err) == (3, True)
        assert command("release", "--all", "--only-dead", "--noinput").code == 3
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which is dead as well
        assert not state_of(child.pid)
        child.end()
        assert not state_of(child.pid)
        done = command("release", "--all", "--only-dead", "--dry-run")
        assert sorted(line.split()[0] for line in done.lines[1:]) == ["left:1", "left:2"]
        assert all(line.endswith(f"process {child.pid} is gone") for line in done.lines[1:])
        assert command("release", "--all", "--only-dead", "--noinput").code == 0
        left = {holder.name for holder in locks["default"].holders()}
    assert left == {"mine", "living", "stopped"}


@pytest.mark.parametrize(
    "pid",
    [
        pytest.param(os.getpid(), id="own"),
        pytest.param(os.getppid(), id="parent"),
        *(1, 0, -1, -(10**6), 2**70, None),
    ],
)
def test_in_doubt_a_state_of(pid: int | None) -> None:
    """Only a process that is certainly gone is dead; no signal is sent to a group."""
    assert state_of(pid)


ELSEWHERE = "its holder runs on elsewhere, so this host can't tell whether it is alive"
CONTAINER = "its holder runs in another container of {here}, so its state is not known here"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"host": None}, "held by another program"),
        ({"host": "elsewhere"}, ELSEWHERE),
        ({"pid_space": None}, CONTAINER),
        (
            {"pid_space": None, "pid": os.getpid()},
            CONTAINER,
        ),
        ({"pid": os.getpid()}, "its process is running"),
        ({"pid": os.getpid(), "pid_began": began_at(os.getpid())}, "its process is running"),
        ({"marks": {"state": "queued"}}, "its message waits in a Celery queue"),
        ({"marks": {"state": "queued"}, "task_id": "a"}, "its message waits in a Celery queue"),
        ({"metadata": {"state": "shipped"}, "pid": os.getpid()}, "its process is running"),
        ({"marks": {"state": "resting"}}, "not held by a process; free when its lease ends"),
        ({"marks": {"state": "detached"}}, "not held by a process; free when its lease ends"),
    ],
)
def test_verdicts(name: str, changes: dict[str, Any], why: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    here = {"host": socket.gethostname(), "pid_space": pid_space()}
    holder = _holder(name, pid=process.pid, **here)
    assert _verdict(holder) == ("dead", f"process {process.pid} is gone")
    later = _changed(holder, pid=os.getpid(), pid_began=began_at(os.getpid()) - 1)
    assert _verdict(later) == ("dead", f"process {os.getpid()} is gone")
    life = "alive" if why == "its process is running" else "unknown"
    assert _verdict(_changed(holder, **changes)) == (life, why.format(here=holder.host))


def _holder(name: str, **changes: Any) -> Holder:
    nobody: dict[str, Any] = dict.fromkeys(
        ("fence", "acquired_at", "expires_at", "ttl", "host", "pid", "thread")
    )
    fields = {**nobody, "token_id": "0", "auto_renew": False, "waiters": 0, **changes}
    return Holder(name=name, using="default", **fields)


def _changed(holder: Holder, **changes: Any) -> Holder:
    return dataclasses.replace(holder, **changes)


def _verdict(holder: Holder) -> tuple[str, str]:
    verdict = judge(holder)
    return verdict.life.value, verdict.why
