"""Heartbeats on a real server: their cost, and what is done about what is lost, cut or forged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis

from django_redis_lock import Lock, lock, locks
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import heartbeats
from django_redis_lock.protocol.calls import Steps
from django_redis_lock.protocol.heartbeats import Heart
from django_redis_lock.protocol.lease import token_id
from django_redis_lock.protocol.waiting import A_DAY, WaiterRegistry
from django_redis_lock.support.arguments import WAITING_SCHEMES
from example_project.embedded import EmbeddedServer
from tests.tools import Background, connections, eventually, queued, waiters

pytestmark = pytest.mark.usefixtures("server")
each_scheme = pytest.mark.parametrize("wait", WAITING_SCHEMES)
PAUSE, RESTART = ("pause", "resume"), ("kill", "restart")
GO = threading.Event()
"""Until it is set, who gets a lock keeps it."""


@pytest.fixture(autouse=True)
def _go() -> Iterator[None]:
    GO.clear()
    yield
    GO.set()


def take(name: str, wait: str = "queue", *, tasks: bool = False) -> int:
    """Wait for the lock, and return the fence with which it was held."""
    handle = lock(name, timeout=60, wait=wait)
    assert asyncio.run(handle.aacquire()) if tasks else handle.acquire()
    assert GO.wait(60)
    fence = int(handle.fence or 0)
    handle.release()
    return fence


def line_up(name: str, number: int, *args: Any, **kwargs: Any) -> list[Background]:
    """Let so many wait, one behind the other and behind those that do already."""
    line = []
    for _ in range(number):
        ahead = waiters(name)
        line.append(Background(partial(take, name, *args, **kwargs)))
        eventually(lambda ahead=ahead: waiters(name) == ahead + 1)
    return line


def drain(line: list[Background], after: int | None = None) -> list[int]:
    """Let all have their turns; check that these are in order, and return the fences."""
    GO.set()
    fences = [each.outcome() for each in line]
    assert [after or 0, *fences] == sorted({after or 0, *fences})
    return fences


def held_lock(name: str) -> tuple[Lock, int]:
    held = lock(name, timeout=60)
    held.acquire()
    return held, int(held.fence or 0)


def heart_of(wait: str) -> Heart:
    heart = locks["default"].registry_for(wait).heart
    assert heart is not None
    return heart


def await_beats(wait: str, number: int = 2) -> None:
    """Wait until so many more heartbeats were begun, so that all but the last were answered."""
    before = heart_of(wait)._turn
    eventually(lambda: heart_of(wait)._turn >= before + number)


@pytest.fixture
def taken_in(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages that the registries of this process have taken in."""
    messages: list[bytes] = []
    take_in = WaiterRegistry.take_in

    def record(registry: WaiterRegistry, message: bytes) -> str | None:
        token = take_in(registry, message)
        messages.append(message)
        return token

    monkeypatch.setattr(WaiterRegistry, "take_in", record)
    return messages


@pytest.mark.parametrize(
    ("wait", "names", "each"),
    [("queue", 1, 40), ("blpop", 40, 1), ("poll", 1, 40)],
)
def test_a_heartbeat_is_one_call_for_all_waiters(
    name: str, names: int, each: int, wait: str, client: redis.Redis, monkeypatch: Any
) -> None:
    """All share the connection from which they receive."""
    costs: list[int] = []
    send = Heart._beat

    def measure(heart: Heart, *args: Any) -> Steps[None]:
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        yield from send(heart, *args)
        costs.append(client.info("commandstats")["cmdstat_evalsha"]["calls"] - before)

    held = [held_lock(f"{name}-{number}")[0] for number in range(names)]
    before = connections(client)
    waiting = [Background(partial(take, one.name, wait)) for one in held for _ in range(each)]
    eventually(lambda: all(waiters(one.name) == each for one in held))
    assert len(connections(client) - before) < 10  # and those of threads that ask at once
    monkeypatch.setattr(Heart, "_beat", measure)
    await_beats(wait, 3)
    with heart_of(wait)._beating:
        monkeypatch.undo()
    assert set(costs) == {1}
    GO.set()
    for one in held:
        one.release()
    for background in waiting:
        background.outcome()


@pytest.mark.parametrize("lost", ["*", "waiters", "tokens", "seen", "due"])
def test_a_lost_queue_is_restored(name: str, lost: str, client: redis.Redis) -> None:
    """By each process at its next heartbeat. Then who comes later is served later."""
    held, fence = held_lock(name)
    line = line_up(name, 3)
    with queued(name, "blpop", 60) as child:
        line += line_up(name, 3)
        if lost == "*":
            client.flushdb()
            # The first that comes back is given the lock.
            eventually(lambda: len(locks["default"].waiting(name)) == 6)
        else:
            assert client.delete(*client.keys(f"lock-{lost}*")) > 0
        newcomer = Background(partial(take, name))
        left = 7 if lost == "*" else 8

        def restored() -> bool:
            keys = client.keys("lock-waiters:*")
            numbers = [client.zcard(key) for key in keys]
            tokens = [client.hlen(key) for key in client.keys("lock-tokens:*")]
            processes = client.zcard(f"lock-queue:{name}"), client.zcard("lock-seen")
            return sum(numbers) == sum(tokens) == left and processes == (len(keys), 2)

        eventually(restored)
        child.say()
        if lost == "due":  # nobody is told that the lease ends
            client.pexpire(f"lock:{name}", 1)
        elif left == 8:
            held.release()
        fences = drain([*line, newcomer], fence)
        childs = int(child.hear().split()[1])
        assert childs < fences[-1]
        if lost != "*":  # else the child may have come back first
            assert fences[2] < childs < fences[3]


@each_scheme
@pytest.mark.parametrize("late", [False, True], ids=["at once", "later"])
def test_waiters_whose_connections_are_cut(
    name: str, wait: str, late: bool, client: redis.Redis
) -> None:
    """All are served, in order, whether or not the connection was replaced before the release."""
    held, fence = held_lock(name)
    line = line_up(name, 10, wait)
    if wait == "queue":
        assert client.client_kill_filter(_type="pubsub") == 1
    elif wait == "blpop":
        popping = [one["id"] for one in client.client_list() if one["cmd"] == "blpop"]
        assert [client.client_kill_filter(_id=each) for each in popping] == [1]
    if late:
        await_beats(wait)
    held.release()
    drain(line, fence)


@each_scheme
def test_forged_grants(name: str, wait: str, client: redis.Redis, taken_in: list[bytes]) -> None:
    """Who reads the queue learns digests, and no tokens: so nobody takes a lock by a message."""
    held, fence = held_lock(name)
    (one,) = line_up(name, 1, wait)
    registry = locks["default"].registry_for(wait)
    (waiter,) = registry.present()
    process, token = registry.waits_in(name), waiter.request.token
    now = round(fence / 1000)
    (entry,) = client.zrange(f"lock-waiters:{process}:{name}", 0, -1)
    assert token not in entry
    for whose, at in [
        ("nobody", fence + 1),
        (entry.split()[0], fence + 1),
        (token_id(token.encode()), 10**19 - 1),
        (locks["default"].holder(name).token_id, fence),
        (token, 1),  # should a token leak, what is invented with it is of no use
        (token, fence),
        (token, (now + A_DAY) * 1000),
    ]:
        message = f"grant {whose} {at} 60000 {now} {name}"
        if wait == "queue":
            assert client.publish(f"lock-grant:{process}", message) == 1
        else:
            client.rpush(f"lock-inbox:{process}", message)
        eventually(lambda message=message: message.encode() in taken_in)
        eventually(lambda: not waiter.notified)
        assert registry.present() == [waiter]
    held.ensure_held()
    held.release()
    eventually(lambda: registry.present() == [])
    assert [locks["default"].holder(name).fence] == drain([one], fence)


@pytest.mark.parametrize(
    ("wait", "outage", "long"),
    [("blpop", PAUSE, False), ("queue", RESTART, False), ("poll", RESTART, True)],
    ids=["paused", "restarted", "gone"],
)
def test_an_outage(
    name: str, wait: str, outage: tuple[str, str], long: bool, settings: Any, monkeypatch: Any
) -> None:
    """Waiters keep their positions in a short one, and raise in a long one."""
    if long:
        monkeypatch.setattr(heartbeats, "OUTAGE_LIMIT", 0.3)
    with EmbeddedServer(persist=True) as server:
        settings.LOCKS = {"default": {"LOCATION": server.url()}}
        locks.reset()
        held, fence = held_lock(name)
        line = line_up(name, 5, wait)
        before = [one.since for one in locks["default"].waiting(name)]
        getattr(server, outage[0])()
        eventually(lambda: heart_of(wait)._failing)
        for one in line if long else ():
            with pytest.raises(LockUnavailable):
                one.outcome()
        getattr(server, outage[1])()
        if not long:
            eventually(lambda: not heart_of(wait)._failing)
            assert [one.since for one in locks["default"].waiting(name)] == before
            held.release()
            drain(line, fence)
        locks.reset()


@pytest.mark.parametrize(
    ("wait", "tasks"), [("queue", False), ("blpop", True), ("poll", False)], ids=str
)
def test_where_no_thread_can_be_started(
    name: str, wait: str, tasks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiters send the heartbeats themselves, so they learn of the end of a lease."""

    def refuse(function: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("django_redis_lock.support.threads.start_thread", refuse)
    held, fence = held_lock(name)
    line = line_up(name, 3, wait, tasks=tasks)
    assert not heart_of(wait).runs
    held.extend(0.3, replace_ttl=True)
    drain(line, fence)
