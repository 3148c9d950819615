"""What can go wrong, one function each. Each undoes what it did before it returns.

A fault records from when to when it lasted by what it saw itself, so that a slow machine is not
taken for a broken promise. It returns False if there was nothing to break just then.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from time import monotonic
from typing import cast

import redis

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.rig.crew import Worker
from tests.rig.plan import ALL_NAMES
from tests.rig.sites import client
from tests.rig.stage import Stage
from tests.rig.stepped import SteppedServer
from tests.rig.watched import ClusterSite, Watched
from tests.tools import waiters

SHORT = (0.1, 0.4)
LONG = (1.0, 2.0)
"""Seconds; callers don't notice the first, and are told of the second."""
PAUSE = (0.1, 2.0)
BEYOND_LEASE = (0.1, 0.8)
CROWD = 100
DELAY = 1.5
"""Seconds by which stopped waiters delay one that is not stopped, however many they are."""
BUSY = 1.0
"""Seconds that a busy machine may add to it."""
STEP = (1.0, 3.0)
"""Seconds by which a clock is set."""

Play = Callable[[Stage], bool | None]


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, and what a site must have for it."""

    name: str
    play: Play
    proxied: bool = False
    """Needs proxies in front of the servers."""
    stepped: bool = False
    """Needs servers whose clocks can be set."""


FAULTS: dict[str, Fault] = {}


def fault(**needs: bool) -> Callable[[Play], Play]:
    """Register a function as a fault, under its name."""

    def register(play: Play) -> Play:
        name = play.__name__.replace("_", " ")
        FAULTS[name] = Fault(name, play, **needs)
        return play

    return register


# The network.


@fault(proxied=True)
def slow_network(stage: Stage) -> None:
    """Everything takes longer than usual."""
    for proxy in stage.site.proxies:
        proxy.delay = stage.dice.uniform(0.02, 0.06)
    stage.rest(*LONG)
    for proxy in stage.site.proxies:
        proxy.delay = 0.0


@fault(proxied=True)
def lost_replies(stage: Stage) -> None:
    """Commands are carried out, and the connection breaks before the reply comes."""
    proxy = stage.dice.choice(stage.site.proxies)
    proxy.lose_replies(stage.dice.randint(1, 3), stage.site.marker)
    while proxy.lost.acquire(timeout=LONG[1]):
        stage.recorder.note("cut", what="reply", connections=1)
        if not proxy.losing:
            break


@fault(proxied=True)
def cut_connections(stage: Stage) -> None:
    """All connections break at once."""
    for proxy in stage.site.proxies:
        stage.recorder.note("cut", what="all", connections=proxy.cut())
    stage.rest(*LONG)


@fault(proxied=True)
def half_open(stage: Stage) -> None:
    """Connections go dead silently, as after a firewall forgot them; new ones work."""
    with stage.outage("half open", of_all=True, late_grants=True):
        for proxy in stage.site.proxies:
            proxy.silence()
        # A listener must find out by itself; a caller does when it gets no answer.
        deaf = [proxy for proxy in stage.site.proxies if proxy.silent(listening_only=True)]
        if not stage.heart.until(
            lambda: not any(proxy.silent(listening_only=True) for proxy in deaf)
        ):
            stage.recorder.note("left", keys=["a listening connection that is dead"])
        for proxy in stage.site.proxies:
            proxy.cut_silent()


@fault(proxied=True)
def black_hole(stage: Stage) -> None:
    """Nothing gets through, and then everything late, requests given up long ago included."""
    with stage.outage("black hole", of_all=True, late_grants=True):
        for proxy in stage.site.proxies:
            proxy.hold_back()
        stage.rest(*LONG)
        for proxy in stage.site.proxies:
            proxy.let_go()


@fault()
def calls_cut(stage: Stage) -> bool:
    """The server closes the connections that carry calls."""
    return _cut(stage, "normal")


@fault()
def listeners_cut(stage: Stage) -> bool:
    """The server closes the connections that carry grants."""
    return _cut(stage, "pubsub")


def _cut(stage: Stage, kind: str) -> bool:
    with client(_any_server(stage).port) as one:
        cut = one.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    stage.recorder.note("cut", what=kind, connections=cut)
    return bool(cut)


# The callers.


@fault()
def client_killed(stage: Stage) -> bool:
    """SIGKILL for a process of callers, one that holds a lock if there is one."""
    found = stage.holder()
    return _kill(stage, found[0] if found else stage.crew.any_running(stage.dice))


@fault()
def any_client_killed(stage: Stage) -> bool:
    """SIGKILL for any process of callers."""
    return _kill(stage, stage.crew.any_running(stage.dice))


def _kill(stage: Stage, worker: Worker | None) -> bool:
    if worker is not None:
        stage.crew.kill(worker, stage.site.remembers)
    return worker is not None


@fault()
def client_stopped(stage: Stage) -> bool:
    """SIGSTOP for a process of callers that holds a lock, until its lease has passed."""
    found = stage.holder()
    worker = found[0] if found else stage.crew.any_running(stage.dice)
    lease = (found[1].ttl if found else None) or 0.0
    if worker is not None:
        stage.crew.pause(worker, lease + stage.dice.uniform(*BEYOND_LEASE))
    return worker is not None


@fault()
def any_client_stopped(stage: Stage) -> bool:
    """SIGSTOP for any process of callers."""
    worker = stage.crew.any_running(stage.dice)
    if worker is not None:
        stage.crew.pause(worker, stage.dice.uniform(*PAUSE))
    return worker is not None


@fault()
def waiters_stopped(stage: Stage) -> None:
    """SIGSTOP for a process in which a hundred wait, when their lock is about to be released."""
    lease, name = stage.plan.longest_lease, f"crowd-{monotonic()}"
    held = lock(name, timeout=lease, auto_renew=True)
    held.acquire()
    with stage.crew.crowd(name, CROWD) as process:
        healthy = lock(name, timeout=lease, blocking_timeout=10 * DELAY)
        acquired: Future[bool] = Future()
        thread = Thread(target=lambda: acquired.set_result(healthy.acquire()))
        thread.start()
        ahead = CROWD if locks["default"].supports_queue else 0
        stage.heart.until(lambda: waiters(name) > ahead)
        stage.rest(*SHORT)
        os.kill(process.pid, signal.SIGSTOP)
        # Counted in time in which this process ran: a machine that stands still delays everything.
        released_at = stage.heart.ran
        held.release()
        got = acquired.result()
        waited = stage.heart.ran - released_at
        if not got or waited > DELAY + BUSY:
            late = f"the lock that {CROWD} waiters of a stopped process kept for {waited:.1f} s"
            stage.recorder.note("left", keys=[late])
        thread.join()
        if got:
            healthy.release()


@fault()
def release_forced(stage: Stage) -> bool:
    """The release of a lock is forced, of any holder or only of the one seen before."""
    backend, name, since = locks["default"], stage.dice.choice(ALL_NAMES), monotonic()
    holder = backend.holder(name)
    if holder is None:
        return False
    only = holder.token_id if stage.dice.random() < 0.5 else None
    try:
        ended = backend.force_release(name, only)
    except LockUnavailable:
        stage.recorder.note("forced", name=name, fence=None, since=since)
        return False
    if ended is not None:
        stage.recorder.note("forced", name=name, fence=ended.fence, since=since)
    return ended is not None


# The servers.


def _any_server(stage: Stage) -> EmbeddedServer:
    return stage.dice.choice(stage.site.servers)


@fault()
def server_stopped(stage: Stage) -> None:
    """SIGSTOP for a server: its connections are open, and nothing answers."""
    server = _any_server(stage)
    with stage.outage("stopped"):
        server.pause()
        stage.rest(*stage.downtime)
        server.resume()


@fault()
def server_restarted(stage: Stage) -> None:
    """A server is restarted in good order."""
    with stage.outage("restarted"):
        _any_server(stage).restart()


@fault()
def server_crashed(stage: Stage) -> None:
    """SIGKILL for a server, which comes back with what it had written."""
    server = _any_server(stage)
    with stage.outage("crashed"):
        server.kill()
        stage.rest(*stage.downtime)
        server.restart()
    _rejoin(stage)


@fault()
def data_lost(stage: Stage) -> None:
    """SIGKILL for a server, which comes back without data: every lock on it vanishes."""
    server = _any_server(stage)
    since = monotonic()
    with stage.outage("crashed"):
        server.kill()
        for path in server.directory.glob("appendonly*"):
            shutil.rmtree(path)
        stage.rest(SHORT[0], stage.downtime[1])
        server.restart()
        # One of several servers loses a vote for each holder, who may lose the majority by it.
        stage.recorder.note("wiped" if stage.site.needed == 1 else "vote_lost", since=since)
    _rejoin(stage)


def _rejoin(stage: Stage) -> None:
    """Wait until a server that was started anew takes part again."""
    if stage.site.rejoins_in:
        stage.rest(stage.site.rejoins_in + SHORT[0], stage.site.rejoins_in + SHORT[1])


@fault()
def scripts_flushed(stage: Stage) -> None:
    """The server forgets the scripts."""
    with client(_any_server(stage).port) as one:
        one.script_flush()


@fault(stepped=True)
def clock_set_forward(stage: Stage) -> None:
    """The server's clock is set forward: leases end early."""
    _step(stage, stage.dice.uniform(*STEP))


@fault(stepped=True)
def clock_set_back(stage: Stage) -> None:
    """The server's clock is set back: leases end late."""
    _step(stage, -stage.dice.uniform(*STEP))


def _step(stage: Stage, seconds: float) -> None:
    server = cast("SteppedServer", _any_server(stage))
    since = monotonic()
    with client(server.port) as one:
        before = _ahead(one)
        server.step(seconds)
        stage.heart.until(lambda: abs(_ahead(one) - before - seconds) < abs(seconds) / 2)
    if seconds > 0:
        at = monotonic() + stage.site.clock_kept_for
        stage.recorder.note("unsettled", since=since, at=at)
    else:
        stage.recorder.note("postponed", since=monotonic(), seconds=-seconds)
    stage.rest(*LONG)


def _ahead(one: redis.Redis) -> float:
    """Return by how much a server's clock is ahead of the monotonic one."""
    seconds, microseconds = one.time()
    return float(seconds) + microseconds / 1e6 - monotonic()


@fault()
def disk_broken(stage: Stage) -> None:
    """The server can't save, and so refuses to write (MISCONF)."""
    server = _any_server(stage)
    obstacle = server.directory / "dump.rdb" / "obstacle"  # for root may write to any file
    with client(server.port) as one:
        one.config_set("save", "3600 1")
        with stage.outage("refused"):
            obstacle.parent.unlink(missing_ok=True)
            obstacle.mkdir(parents=True)
            _save(stage, one, "err")
            stage.rest(*LONG)
            shutil.rmtree(obstacle.parent)
            _save(stage, one, "ok")
        one.config_set("save", "")


def _save(stage: Stage, one: redis.Redis, outcome: str) -> None:
    one.bgsave(schedule=True)
    stage.heart.until(lambda: one.info("persistence")["rdb_last_bgsave_status"] == outcome)


@fault()
def out_of_memory(stage: Stage) -> None:
    """The server has no memory left, and evicts nothing."""
    with client(_any_server(stage).port) as one, stage.outage("refused"):
        one.config_set("maxmemory", 1)
        stage.rest(*LONG)
        one.config_set("maxmemory", 0)


@fault()
def read_only(stage: Stage) -> None:
    """The server becomes a replica of one that can't be reached, and then a master again."""
    with client(_any_server(stage).port) as one, stage.outage("refused"):
        one.replicaof("127.0.0.1", 1)
        stage.rest(*LONG)
        one.replicaof("NO", "ONE")


# Masters and replicas.


@fault()
def failover(stage: Stage) -> None:
    """A replica takes over in good order."""
    since = monotonic()
    with stage.outage("failover"):
        cast("Watched", stage.site).fail_over()
    stage.recorder.note("unsettled", since=since)  # until the old master has learnt of it


@fault()
def master_killed(stage: Stage) -> None:
    """SIGKILL for a master; a replica takes over, and the dead one comes back as its replica."""
    site, since = cast("Watched", stage.site), monotonic()
    with stage.outage("killed"):
        server = site.master()
        server.kill()
        stage.served_again()
    server.restart()
    site.layout.settle()
    stage.recorder.note("unsettled", since=since)


@fault()
def master_stopped(stage: Stage) -> None:
    """SIGSTOP for a master until a replica has taken over; then it wakes as a second master."""
    site, since = cast("Watched", stage.site), monotonic()
    with stage.outage("stopped"):
        server = site.master()
        server.pause()
        stage.served_again()
        server.resume()
        site.layout.settle()
    stage.recorder.note("unsettled", since=since)


@fault()
def resharding(stage: Stage) -> None:
    """The slot that locks are in moves to another master."""
    with stage.outage("moved"):
        cast("ClusterSite", stage.site).move()
