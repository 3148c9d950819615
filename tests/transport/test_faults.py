"""Replies lost, scripts forgotten, servers gone: what a caller sees, and what is never lost."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks, semaphore
from django_redis_lock.exceptions import LockLost, LockUnavailable
from django_redis_lock.transport import packing
from example_project.embedded import EmbeddedServer
from tests.tools import PATIENCE, Background, eventually, queue, waiters
from tests.tools.proxy import Proxy

locks_and_permits = pytest.mark.parametrize(
    "make", [lock, partial(semaphore, limit=2)], ids=["lock", "permit"]
)


@locks_and_permits
def test_lost_reply_to_an_acquisition(name: str, proxy: Proxy, make: Any) -> None:
    lock("warm-up").acquire()
    proxy.lose_replies(1)
    with make(name, timeout=60) as held:
        assert proxy.lost.acquire(timeout=PATIENCE)
        assert 30 < held.remaining <= 60
        held.ensure_held()
        assert not lock(name, using="direct").acquire(blocking=False)
        assert len(list(locks["direct"].holders_of([name]))) == 1


@locks_and_permits
def test_lost_reply_to_a_release(name: str, proxy: Proxy, make: Any) -> None:
    held = make(name, timeout=10)
    held.acquire()
    proxy.lose_replies(1)
    held.release()
    assert proxy.lost.acquire(timeout=PATIENCE)
    assert not lock(name, using="direct").locked()


@locks_and_permits
def test_lost_reply_to_an_extension_adds_once(name: str, proxy: Proxy, make: Any) -> None:
    with make(name, timeout=100) as held:
        proxy.lose_replies(1)
        held.extend(100)
        assert proxy.lost.acquire(timeout=PATIENCE)
        assert 150 < held.remaining <= 200
        assert 150 < locks["direct"].holder(name).ttl <= 200


@pytest.mark.parametrize("then", ["", "downgrade", "release", "detach"])
def test_lost_replies_to_a_downgrade(name: str, proxy: Proxy, then: str) -> None:
    """It is sent again. Without any answer it may be called again, or what holds a lock may."""
    held = lock(name, timeout=60)
    held.acquire()
    proxy.lose_replies(20 if then else 1)
    with pytest.raises(LockUnavailable) if then else nullcontext():
        held.downgrade()
    proxy.lose_replies(0)
    if then == "detach":
        assert lock(name, shared=True).take_over(held.detach(5))
    elif then:
        getattr(held, then)()
    holders = list(locks["direct"].holders_of([name]))
    assert [holder.shared for holder in holders] == [True] * (then != "release")
    if then in ("", "downgrade"):
        assert held.fence == holders[0].fence
        assert 30 < held.remaining <= 60


def test_lost_reply_to_a_forced_release_is_one_entry(name: str, proxy: Proxy) -> None:
    lock("warm-up", using="direct").acquire()
    locks["direct"].force_release("warm-up")
    lock(name, using="direct").acquire()
    proxy.lose_replies(1, marker=packing.FORCE_RELEASE.sha.encode())
    assert locks["default"].force_release(name, by="ada", reason="stuck")
    assert proxy.lost.acquire(timeout=PATIENCE)
    (entry,) = locks["direct"].history(name)
    assert (entry.event, entry.by, entry.reason) == ("force_released", "ada", "stuck")


def subscriptions(client: redis.Redis) -> int:
    return int(client.info("commandstats")["cmdstat_subscribe"]["calls"])


def test_silent_connection_is_noticed(
    name: str, proxy: Proxy, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listening connection that died without a word is replaced before it costs a hand-off."""
    monkeypatch.setattr("django_redis_lock.transport.receiving.SILENCE", 0.2)
    monkeypatch.setattr("django_redis_lock.transport.receiving.ANSWER_WITHIN", 0.2)
    held = lock(name, using="direct", timeout=60)
    held.acquire()
    waiting = Background(lock(name, timeout=60).acquire)
    eventually(lambda: waiters(name, "direct") == 1)
    dead = locks["default"].registry_for("").receiver.connection
    calls = subscriptions(client)
    eventually(lambda: subscriptions(client) > calls + 2, "spells of silence, ended by an answer")
    assert locks["default"].registry_for("").receiver.connection is dead
    proxy.silence(listening_only=True)
    eventually(lambda: locks["default"].registry_for("").receiver.connection not in (None, dead))
    eventually(lambda: waiters(name, "direct") == 1)
    held.release()
    assert waiting.outcome() is True


@pytest.mark.usefixtures("server")
def test_script_flush(name: str, client: redis.Redis) -> None:
    """After NOSCRIPT every operation goes on working, waiting included."""
    held = lock(name, timeout=10)
    for operation in (
        held.acquire,
        held.ensure_held,
        lambda: held.extend(5),
        lambda: list(locks["default"].holders()),
        held.release,
        held.acquire,
    ):
        client.script_flush()
        operation()
    (waiting,) = queue(lock(name))
    client.script_flush()
    held.release()
    assert waiting.outcome() is True
    client.script_flush()
    assert locks["default"].force_release(name)

    async def main() -> None:
        client.script_flush()
        async with lock(name):
            client.script_flush()

    asyncio.run(main())


@pytest.mark.parametrize("persist", [True, False])
def test_waiters_survive_a_restart_of_the_server(name: str, settings: Any, persist: bool) -> None:
    """Waiters come back to the queue after a restart, whether or not the lock survived it."""
    with EmbeddedServer(persist=persist) as server:
        settings.LOCKS = {"default": {"LOCATION": server.url()}}
        held = lock(name, timeout=20)
        held.acquire()
        fence = held.fence
        order: list[int] = []

        def wait() -> None:
            with lock(name, timeout=20) as mine:
                order.append(mine.fence)

        queue = [Background(wait) for _ in range(5)]
        eventually(lambda: waiters(name) == 5)
        server.kill()
        server.restart()
        if persist:
            held.ensure_held()
            held.release()
        for waiting in queue:
            waiting.outcome()
        assert order == sorted(order)
        assert order[0] > fence
        if not persist:
            with pytest.raises(LockLost):
                held.ensure_held()
        locks.reset()


def test_unreachable_server(name: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is LockUnavailable, never False: for every operation, sync and async."""
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", ())
    settings.LOCKS = {"default": {"LOCATION": "redis://:secret@127.0.0.1:1/0"}}
    with pytest.raises(LockUnavailable) as caught:
        lock(name).acquire(blocking=False)
    assert caught.value.name == name
    assert "secret" not in str(caught.value)
    for operation in (
        lock(name).acquire,
        lock(name).locked,
        lambda: list(locks["default"].holders()),
        lambda: locks["default"].holder(name),
        lambda: locks["default"].force_release(name),
        lambda: asyncio.run(lock(name).aacquire(blocking=False)),
        lambda: asyncio.run(lock(name).aacquire()),
    ):
        with pytest.raises(LockUnavailable):
            operation()


@pytest.mark.parametrize("wait", ["queue", "blpop"])
def test_waiter_tolerates_a_socket_timeout_shorter_than_its_wait(
    name: str, settings: Any, server: EmbeddedServer, wait: str
) -> None:
    """A wait is not cut short by the client's socket timeout, nor does it reconnect."""
    url = server.url() + "?socket_timeout=0.1"
    settings.LOCKS = {"default": {"LOCATION": url, "OPTIONS": {"WAIT": wait}}}
    held = lock(name, timeout=20)
    held.acquire()
    (waiting,) = queue(lock(name))
    listening = locks["default"].registry_for("").receiver.connection
    assert Background(lambda: lock(name).acquire(blocking_timeout=0.5)).outcome() is False
    assert locks["default"].registry_for("").receiver.connection is listening
    held.release()
    assert waiting.outcome() is True
