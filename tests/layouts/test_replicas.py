"""OPTIONS["REPLICAS"]: a lock counts once so many replicas know of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

from django_redis_lock import Lock, lock, locks, semaphore
from django_redis_lock.exceptions import LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.contracts.exits import state
from tests.layouts.servers import BACKEND, client
from tests.tools import Background, eventually, waiters


class Pair:
    """A master with one replica, which can be paused."""

    def __init__(self, master: EmbeddedServer, replica: EmbeddedServer) -> None:
        self.master = master
        self.replica = replica

    def in_step(self) -> bool:
        with client(self.master) as one:
            one.set("written", 1)
            return bool(one.execute_command("WAIT", 1, 100) == 1)


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    """One pair for the tests of this module."""
    with EmbeddedServer() as master, EmbeddedServer("--repl-timeout", "600") as replica:
        with client(master) as one:
            one.config_set("repl-timeout", 600)
            one.config_set("repl-diskless-sync-delay", 0)
        with client(replica) as one:
            one.execute_command("REPLICAOF", "127.0.0.1", master.port)
        yield Pair(master, replica)


@pytest.fixture
def pair(servers: Pair) -> Iterator[Pair]:
    """A master and its replica, empty, both awake; locks count once the replica knows of them."""
    eventually(servers.in_step)
    with client(servers.master) as one:
        one.flushall()
    options = {"REPLICAS": 1, "REPLICA_TIMEOUT": 0.3}
    entry = {"BACKEND": BACKEND, "LOCATION": servers.master.url()}
    with override_settings(
        LOCKS={
            "default": {**entry, "OPTIONS": {**options, "REPLICA_TIMEOUT": 4}},
            "hasty": {**entry, "OPTIONS": options},
            "plain": entry,
        }
    ):
        yield servers
        servers.replica.resume()
        locks.reset()


def replica_knows(pair: Pair, name: str) -> bytes:
    with client(pair.replica) as one:
        return str(one.get(f"lock:{name}") or "").encode()


def take(way: str, held: Lock, **kwargs: Any) -> bool:
    if way == "async":
        return asyncio.run(held.aacquire(**kwargs))
    return held.acquire(**kwargs)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_replica_knows_of_a_lock_once_it_is_acquired(pair: Pair, name: str, way: str) -> None:
    """Whenever ``acquire`` returns, a failover would keep the lock."""
    for number in range(30):
        held = lock(f"{name}:{number}", timeout=60)
        assert take(way, held)
        assert replica_knows(pair, held.name)


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("lease", [60, None])
def test_unmet_is_undone_and_unavailable(
    pair: Pair, name: str, way: str, lease: float | None
) -> None:
    """Without the replica nothing is acquired: the caller is told, and the lock is free."""
    pair.replica.pause()
    held = lock(name, timeout=lease, using="hasty")
    with pytest.raises(LockUnavailable, match="only 0 of 1 replicas") as caught:
        take(way, held, blocking=False)
    assert caught.value.name == name
    assert held.remaining == 0
    assert locks["plain"].holder(name) is None
    pair.replica.resume()
    eventually(pair.in_step)
    assert take(way, held, blocking=False)


@pytest.mark.parametrize(("way", "shared"), [("sync", False), ("sync", True), ("async", False)])
@pytest.mark.parametrize("wait", [{"blocking": False}, {"blocking_timeout": 0.1}], ids=str)
def test_refusal_counts_once_it_is_replicated(
    pair: Pair, name: str, way: str, shared: bool, wait: dict[str, Any]
) -> None:
    """Else it may be due to an attempt that will be taken back, and the caller can't know."""

    def handle(using: str) -> Lock:
        return semaphore(name, 1, 60, using=using) if shared else lock(name, 60, using=using)

    with handle("hasty"):
        assert take(way, handle("hasty"), **wait) is False
    eventually(pair.in_step)
    pair.replica.pause()
    unmet = Background(handle("default").acquire)
    eventually(lambda: state(name, "plain") != "free")
    with pytest.raises(LockUnavailable, match="only 0 of 1 replicas"):
        take(way, handle("hasty"), **wait)
    pair.replica.resume()
    unmet.outcome()


@pytest.mark.parametrize("way", ["sync", "async"])
def test_handed_off_lock_counts_once_it_is_replicated(
    pair: Pair, name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grant does not count before the replica has it; if it never does, it is passed on."""
    monkeypatch.setattr("django_redis_lock.protocol.waiting.OUTAGE_LIMIT", 1.0)
    held = lock(name, timeout=60, using="plain")
    held.acquire()
    waiting = Background(lambda: take(way, lock(name, timeout=60, using="hasty")))
    eventually(lambda: waiters(name) == 1)
    eventually(pair.in_step)  # so that the replica's state is that of the hand-off
    pair.replica.pause()
    held.release()
    with pytest.raises(LockUnavailable, match="only 0 of 1 replicas"):
        waiting.outcome()
    assert locks["plain"].holder(name) is None


@pytest.mark.parametrize(
    ("how", "shared"),
    [("detach", False), ("detach", True), ("downgrade", False), ("rob", False), ("rob", True)],
)
def test_unmet_exit_or_takeover_leaves_the_hold(
    pair: Pair, name: str, how: str, shared: bool
) -> None:
    """Without the replica it goes on as before, under its token, and can be released."""
    held, thief = (lock(name, 60, using="hasty", shared=shared) for _ in range(2))
    assert held.acquire(blocking=False)
    before = held.fence, held.token_id, state(name, "plain")
    pair.replica.pause()
    ways = {"detach": lambda: held.detach(20), "rob": lambda: thief.take_over(held.token_id)}
    with pytest.raises(LockUnavailable, match="only 0 of 1 replicas"):
        ways.get(how, held.downgrade)()
    held.ensure_held()
    assert (held.fence, held.token_id, state(name, "plain")) == before
    held.release()
    assert state(name, "plain") == "free"
