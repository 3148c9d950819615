"""What goes wrong: processes and servers are killed and stopped, connections cut, locks taken.

A fault undoes what it did before it returns, and records from when to when it lasted by what it saw
itself, so that a slow machine is not taken for a broken promise. It returns False if there was
nothing to break just then.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from time import monotonic
from typing import cast

from django_redis_lock import locks
from django_redis_lock.exceptions import LockError, LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.chaos.crew import Worker
from tests.chaos.plan import NAMES, PERMITS
from tests.chaos.sites import SentinelSite, Watched, client
from tests.chaos.stage import Stage
from tests.layouts.servers import agree

SHORT = (0.1, 0.4)
DOWNTIME = (0.0, 2.0)
PAUSE = (0.1, 2.0)
BEYOND_LEASE = (0.1, 0.8)
"""Seconds."""
Change = Callable[[EmbeddedServer], None]


def client_killed(stage: Stage) -> bool:
    return _kill(stage, stage.any_holder()[0])


def any_client_killed(stage: Stage) -> bool:
    return _kill(stage, stage.any_worker())


def _kill(stage: Stage, worker: Worker | None) -> bool:
    if worker is not None:
        stage.crew.kill(worker)
    return worker is not None


def client_stopped(stage: Stage) -> bool:
    """SIGSTOP for a process that holds a lock, until the lease has passed."""
    worker, lease = stage.any_holder()
    return _stop(stage, worker, lease + stage.dice.uniform(*BEYOND_LEASE))


def any_client_stopped(stage: Stage) -> bool:
    return _stop(stage, stage.any_worker(), stage.dice.uniform(*PAUSE))


def _stop(stage: Stage, worker: Worker | None, seconds: float) -> bool:
    if worker is not None:
        stage.crew.pause(worker, seconds)
    return worker is not None


def release_forced(stage: Stage) -> bool:
    """The release of a lock is forced, of any holder or only of the one seen before."""
    backend, name, since = locks["default"], stage.dice.choice(NAMES), monotonic()
    holder = backend.holder(name)
    if holder is None:
        return False
    only = holder.token_id if stage.dice.random() < 0.5 else None
    try:
        ended = backend.force_release(name, only)
    except LockUnavailable:
        stage.recorder.note("forced", name=name, fence=None, token_id=None, since=since)
        return False
    except LockError:  # several share it, and none was named
        return False
    if ended is not None:
        hold = {"fence": ended.fence, "token_id": ended.token_id}
        stage.recorder.note("forced", name=name, **hold, since=since)
    return ended is not None


def limits_set(stage: Stage) -> None:
    """An operator sets limits of a semaphore: more and fewer than its callers', 0, and none."""
    for limit in (*stage.dice.sample((0, 1, 5), 3), None):
        stage.set_limit(PERMITS, limit)
        stage.rest(*SHORT)


def calls_cut(stage: Stage) -> bool:
    return _cut(stage, "normal")


def listeners_cut(stage: Stage) -> bool:
    return _cut(stage, "pubsub")


def _cut(stage: Stage, kind: str) -> bool:
    with client(stage.any_server().port) as one:
        cut = one.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    stage.recorder.note("cut", what=kind, connections=cut)
    return bool(cut)


def scripts_flushed(stage: Stage) -> None:
    with client(stage.any_server().port) as one:
        one.script_flush()


def server_stopped(stage: Stage) -> None:
    """SIGSTOP: connections stay open, and nothing answers."""
    server = stage.any_server()
    with stage.outage("stopped"):
        server.pause()
        stage.rest(*DOWNTIME)
        server.resume()


def server_restarted(stage: Stage) -> None:
    _start_anew(stage, "restarted", lambda server: None)


def server_crashed(stage: Stage) -> None:
    """SIGKILL for a server, which comes back with its data."""

    def crash(server: EmbeddedServer) -> None:
        server.kill()
        stage.rest(*DOWNTIME)

    _start_anew(stage, "crashed", crash)


def data_lost(stage: Stage) -> None:
    """SIGKILL for a server, which comes back without its data."""

    def lose(server: EmbeddedServer) -> None:
        server.kill()
        for path in server.directory.glob("appendonly*"):
            shutil.rmtree(path)
        stage.rest(*stage.dice.choice((SHORT, DOWNTIME)))  # leases outlive the first

    # One of several servers loses a vote, and a holder may lose its majority by that.
    _start_anew(stage, "crashed", lose, "wiped" if stage.site.needed == 1 else "vote_lost")


def _start_anew(
    stage: Stage, what: str, prepare: Callable[[EmbeddedServer], None], lost: str = ""
) -> None:
    """Start a server anew; where each has a vote, wait until it votes again."""
    server, since = stage.any_server(), monotonic()
    with stage.outage(what):
        prepare(server)
        server.restart()
        if lost:
            stage.recorder.note(lost, since=since)
    if rejoins_in := stage.site.rejoins_in:
        stage.rest(rejoins_in + SHORT[0], rejoins_in + SHORT[1])
        stage.recorder.note("vote_missing", since=since)


def failover(stage: Stage) -> None:
    since = monotonic()
    with stage.outage("failover"):
        cast("Watched", stage.site).fail_over()
    stage.recorder.note("unsettled", since=since)  # until the old master has learnt of it


def master_killed(stage: Stage) -> None:
    """SIGKILL for a master. When a replica has taken over, it comes back without its data."""
    _replaced(stage, "killed", EmbeddedServer.kill, EmbeddedServer.restart)


def master_stopped(stage: Stage) -> None:
    """SIGSTOP for a master. When a replica has taken over, it goes on as if it were the master."""
    _replaced(stage, "stopped", EmbeddedServer.pause, EmbeddedServer.resume)


def _replaced(stage: Stage, what: str, end: Change, begin_again: Change) -> None:
    site, since = cast("Watched", stage.site), monotonic()
    with stage.outage(what):
        server = site.master()
        end(server)
        agree(lambda: site.master() not in (None, server))
        begin_again(server)
    site.layout.settle()
    stage.recorder.note("unsettled", since=since)


def replica_stopped(stage: Stage) -> None:
    _disturb_replica(stage, "replica stopped", EmbeddedServer.pause, EmbeddedServer.resume)


def replica_killed(stage: Stage) -> None:
    """SIGKILL for a replica, which comes back without its data, and copies them again."""
    _disturb_replica(stage, "replica killed", EmbeddedServer.kill, EmbeddedServer.restart)


def _disturb_replica(stage: Stage, what: str, end: Change, begin_again: Change) -> None:
    layout = cast("SentinelSite", stage.site).layout
    with stage.outage(what):
        server = stage.dice.choice(layout.replicas())
        end(server)
        stage.rest(*DOWNTIME)
        begin_again(server)
    layout.settle()
