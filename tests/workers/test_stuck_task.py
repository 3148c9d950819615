"""What an operator does about a task that hangs, and about holders that are dead: all real."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from django_redis_lock import lock, locks
from django_redis_lock.management.console.releasing import system_user
from django_redis_lock.operators import liveness
from django_redis_lock.operators.liveness import judge
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import Process, began_at, pid_space, state_of
from example_project.embedded import EmbeddedServer
from tests.apps import operators_app
from tests.apps.celery.app import app as tests_app
from tests.tools import Background, Child, eventually, waiters
from tests.tools.celery_worker import disconnect, running_worker
from tests.tools.console import command

WAIT = 20


@dataclass(frozen=True)
class Worker:
    """A Celery worker with its children, in a process group of its own."""

    process: subprocess.Popen[bytes]
    log: Path

    def start(self, shop: str, **options: Any) -> tuple[Any, int]:
        """Send a task; return its result and the process id of the child that runs it."""
        result = operators_app.import_catalogue.apply_async((shop,), **options)
        with operators_app.events() as client:
            said = client.blpop([f"started:{shop}"], timeout=WAIT)
        assert said, self.log.read_text()
        return result, int(said[1])

    def go(self, shop: str) -> None:
        with operators_app.events() as client:
            client.rpush(f"go:{shop}", "go")


@pytest.fixture(scope="module", autouse=True)
def _connections() -> Iterator[None]:
    """Close what this process opened to the broker when nobody needs it any more."""
    yield
    disconnect(operators_app.app)


@pytest.fixture(params=["prefork"])
def worker(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path: Path, settings: Any, db: None
) -> Iterator[Worker]:
    """A worker with two children, or of another pool, and its app as the current one."""
    settings.LOCKS = {"default": settings.LOCKS["default"]}
    with running_worker(
        tmp_path,
        app="tests.apps.operators_app",
        pool=request.param,
        concurrency=2,
        queue="operators",
        environment={"DJANGO_SETTINGS_MODULE": "tests.settings"},
    ) as running:
        operators_app.app.set_current()
        yield Worker(running.process, running.log)
        if running.process.poll() is None:
            os.killpg(running.process.pid, signal.SIGCONT)
    tests_app.set_current()
    locks.reset()


def test_stuck_task_is_found_broken_and_told(worker: Worker) -> None:
    """A hung task is found, its lock handed off, its loss noticed, and all is reported."""
    result, child = worker.start("7")
    os.kill(child, signal.SIGSTOP)
    heir = lock("import:7", 60)
    waiting = Background(heir.acquire)
    eventually(lambda: waiters("import:7") == 1)

    listed = command("list", "import:*")
    assert f"task shop.import_catalogue[{result.id}]" in listed.out
    assert listed.lines[1].split()[-3] == "1"  # waits
    shown = command("show", "import:7").out
    assert f"pid         {child}" in shown
    assert waiting.name in shown
    assert f"life        stopped: process {child} is stopped\n" in shown
    known = json.loads(command("show", "import:7", "--format", "json").out)["locks"][0]
    assert (known["life"], known["life_because"]) == ("stopped", f"process {child} is stopped")
    # It is stuck and not dead, so it takes an operator to say so.
    left_alone = command("release", "import:7", "--only-dead", "--noinput")
    assert left_alone.code == 3
    assert f"1 lock kept, because process {child} is stopped." in left_alone.err
    assert not waiting.ended_at

    done = command("release", "import:7", "--noinput", "--reason", "stuck since the morning")
    assert done.code == 0
    assert "import:7: released, and handed off to" in done.out
    assert waiting.outcome() is True
    heir.ensure_held()

    os.kill(child, signal.SIGCONT)
    worker.go("7")
    assert result.get(timeout=WAIT) == "done"
    heir.ensure_held()  # nobody released it but its holder
    heir.release()
    (entry,) = [e for e in locks["default"].history("import:7") if e.event == "force_released"]
    assert (entry.by, entry.reason) == (system_user(), "stuck since the morning")
    assert (entry.pid, entry.task_id) == (child, result.id)
    assert "stuck since the morning" in command("history", "import:7").out
    assert "Lock 'import:7' was lost while it was held" in worker.log.read_text()


def test_dead_processes_of_this_host_are_found(server: EmbeddedServer, db: None) -> None:
    """``--only-dead`` releases what a killed process left, and nothing else."""
    mine = lock("mine", 60)
    mine.acquire()
    program = """
        held = [lock(name, 60) for name in ("left:1", "left:2")]
        for item in held:
            item.acquire()
        say("ready")
        hear()
    """
    with Child(program) as child, Child(program.replace("left:", "living:")) as living:
        assert child.hear() == living.hear() == "ready"
        assert command("release", "--all", "--only-dead", "--noinput").code == 3
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which is dead as well
        assert not state_of(child.pid)
        child.end()
        assert not state_of(child.pid)
        done = command("release", "--all", "--only-dead", "--dry-run")
        assert sorted(line.split()[0] for line in done.lines[1:]) == ["left:1", "left:2"]
        assert all(line.endswith(f"process {child.pid} is gone") for line in done.lines[1:])
        assert "3 locks kept, each because its process lives." in done.err
        assert command("release", "--all", "--only-dead", "--noinput").code == 0
        left = {holder.name for holder in locks["default"].holders()}
    assert left == {"mine", "living:1", "living:2"}


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


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"host": None}, "another program holds it"),
        ({"host": "elsewhere"}, "it runs on elsewhere, not here"),
        ({"pid_space": None}, "it may run in another container of {here}"),
        ({"pid_space": None, "pid": os.getpid()}, "it may run in another container of {here}"),
        ({"pid": os.getpid()}, "its process lives"),
        ({"pid": os.getpid(), "pid_began": began_at(os.getpid())}, "its process lives"),
        ({"metadata": {"state": "queued"}}, "its message waits in a queue"),
        ({"metadata": {"state": "queued"}, "task_id": "a"}, "its message waits in a queue"),
        ({"metadata": {"state": "resting"}}, "no process holds it, until its lease ends"),
    ],
)
def test_verdicts(name: str, changes: dict[str, Any], why: str) -> None:
    """Whoever is not certainly dead is left alone, and why is told."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    here = {"host": liveness.socket.gethostname(), "pid_space": pid_space()}
    holder = _holder(name, pid=process.pid, **here)
    assert _verdict(holder) == ("dead", f"process {process.pid} is gone")
    later = _changed(holder, pid=os.getpid(), pid_began=began_at(os.getpid()) - 1)
    assert _verdict(later) == ("dead", f"process {os.getpid()} is gone")
    life = "alive" if why == "its process lives" else "unknown"
    assert _verdict(_changed(holder, **changes)) == (life, why.format(here=holder.host))


IN_A_CONTAINER = """
    import ctypes
    from django_redis_lock.support import process
    refused = ctypes.CDLL(None).unshare(0x20000000)  # CLONE_NEWPID: for the children of this one
    if refused:
        process.pid_space = lambda: "0123abcd"
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    else:
        if refused:
            process._process = process.Process()
        else:  # where /proc is not that of the new namespace, its states are those of others
            assert process.state_of(os.getpid(), 1) == "?"
        lock("contained", 60).acquire()
        say("ready")
        hear()
"""


def test_another_container_with_the_same_host_name(server: EmbeddedServer, db: None) -> None:
    """Its process ids say nothing here, where they are another process's, or nobody's."""
    with Child(IN_A_CONTAINER) as child:
        assert child.hear() == "ready"
        holder = locks["default"].holder("contained")
        assert holder.host == liveness.socket.gethostname()
        assert holder.pid_space != pid_space()
        why = f"it runs in another container of {holder.host}"
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        for pid in (holder.pid, gone.pid):
            assert _verdict(_changed(holder, pid=pid)) == ("unknown", why)
        done = command("release", "contained", "--only-dead", "--noinput")
        assert (done.code, why in done.err) == (3, True)
        child.say()
        child.end()


def test_a_system_without_proc(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """There the host's name has to do."""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path: Path("/nowhere").stat())
        alone = Process()
    assert (alone.pid_space, "pid_space" in alone.record()) == ("", False)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    holder = _holder(name, host=alone.host, pid=gone.pid)
    with monkeypatch.context() as patch:
        patch.setattr(liveness, "current_process", lambda: alone)
        assert _verdict(holder)[0] == "dead"
    assert Process().pid_space == pid_space() != ""


def test_detached_lock_outlives_its_process(name: str) -> None:
    """Whoever has the ticket may come later, so the end of who detached it is no death."""
    for metadata, state in ((None, "detached"), ({"state": "waits"}, "waits")):
        held = lock(f"{name}:{state}", using="locmem")
        held.acquire()
        held.detach(30, metadata)
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        holder = _changed(locks["locmem"].holder(held.name), pid=process.pid)
        assert holder.metadata == {"state": state}
        assert _verdict(holder) == ("unknown", "no process holds it, until its lease ends")


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
