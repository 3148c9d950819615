"""What a server refuses only for a while is asked for again; what it refuses for good is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from redis.connection import DefaultParser

from django_redis_lock import lock
from django_redis_lock.backends.errors import passes, reason, refused
from django_redis_lock.transport.redis_py import parse_error
from example_project.embedded import EmbeddedServer
from tests.tools import PATIENCE, Background, eventually

GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are sent again until a server is promoted, however late that is on a busy machine."""
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", (0.01,) * 2000)
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_FOR", PATIENCE)


@pytest.fixture
def own(own_server: EmbeddedServer, settings: Any) -> Iterator[redis.Redis]:
    settings.LOCKS = {
        "default": {"LOCATION": own_server.url()},
        "getset": {"BACKEND": GETSET, "LOCATION": own_server.url(), "KEY_PREFIX": "getset"},
    }
    with redis.Redis.from_url(own_server.url()) as client:
        yield client


@contextmanager
def failover(*clients: redis.Redis) -> Iterator[None]:
    """Demote the servers, and promote them again once each has refused to write."""

    def refusals(client: redis.Redis) -> int:
        stats = client.info("errorstats")  # Redis 6.2 wraps the errors of a script
        kinds = ("errorstat_READONLY", "errorstat_ERR")
        return sum(stats.get(kind, {"count": 0})["count"] for kind in kinds)

    before = [refusals(client) for client in clients]
    for client in clients:
        client.replicaof("127.0.0.1", 1)

    def promote(client: redis.Redis, count: int) -> None:
        eventually(lambda: refusals(client) > count, "a write was refused")
        client.replicaof("NO", "ONE")

    promotions = [
        Background(partial(promote, client, count))
        for client, count in zip(clients, before, strict=True)
    ]
    yield
    for promotion in promotions:
        promotion.outcome()


@pytest.mark.parametrize("using", ["default", "getset"])
def test_a_demoted_master_that_is_promoted_again_is_asked_again(
    name: str, own: redis.Redis, using: str
) -> None:
    """Whoever takes, waits, extends or releases is served as soon as the server can be written."""

    def try_() -> None:
        assert lock(f"{name}-try", using=using).acquire(blocking=False)

    def take() -> None:
        assert lock(f"{name}-take", using=using, blocking_timeout=5).acquire()

    async def atake() -> None:
        held = lock(f"{name}-atake", 20, using=using, blocking_timeout=5)
        assert await held.aacquire()
        with failover(own):
            await held.arelease()

    held = lock(f"{name}-held", 20, using=using)
    held.acquire()
    steps: list[Callable[[], object]] = [
        *(try_, take, lambda: asyncio.run(atake())),
        *(lambda: held.extend(5), held.ensure_held, held.release),
    ]
    for step in steps:
        if step == held.ensure_held:
            step()  # a replica can be read
            continue
        with failover(own):
            step()
    assert not held.locked()


def answer(line: str) -> Exception:
    return parse_error(SimpleNamespace(_parser=DefaultParser(65536)), line)


@pytest.mark.parametrize(
    ("line", "is_refused", "is_passing"),
    [
        # From Valkey 9.1 and Redis 7.2; inside of a script, Redis 6.2.
        ("READONLY You can't write against a read only replica.", True, True),
        ("READONLY You can't write against a read only replica. script: a, on @s:1.", True, True),
        ("ERR Error running script: @s:1: -READONLY You can't write against a rea", True, True),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is 'no'.", True, True),
        ("CLUSTERDOWN Hash slot not served", True, True),
        ("TRYAGAIN Multiple keys request during rehashing of slot", True, True),
        ("MOVED 3999 127.0.0.1:6381", True, True),
        ("ASK 3999 127.0.0.1:6381", True, True),
        ("BUSY Server is busy running a script. You can only call SCRIPT KILL or", True, True),
        ("LOADING Valkey is loading the dataset in memory", False, True),  # is a ConnectionError
        # A part may have been done.
        ("UNBLOCKED force unblock from blocking operation, instance state changed", False, True),
        ("ERR WAIT cannot be used with replica instances.", False, True),
        ("ERR Script attempted to access a non local key in a cluster node", False, True),
        # These stay until somebody does something.
        ("OOM command not allowed when used memory > 'maxmemory'.", True, False),
        ("NOPERM User app has no permissions to run the 'evalsha' command", True, False),
        ("MISCONF Valkey is configured to save RDB snapshots, but it's unable to", True, False),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", True, False),
        ("ERR unknown command 'EVALSHA', with args beginning with: ", True, False),
    ],
    ids=lambda value: value.partition(" ")[0] if isinstance(value, str) else "",
)
def test_what_redis_py_makes_of_an_answer_is_known(
    line: str, is_refused: bool, is_passing: bool
) -> None:
    """redis-py takes the word that opens an error off its text, where it has a class for it."""
    error = answer(line)
    assert (refused(error), passes(error)) == (is_refused, is_passing)


def test_a_server_that_is_too_old_is_told() -> None:
    """Redis 6.0 does not know the GET option of SET."""
    error = answer("ERR Error running script (call to f_5b0): @user_script:32: ERR syntax error")
    assert "upgrade it to Redis 6.2 or Valkey 7.2, or newer" in reason(error)
