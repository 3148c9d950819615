"""Faults of servers, and of masters and replicas."""

from __future__ import annotations

import shutil
from time import monotonic
from typing import cast

import redis

from tests.rig.faults.registry import LONG, SHORT, fault
from tests.rig.sites import client
from tests.rig.stage import Stage
from tests.rig.watched import ClusterSite, Watched
from tests.tools.stepped import SteppedServer

STEP = (1.0, 3.0)
"""Seconds by which a clock is set."""


@fault()
def server_stopped(stage: Stage) -> None:
    server = stage.any_server()
    with stage.outage("stopped"):
        server.pause()
        stage.rest(*stage.downtime)
        server.resume()


@fault()
def server_restarted(stage: Stage) -> None:
    with stage.outage("restarted"):
        stage.any_server().restart()


@fault()
def server_crashed(stage: Stage) -> None:
    server = stage.any_server()
    with stage.outage("crashed"):
        server.kill()
        stage.rest(*stage.downtime)
        server.restart()
    _rejoin(stage)


@fault()
def data_lost(stage: Stage) -> None:
    server = stage.any_server()
    since = monotonic()
    with stage.outage("crashed"):
        server.kill()
        for path in server.directory.glob("appendonly*"):
            shutil.rmtree(path)
        stage.rest(*stage.dice.choice((SHORT, stage.downtime)))  # leases outlive the first
        server.restart()
        # One of several servers loses a vote, and a holder may lose its majority by that.
        stage.recorder.note("wiped" if stage.site.needed == 1 else "vote_lost", since=since)
    _rejoin(stage)


def _rejoin(stage: Stage) -> None:
    """Wait until a server that was started anew takes part again."""
    if stage.site.facts.rejoins_in:
        stage.rest(stage.site.facts.rejoins_in + SHORT[0], stage.site.facts.rejoins_in + SHORT[1])


@fault()
def scripts_flushed(stage: Stage) -> None:
    """The server forgets the scripts."""
    with client(stage.any_server().port) as one:
        one.script_flush()


@fault(stepped=True)
def clock_set_forward(stage: Stage) -> None:
    _step(stage, stage.dice.uniform(*STEP))


@fault(stepped=True)
def clock_set_back(stage: Stage) -> None:
    _step(stage, -stage.dice.uniform(*STEP))


def _step(stage: Stage, seconds: float) -> None:
    server = cast("SteppedServer", stage.any_server())
    since = monotonic()
    with client(server.port) as one:
        before = _ahead(one)
        server.step(seconds)
        stage.heart.until(lambda: abs(_ahead(one) - before - seconds) < abs(seconds) / 2)
    if seconds > 0:
        at = monotonic() + stage.site.facts.clock_kept_for
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
    server = stage.any_server()
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
    with client(stage.any_server().port) as one, stage.outage("refused"):
        one.config_set("maxmemory", 1)
        stage.rest(*LONG)
        one.config_set("maxmemory", 0)


@fault()
def read_only(stage: Stage) -> None:
    with client(stage.any_server().port) as one, stage.outage("refused"):
        one.replicaof("127.0.0.1", 1)
        stage.rest(*LONG)
        one.replicaof("NO", "ONE")


@fault()
def failover(stage: Stage) -> None:
    since = monotonic()
    with stage.outage("failover"):
        cast("Watched", stage.site).fail_over()
    stage.recorder.note("unsettled", since=since)  # until the old master has learnt of it


@fault()
def master_killed(stage: Stage) -> None:
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
    with stage.outage("moved"):
        cast("ClusterSite", stage.site).move()
