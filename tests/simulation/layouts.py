"""The backends that the simulation puts together, and what each of them promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django_redis_lock.backends import locmem
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.backends.redlock import RedlockLockBackend
from django_redis_lock.protocol.calls import Call
from tests.simulation import faults, promises, replicas, views
from tests.simulation.actors import MODES, Actor, Habits
from tests.simulation.clients import Client
from tests.simulation.network import Site
from tests.simulation.promises import Promise
from tests.simulation.slots import Node, Slots
from tests.simulation.world import Fault, Process, World

REJOIN_DELAY = 5.0
"""Seconds for which a server of a quorum does not vote after a restart: the longest lease."""

CLOCKS = (0.0, 50.0, -3.0, 0.5, -10.0)
"""Seconds by which the clocks of a quorum's servers differ."""
INTERVAL = 0.5
"""Seconds between two looks at a lock where nothing is handed off. That makes schedules shorter."""
POLLED = promises.FREE + 0.3
"""The same as ``FREE`` where waiters poll, a quarter of a second and a fifth of it apart."""


Prepare = Callable[[World], Sequence[Promise]]
"""Makes the servers, says how processes reach them, and returns the promises."""


@dataclass(frozen=True)
class Layout:
    name: str
    prepare: Prepare
    faults: Sequence[Fault]
    habits: Habits = field(default_factory=Habits)
    names: tuple[str, ...] = ("x",)
    processes: int = 2
    """How many there are at least."""
    parks: bool = False
    """Whether messages are parked."""

    def furnish(self, world: World) -> None:
        world.names = self.names
        world.actor = lambda world, process: Actor(world, process, self.habits)
        world.promise(*self.prepare(world))
        assert world.view is not None
        world.view.tokens = world.ledger.tokens
        if self.parks:
            from tests.simulation.parking import NoMessageLost, Worker  # Celery takes a second

            world.actor = lambda world, process: Worker(world, process, self.habits)
            assert isinstance(world.view, views.ServerView)
            world.promise(NoMessageLost(world, world.view, self.habits))
        world.faults = self.faults


PROCESS_FAULTS: tuple[Fault, ...] = (
    faults.meddle,
    faults.pause,
    faults.kill,
    faults.interrupt,
    faults.break_lock,
)
SERVER_FAULTS: tuple[Fault, ...] = (
    faults.cut_off,
    faults.flush_scripts,
    faults.restart,
    faults.lose_data,
    faults.fail_over,
    faults.evict,
    faults.step_clock,
)
LISTENER_FAULTS: tuple[Fault, ...] = (faults.cut_connections, faults.deafen, faults.delay_messages)


def _server(
    promise: Callable[[World, views.ServerView], Sequence[Promise]],
    *,
    loops: bool = False,
    followers: int = 0,
    **options: Any,
) -> Prepare:
    """Return what makes one server, with so many replicas, some or all of which are waited for."""

    def prepare(world: World) -> Sequence[Promise]:
        needed = 1 + world.pick(followers) if followers else 0
        site = world.site(replicas.Master, followers, needed) if followers else world.site(Site)
        asked = {"REPLICAS": needed, "REPLICA_TIMEOUT": 0.5} if followers else {}
        world.has_loops = loops

        def backend(process: Process) -> RedisLockBackend:
            made = RedisLockBackend(
                "default", {"LOCATION": "simulated", "OPTIONS": options | asked}
            )
            made.servers.__dict__.update(pool=site, client=Client(site))
            return made

        world.backend = backend
        world.view = view = views.ServerView(site)
        return promise(world, view)

    return prepare


def _queue(
    free: float = promises.FREE, delay: float = promises.DELAY, *, tells_the_dead: bool = False
) -> Callable[[World, views.ServerView], Sequence[Promise]]:
    """Return what makes the promises of a queue."""

    def promise(world: World, view: views.ServerView) -> Sequence[Promise]:
        return (
            promises.OneHolder(world, view),
            promises.RisingFences(world),
            promises.BackedBelief(world, view),
            promises.FirstComeFirstServed(world, view, tells_the_dead=tells_the_dead),
            promises.NoWaitInVain(world, view, free=free, delay=delay),
            promises.PromptAnswers(world),
            promises.BoundedKeys(world, longest=33.0),
            promises.Indexed(world, view),
            promises.NothingLeft(world, view),
        )

    return promise


def _cluster(world: World) -> Sequence[Promise]:
    slots = Slots()
    nodes = [world.site(Node, slots) for _ in range(2)]
    pools: dict[Any, Any] = {node.address: node for node in nodes}

    def backend(process: Process) -> RedisLockBackend:
        made = RedisLockBackend("default", {"LOCATION": ["redis://a.simulated:6379"]})
        topology = made.servers.topology  # type: ignore[union-attr]
        topology._pools = topology.arguments = pools
        return made

    world.backend = backend
    world.view = view = views.ClusterView(slots)
    world.slot_of = view.slot_of
    world.has_slots = True
    return _queue(tells_the_dead=True)(world, view)


def _quorum(size: int, *, loops: bool = False) -> Prepare:
    def prepare(world: World) -> Sequence[Promise]:
        sites = [world.site(Site) for _ in range(size)]
        for site, offset in zip(sites, CLOCKS, strict=False):
            site.offset = offset
            # They were admitted long ago.
            site.server.data[b"lock-server"] = f"{site.server.run_id} 1".encode()
        world.has_loops = loops
        world.may_fail = size // 2
        world.rejoins_after = REJOIN_DELAY
        params = {
            "LOCATION": [site.name for site in sites],
            "OPTIONS": {"REJOIN_DELAY": REJOIN_DELAY, "POLL_INTERVAL": INTERVAL},
        }

        def backend(process: Process) -> RedlockLockBackend:
            made = RedlockLockBackend("default", params)
            for server, site in zip(made.servers, sites, strict=True):
                server.__dict__["client"] = Client(site)
            return made

        world.backend = backend
        world.view = view = views.QuorumView(sites)
        return (
            promises.OneHolder(world),
            promises.RisingFences(world),
            promises.NoWaitInVain(world, view, free=1.0),
            promises.PromptAnswers(world),
            promises.BoundedKeys(world, longest=REJOIN_DELAY + 0.1),
            promises.NothingLeft(world, view),
        )

    return prepare


def _memory(world: World) -> Sequence[Promise]:
    class Noted(LocMemLockBackend):
        def call(self, call: Call) -> Any:
            world.note()
            return super().call(call)

    locmem._stores.clear()
    backend = Noted("default", {})
    world.backend = lambda process: backend
    world.view = view = views.MemoryView(backend)
    return (
        promises.OneHolder(world, view),
        promises.RisingFences(world),
        promises.BackedBelief(world, view),
        promises.FirstComeFirstServed(world, view),
        promises.NoWaitInVain(world, view),
        promises.PromptAnswers(world),
        promises.NothingLeft(world, view),
    )


_SINGLE = (*PROCESS_FAULTS, *SERVER_FAULTS, *LISTENER_FAULTS)
_QUORUM = (*PROCESS_FAULTS, *SERVER_FAULTS, faults.cut_connections, faults.forget_the_last_fence)
_OTHERS = (each for each in _SINGLE if each is not faults.fail_over)
_TOLD = _queue(tells_the_dead=True)
_POLLED = (*PROCESS_FAULTS, *SERVER_FAULTS)
# Each process that waits in several ways has a connection for grants and another for lists.
_MIXED = _queue(POLLED, 2 * promises.DELAY)
_TWO = {"habits": Habits(many=True), "names": ("x", "y")}
_VOTED = Habits(leases=(5.0, 1.0, 2.0))
LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("queue", _server(_TOLD, WAIT="queue"), _SINGLE, **_TWO),
        Layout(
            "asyncio",
            _server(_TOLD, loops=True, WAIT="queue"),
            (*_SINGLE, *[faults.interrupt] * 3),
            **_TWO,
        ),
        Layout("blpop", _server(_queue(), WAIT="blpop"), _SINGLE),
        Layout("poll", _server(_queue(POLLED), WAIT="poll"), _POLLED),
        Layout(
            "mixed",
            _server(_MIXED, loops=True, WAIT="queue"),
            _SINGLE,
            Habits(schemes=("queue", "blpop", "poll")),
        ),
        Layout("cluster", _cluster, (*_SINGLE, faults.move_slot), names=("x", "y")),
        Layout(
            "replicas",
            _server(_TOLD, followers=2, WAIT="queue"),
            (*_OTHERS, *[replicas.fail_over] * 4),
            **_TWO,
        ),
        Layout("redlock-3", _quorum(3), _QUORUM, _VOTED),
        Layout("redlock-5", _quorum(5, loops=True), _QUORUM, _VOTED),
        Layout("locmem", _memory, (faults.interrupt, faults.break_lock), processes=1),
    )
}


def _shared(layout: Layout, name: str) -> Layout:
    """Return a layout in which locks are shared, and operators set limits."""
    known, more = layout.faults[: len(_SINGLE)], layout.faults[len(_SINGLE) :]
    return replace(
        layout,
        name=name,
        faults=(*known, *[faults.change_limit] * 3, *more),
        habits=replace(layout.habits, many=len(layout.habits.schemes) == 1, modes=MODES),
        processes=1 if layout.processes == 1 else 3,
    )


LAYOUTS["shared"] = _shared(LAYOUTS["queue"], "shared")
for _plain in ("blpop", "poll", "mixed", "cluster", "locmem"):
    LAYOUTS[f"shared-{_plain}"] = _shared(LAYOUTS[_plain], f"shared-{_plain}")
for _plain in ("queue", "blpop", "poll", "cluster", "shared", "shared-cluster"):
    _name = f"parked-{_plain}"
    LAYOUTS[_name] = replace(LAYOUTS[_plain], name=_name, parks=True)
