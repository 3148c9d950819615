"""The layouts of servers: what a free lock and a hand-off cost on each."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from typing import Any

from benchmarks.contenders import OURS, Contender
from benchmarks.scenarios import Bench, Figures, medians, pairs, pass_on
from benchmarks.workers import crew, together
from example_project.embedded import EmbeddedServer
from tests.layouts.servers import Cluster, Sentinel

ONE = "one server"
DOWN_AFTER = 15
"""Seconds without an answer after which a server is replaced: none is, on a busy machine."""


def layouts(bench: Bench) -> Figures:
    """Take and release a free lock in a loop, and release one for which another process waits. Each
    layout has servers of its own; the two with Sentinel share theirs. All run on this machine."""
    count, each = (100, 3) if bench.quick else (1000, 10)
    with ExitStack() as stack:
        settings = _start(stack)
        crews = {layout: stack.enter_context(crew(2, OURS, bench.url)) for layout in settings}
        for layout, workers in crews.items():
            together(workers, use, settings[layout])

        def measure(layout: str, turn: int) -> dict[str, float]:
            took, _ = crews[layout][0].call(pairs, f"{layout}:{turn}", count, 0.0)
            names = [f"{layout}:{turn}:passed:{number}" for number in range(each)]
            passed = [pass_on(crews[layout], name) for name in names]
            return {"pairs/s": count / took, "ms": median(passed)}

        for layout in settings:  # untimed: scripts, connections and listeners
            crews[layout][0].call(pairs, f"{layout}:warm", 20, 0.0)
            for number in range(5):
                pass_on(crews[layout], f"{layout}:warm:passed:{number}")
        return medians(bench.compare([*settings], measure), **{"pairs/s": ONE})


def _start(stack: ExitStack) -> dict[str, dict[str, Any]]:
    """Start the servers of each layout; return the settings by which it is used."""
    sentinel = stack.enter_context(Sentinel(down_after=DOWN_AFTER))
    cluster = stack.enter_context(Cluster(node_timeout=DOWN_AFTER))

    def independent(backend: str, count: int = 1) -> dict[str, Any]:
        urls = [stack.enter_context(EmbeddedServer()).url() for _ in range(count)]
        location = urls if count > 1 else urls[0]
        backend = f"django_redis_lock.backends.{backend}"
        return {"LOCKS": {"default": {"BACKEND": backend, "LOCATION": location}}}

    return {
        ONE: independent("redis.RedisLockBackend"),
        "Sentinel": sentinel.locks(),
        "Sentinel, REPLICAS 1": sentinel.locks(OPTIONS={"REPLICAS": 1}),
        "Cluster": cluster.locks(),
        "quorum of three": independent("redlock.RedlockLockBackend", 3),
        "quorum of five": independent("redlock.RedlockLockBackend", 5),
        "SETNX and GETSET": independent("getset.GetSetLockBackend"),
    }


def use(contender: Contender, settings: dict[str, Any]) -> None:
    """Use the servers of a layout in place of the usual one."""
    from django.test import override_settings

    override_settings(**settings).enable()
    backend = contender.locks["default"]  # type: ignore[attr-defined]
    if hasattr(backend, "admit"):  # the servers of a quorum have just started
        backend.admit()
