"""Heartbeats on a real server: their cost, and what is done about what is lost or forged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
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
from example_project.embedded import EmbeddedServer
from tests.tools import Background, connections, eventually, waiters

pytestmark = pytest.mark.usefixtures("server")
GO = threading.Event()
"""Until it is set, who gets a lock keeps it."""


@pytest.fixture(autouse=True)
def _go() -> Iterator[None]:
    GO.clear()
    yield
    GO.set()


def line_up(name: str, number: int, wait: str = "queue") -> list[Background]:
    """Let so many wait behind those that do already; each returns the fence that it gets."""

    def take() -> int:
        with lock(name, timeout=60, wait=wait) as held:
            assert GO.wait(60)
            return int(held.fence)

    line = []
    for _ in range(number):
        ahead = waiters(name)
        line.append(Background(take))
        eventually(lambda ahead=ahead: waiters(name) == ahead + 1)
    return line


def drain(line: list[Background], after: int) -> list[int]:
    """Let all have their turns; check that these are in order, and return the fences."""
    GO.set()
    fences = [each.outcome() for each in line]
    assert [after, *fences] == sorted({after, *fences})
    return fences


def held_lock(name: str) -> tuple[Lock, int]:
    held = lock(name, timeout=60)
    held.acquire()
    return held, int(held.fence)


def heart_of(wait: str) -> Heart:
    heart = locks["default"].registry_for(wait).heart
    assert heart is not None
    return heart


@pytest.mark.parametrize(
    ("wait", "names", "each"), [("queue", 1, 30), ("blpop", 30, 1), ("poll", 1, 30)]
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
    waiting = [waiter for one in held for waiter in line_up(one.name, each, wait)]
    assert len(connections(client) - before) < 10  # and those of threads that ask at once
    monkeypatch.setattr(Heart, "_beat", measure)
    eventually(lambda: len(costs) >= 2)
    with heart_of(wait)._beating:
        monkeypatch.undo()
    assert set(costs) == {1}
    GO.set()
    for one in held:
        one.release()
    for background in waiting:
        background.outcome()


@pytest.mark.parametrize("lost", ["*", "waiters", "tokens", "seen"])
def test_a_lost_queue_is_restored(name: str, lost: str, client: redis.Redis) -> None:
    """By each process at its next heartbeat. Then who comes later is served later."""
    held, fence = held_lock(name)
    line = line_up(name, 4)
    before = len(line) - (lost == "*")  # the first that comes back is given the lock
    assert client.delete(*client.keys("*" if lost == "*" else f"lock-{lost}*")) > 0

    def restored() -> bool:
        queues = [client.zcard(key) for key in client.keys("lock-waiters:*")]
        tokens = [client.hlen(key) for key in client.keys("lock-tokens:*")]
        return queues == tokens == [before] and client.zcard("lock-seen") == 1

    eventually(restored)
    line += line_up(name, 1)
    if lost != "*":
        held.release()
    drain(line, fence)


@pytest.mark.parametrize("wait", ["queue", "poll"])
def test_forged_grants(
    name: str, wait: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads the queue learns digests, and no tokens: so nobody takes a lock by a message."""
    taken_in: list[bytes] = []
    take_in = WaiterRegistry.take_in

    def record(registry: WaiterRegistry, message: bytes) -> str | None:
        token = take_in(registry, message)
        taken_in.append(message)
        return token

    monkeypatch.setattr(WaiterRegistry, "take_in", record)
    held, fence = held_lock(name)
    line = line_up(name, 1, wait)
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
    drain(line, fence)


def test_an_outage_that_lasts(name: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters raise in the end, though they have given no limit."""
    monkeypatch.setattr(heartbeats, "OUTAGE_LIMIT", 0.3)
    with EmbeddedServer(persist=True) as server:
        settings.LOCKS = {"default": {"LOCATION": server.url()}}
        held_lock(name)
        line = line_up(name, 3)
        server.kill()
        for one in line:
            with pytest.raises(LockUnavailable):
                one.outcome()
        locks.reset()


@pytest.mark.parametrize("wait", ["queue", "blpop", "poll"])
def test_where_no_thread_can_be_started(
    name: str, wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiters send the heartbeats themselves, so they learn of the end of a lease."""

    def refuse(function: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("django_redis_lock.support.threads.start_thread", refuse)
    held, fence = held_lock(name)
    line = line_up(name, 3, wait)
    assert not heart_of(wait).runs
    held.extend(0.3, replace_ttl=True)
    drain(line, fence)
