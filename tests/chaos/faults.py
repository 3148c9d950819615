"""What can go wrong, one function each: it does it, and mends it before it returns.

A fault notes from when to when it lasted by what it saw itself, so that a slow machine is not
taken for a broken promise. It is done again and again for as long as a run lasts.
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
from typing import TYPE_CHECKING, cast

import redis

from django_redis_lock import lock, locks
from example_project.embedded import EmbeddedServer
from tests.chaos.plan import LONGEST_LEASE
from tests.chaos.site import SteppedServer, client
from tests.chaos.stage import Stage

if TYPE_CHECKING:
    from tests.chaos.watched import ClusterSite, Watched

SHORT = (0.1, 0.4)
LONG = (1.0, 2.0)
"""Seconds; the first is borne by callers, of the second they are told."""
BEYOND_LEASE = (0.2, 0.6)
CROWD = 100
DELAY = 1.5
"""Seconds by which waiters that are stopped delay one that is not, however many they are."""
BUSY = 1.0
"""Seconds that a busy machine may add to it."""
STEP = (1.0, 3.0)
"""Seconds by which a clock is set."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, and what a site must have for it."""

    name: str
    do: Callable[[Stage], None]
    proxied: bool = False
    """Needs proxies in front of the servers."""
    persist: bool = True
    """Needs servers that keep their data over a restart."""
    stepped: bool = False
    """Needs servers whose clocks can be set."""


FAULTS: dict[str, Fault] = {}


def fault(**needs: bool) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Put a function on the list of faults, under its name."""

    def register(do: Callable[[Stage], None]) -> Callable[[Stage], None]:
        name = do.__name__.replace("_", " ")
        FAULTS[name] = Fault(name, do, **needs)
        return do

    return register


# The network.


@fault(proxied=True)
def slow_network(stage: Stage) -> None:
    """Everything is under way for longer than usual."""
    for proxy in stage.site.proxies:
        proxy.delay = stage.dice.uniform(0.02, 0.06)
    stage.rest(*LONG)
    for proxy in stage.site.proxies:
        proxy.delay = 0.0


@fault(proxied=True)
def lost_replies(stage: Stage) -> None:
    """Commands are carried out, and the connection breaks before the reply has come."""
    proxy = stage.dice.choice(stage.site.proxies)
    proxy.lose_replies(stage.dice.randint(1, 3), stage.site.marker)
    while proxy.lost.acquire(timeout=LONG[1]):
        stage.recorder.note("cut", what="reply", connections=1)
        if not proxy.losing:
            break
    stage.rest(*SHORT)


@fault(proxied=True)
def cut_connections(stage: Stage) -> None:
    """All connections break at once."""
    for proxy in stage.site.proxies:
        stage.recorder.note("cut", what="all", connections=proxy.cut())
    stage.rest(*LONG)


@fault(proxied=True)
def half_open(stage: Stage) -> None:
    """Connections go dead without a word, as after a firewall forgot them; new ones work."""
    with stage.outage("half open", of_all=True, late_grants=True):
        for proxy in stage.site.proxies:
            proxy.silence()
        # Who listens must find out by itself; who calls does when it is not answered.
        deaf = [proxy for proxy in stage.site.proxies if proxy.silent(listening_only=True)]
        if not stage.until(lambda: not any(p.silent(listening_only=True) for p in deaf)):
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
    stage.rest(*SHORT)


# The callers.


@fault()
def client_killed(stage: Stage) -> None:
    """SIGKILL for a process of callers, one that holds a lock if there is one."""
    found = stage.holder()
    worker = found[0] if found else stage.crew.any_running(stage.dice)
    if worker is not None:
        since = monotonic()
        stage.crew.kill(worker)
        if stage.site.kept_for:  # it may have been its turn
            at = monotonic() + stage.site.kept_for
            stage.recorder.note("outage", what="kept", since=since, at=at)
    stage.rest(*SHORT)


@fault()
def client_stopped(stage: Stage) -> None:
    """SIGSTOP for a process of callers that holds a lock, until its lease has passed."""
    found = stage.holder()
    worker = found[0] if found else stage.crew.any_running(stage.dice)
    lease = (found[1].ttl if found else None) or 0.0
    if worker is not None:
        stage.crew.pause(worker)
        stage.rest(lease + BEYOND_LEASE[0], lease + BEYOND_LEASE[1])
        stage.crew.resume(worker)
    stage.rest(*SHORT)


@fault()
def waiters_stopped(stage: Stage) -> None:
    """SIGSTOP for a process in which a hundred wait, when their lock is about to be released."""
    name = f"crowd-{monotonic()}"
    held = lock(name, timeout=LONGEST_LEASE, auto_renew=True)
    held.acquire()
    with stage.crew.crowd(name, CROWD) as process:
        healthy = lock(name, timeout=LONGEST_LEASE, blocking_timeout=10 * DELAY)
        acquired: Future[float] = Future()
        thread = Thread(target=lambda: acquired.set_result(healthy.acquire() and monotonic()))
        thread.start()
        stage.until(lambda: name in locks["default"].hub._watches)
        stage.rest(*SHORT)
        os.kill(process.pid, signal.SIGSTOP)
        released_at = monotonic()
        held.release()
        at = acquired.result()
        waited = at - released_at if at else 10 * DELAY
        if waited > DELAY + BUSY:
            late = f"the lock that {CROWD} waiters of a stopped process kept for {waited:.1f} s"
            stage.recorder.note("left", keys=[late])
        thread.join()
        healthy.release()


# The servers.


@fault()
def server_stopped(stage: Stage) -> None:
    """SIGSTOP for a server: its connections are open, and nothing answers."""
    server = stage.dice.choice(stage.site.servers)
    with stage.outage("stopped"):
        server.pause()
        stage.rest(*LONG)
        server.resume()
    stage.rest(*SHORT)


@fault()
def server_restarted(stage: Stage) -> None:
    """A server is restarted in good order."""
    server = stage.dice.choice(stage.site.servers)
    with stage.outage("restarted"):
        server.restart()
    stage.rest(*LONG)


@fault()
def server_crashed(stage: Stage) -> None:
    """SIGKILL for a server, which comes back with what it had written."""
    server = stage.dice.choice(stage.site.servers)
    with stage.outage("crashed"):
        server.kill()
        stage.rest(*LONG)
        server.restart()
    _rejoin(stage)


@fault(persist=False)
def data_lost(stage: Stage) -> None:
    """SIGKILL for a server that keeps nothing: every lock on it vanishes."""
    server = stage.dice.choice(stage.site.servers)
    since = monotonic()
    with stage.outage("crashed"):
        server.kill()
        for path in server.directory.glob("appendonly*"):
            shutil.rmtree(path)
        stage.rest(*SHORT)
        server.restart()
        # Of several servers each holds a vote only; without it a majority may be none any more.
        stage.recorder.note("wiped" if stage.site.needed == 1 else "thinned", since=since)
    _rejoin(stage)


def _rejoin(stage: Stage) -> None:
    """Wait until a server that was started anew takes part again."""
    stage.rest(stage.site.rejoins_in + SHORT[0], stage.site.rejoins_in + SHORT[1])


@fault(stepped=True)
def clock_set_forward(stage: Stage) -> None:
    """The server's clock is set forward: leases end early."""
    _step(stage, stage.dice.uniform(*STEP))


@fault(stepped=True)
def clock_set_back(stage: Stage) -> None:
    """The server's clock is set back: leases end late."""
    _step(stage, -stage.dice.uniform(*STEP))


def _step(stage: Stage, seconds: float) -> None:
    server = cast("SteppedServer", stage.dice.choice(stage.site.servers))
    since = monotonic()
    with client(server.port) as one:
        before = _ahead(one)
        server.step(seconds)
        stage.until(lambda: abs(_ahead(one) - before - seconds) < abs(seconds) / 2)
    if seconds > 0:
        stage.unsettled(since, monotonic() + stage.site.clock_kept_for)
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
    server = stage.dice.choice(stage.site.servers)
    in_the_way = server.directory / "dump.rdb" / "in the way"  # root may write anywhere else
    with client(server.port) as one:
        one.config_set("save", "3600 1")
        with stage.outage("refused"):
            in_the_way.parent.unlink(missing_ok=True)
            in_the_way.mkdir(parents=True)
            _save(stage, one, "err")
            stage.rest(*LONG)
            shutil.rmtree(in_the_way.parent)
            _save(stage, one, "ok")
        one.config_set("save", "")
    stage.rest(*SHORT)


def _save(stage: Stage, one: redis.Redis, outcome: str) -> None:
    one.bgsave(schedule=True)
    stage.until(lambda: one.info("persistence")["rdb_last_bgsave_status"] == outcome)


@fault()
def out_of_memory(stage: Stage) -> None:
    """The server has no memory left, and evicts nothing."""
    server = stage.dice.choice(stage.site.servers)
    with client(server.port) as one:
        with stage.outage("refused"):
            one.config_set("maxmemory", 1)
            stage.rest(*LONG)
            one.config_set("maxmemory", 0)
    stage.rest(*SHORT)


@fault()
def read_only(stage: Stage) -> None:
    """The server is made a replica of one that can't be reached, and then a master again."""
    server: EmbeddedServer = stage.dice.choice(stage.site.servers)
    with client(server.port) as one:
        with stage.outage("refused"):
            one.replicaof("127.0.0.1", 1)
            stage.rest(*LONG)
            one.replicaof("NO", "ONE")
    stage.rest(*SHORT)


# Masters and replicas.


def _watched(stage: Stage) -> Watched:
    return cast("Watched", stage.site)


@fault()
def failover(stage: Stage) -> None:
    """A replica takes over in good order."""
    since = monotonic()
    with stage.outage("failover"):
        _watched(stage).fail_over()
    _watched(stage).settle()
    stage.unsettled(since)  # until the old master has learnt of it
    stage.rest(*SHORT)


@fault()
def master_killed(stage: Stage) -> None:
    """SIGKILL for a master; a replica takes over, and the dead one comes back as its replica."""
    since = monotonic()
    with stage.outage("killed"):
        server = _watched(stage).master()
        server.kill()
        stage.served_again()
    server.restart()
    _watched(stage).settle()
    stage.unsettled(since)
    stage.rest(*SHORT)


@fault()
def master_stopped(stage: Stage) -> None:
    """SIGSTOP for a master until a replica has taken over; then it wakes, and takes itself for it.

    Until the others have told it, there are two.
    """
    since = monotonic()
    with stage.outage("stopped"):
        server = _watched(stage).master()
        server.pause()
        stage.served_again()
        server.resume()
        _watched(stage).settle()
    stage.unsettled(since)
    stage.rest(*SHORT)


@fault()
def resharding(stage: Stage) -> None:
    """The slot that locks are in moves to another master."""
    with stage.outage("moved"):
        cast("ClusterSite", stage.site).move()
    stage.rest(*LONG)
