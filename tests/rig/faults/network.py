"""Faults of the network between callers and servers."""

from __future__ import annotations

from tests.rig.faults.registry import LONG, fault
from tests.rig.sites import client
from tests.rig.stage import Stage


@fault(proxied=True)
def slow_network(stage: Stage) -> None:
    for proxy in stage.site.proxies:
        proxy.delay = stage.dice.uniform(0.02, 0.06)
    stage.rest(*LONG)
    for proxy in stage.site.proxies:
        proxy.delay = 0.0


@fault(proxied=True)
def lost_replies(stage: Stage) -> None:
    proxy = stage.dice.choice(stage.site.proxies)
    proxy.lose_replies(stage.dice.randint(1, 3), stage.site.facts.marker)
    while proxy.lost.acquire(timeout=LONG[1]):
        stage.recorder.note("cut", what="reply", connections=1)
        if not proxy.losing:
            break


@fault(proxied=True)
def cut_connections(stage: Stage) -> None:
    for proxy in stage.site.proxies:
        stage.recorder.note("cut", what="all", connections=proxy.cut())
    stage.rest(*LONG)


@fault(proxied=True)
def half_open(stage: Stage) -> None:
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
    with client(stage.any_server().port) as one:
        cut = one.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    stage.recorder.note("cut", what=kind, connections=cut)
    return bool(cut)
