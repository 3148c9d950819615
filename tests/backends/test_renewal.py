"""Leases are renewed in the background, and losses reported."""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any

import pytest
import redis

from django_redis_lock import Lock, lock, locks, signals
from django_redis_lock.backends.renewal import renewer
from django_redis_lock.exceptions import LockLost, LockNotOwned
from example_project.embedded import EmbeddedServer
from tests.tools import Background, counted, eventually, renewing, told

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture
def lost() -> Any:
    with told(signals.lock_lost) as calls:
        yield calls


def own_locks(settings: Any, server: EmbeddedServer, **params: Any) -> None:
    """Configure the default alias with a server for this test."""
    settings.LOCKS = {"default": {"LOCATION": server.url(), **params}}


def renewers(using: str = "default") -> int:
    """Return how many threads renew the leases of a backend."""
    targets = [getattr(item, "_target", None) for item in threading.enumerate()]
    servers = renewing(using)
    return sum(getattr(target, "__self__", None) in servers for target in targets)


def test_locks_are_renewed_in_one_round_trip(name: str, client: redis.Redis) -> None:
    held = [lock(f"{name}:{number}", timeout=1.5, auto_renew=True) for number in range(50)]
    for item in held:
        item.acquire()
    first = [item._lease.deadline for item in held]
    with counted(client) as counts:
        eventually(
            lambda: all(
                item._lease.deadline > before for item, before in zip(held, first, strict=True)
            )
        )
    assert counts["pexpire"] == 50
    assert counts["evalsha"] <= 3
    eventually(lambda: renewers() == 1, "one thread for all of them")


def test_renewal_stops_with_the_release(name: str, client: redis.Redis) -> None:
    """The renewal stops before the release is sent."""
    held = lock(name, timeout=1, auto_renew=True)
    held.acquire()
    lease = held._lease
    assert lease.token in renewer.entries
    held.release()
    assert lease.token not in renewer.entries
    assert not client.exists(f"lock:{name}")


@pytest.mark.parametrize("how", ["broken", "deleted", "taken"])
def test_holder_learns_of_a_loss(
    name: str, how: str, client: redis.Redis, lost: list[dict[str, Any]]
) -> None:
    """If the key is gone or replaced the holder is told, and the key is not written again."""
    held = lock(name, timeout=1, auto_renew=True)
    held.acquire()
    if how == "broken":
        locks["default"].force_release(name)
    else:
        client.delete(f"lock:{name}")
    if how == "taken":
        client.set(f"lock:{name}", "another", px=20_000)
    eventually(lambda: held.lost)
    eventually(lambda: lost)
    assert lost[0]["name"] == name
    assert lost[0]["lock"] is held
    assert client.get(f"lock:{name}") == ("another" if how == "taken" else None)
    with pytest.raises(LockLost):
        held.ensure_held()
    with pytest.raises(LockLost):
        held.extend(5)
    with pytest.raises(LockLost):
        held.release()
    assert len(lost) == 1
    with pytest.raises(LockNotOwned):
        held.release()


def test_renewal_survives_an_outage_shorter_than_the_lease(
    name: str, settings: Any, own_server: EmbeddedServer
) -> None:
    """A failed renewal is retried until the server is back; nothing is lost."""
    own_locks(settings, own_server, TIMEOUT=6)
    with lock(name) as held:
        own_server.pause()
        try:
            eventually(lambda: held.remaining < 3.5)
        finally:
            own_server.resume()
        before = held._lease.deadline
        eventually(lambda: held._lease.deadline > before)
        held.ensure_held()


def test_renewal_comes_back_after_a_reconnect(name: str, client: redis.Redis) -> None:
    """Renewal continues over a new connection when its own was closed."""
    with lock(name, timeout=1.5, auto_renew=True) as held:
        for _ in range(3):
            before = held._lease.deadline
            client.client_kill_filter(_type="normal", skipme=True)
            eventually(lambda before=before: held._lease.deadline > before)
        held.ensure_held()


def test_outage_longer_than_the_lease_is_a_loss(
    name: str, settings: Any, own_server: EmbeddedServer, lost: list[dict[str, Any]]
) -> None:
    """If the server stays down the holder knows by its own clock that the lease has expired."""
    own_locks(settings, own_server, TIMEOUT=0.5)
    held = lock(name)
    held.acquire()
    own_server.kill()
    eventually(lambda: held.lost)
    assert held.remaining == 0.0
    eventually(lambda: lost)
    assert lost[0]["lock"] is held


def test_dropped_handle_is_not_renewed(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A handle that is dropped without a release logs a warning, and its lease expires."""
    held = lock(name, timeout=1, auto_renew=True)
    held.acquire()
    with caplog.at_level(logging.WARNING, "django_redis_lock"):
        del held
        gc.collect()
        with lock(name, blocking_timeout=10):
            pass
        eventually(lambda: "dropped" in caplog.text)
    assert name in caplog.text


def test_longer_extension_is_not_cut_by_renewal(name: str) -> None:
    """A renewal never shortens the lease that ``extend`` has set."""
    with lock(name, timeout=1, auto_renew=True) as held:
        held.extend(20, replace_ttl=True)
        other = lock(name + "!", timeout=1, auto_renew=True)
        with other:
            first = other._lease.deadline
            eventually(lambda: other._lease.deadline > first + 1.2)
        held.ensure_held()
        assert held.remaining > 15
        assert locks["default"].holder(name).ttl > 15


GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"


@pytest.fixture(params=["default", "locmem", "getset"])
def limited(request: Any, name: str, settings: Any) -> Any:
    """Return what makes a handle whose renewal is limited."""
    url = settings.LOCKS["url"]["LOCATION"]
    settings.LOCKS = {**settings.LOCKS, "getset": {"BACKEND": GETSET, "LOCATION": url}}
    return lambda **options: Lock(lambda: locks[request.param], name, **options)


def test_renewal_ends_at_max_hold(
    limited: Any, lost: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """Then the lock is lost, its holder is told, and a waiter gets it."""
    held = limited(timeout=0.3, auto_renew=True, max_hold=0.6)
    held.acquire()
    first = held._lease.deadline
    waiting = Background(lambda: limited(timeout=30).acquire(blocking_timeout=10))
    eventually(lambda: lost)
    assert held._lease.deadline > first + 0.1  # it had been renewed
    assert held._lease.deadline < first + 0.3 + 0.25
    assert held.lost
    assert lost[0]["lock"] is held
    assert "as long as its max_hold allows" in caplog.text
    with pytest.raises(LockLost):
        held.ensure_held()
    with pytest.raises(LockLost):
        held.release()
    assert waiting.outcome()
    assert len(lost) == 1


def test_a_lease_is_no_longer_than_max_hold(limited: Any) -> None:
    """This holds for the first lease too, so that a dead process keeps the lock no longer."""
    held = limited(max_hold=5)
    held.acquire()
    assert 0 < held.remaining <= 5
    assert held.backend.holder(held.name).ttl <= 5
    held.release()
