"""Replies of the server that are lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.backends.getset import FORMATS
from django_redis_lock.exceptions import (
    LockLost,
)
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.records import audit_fields
from tests.backends.getset.conftest import Configure
from tests.backends.getset.test_crossing import Halted, request
from tests.tools.proxy import Proxy

pytestmark = pytest.mark.usefixtures("no_workers")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("command", ["GETSET", "DEL"])
def test_lost_reply_to_a_renewal_or_a_release_is_no_loss(
    name: str, proxied: Callable[..., Proxy], client: redis.Redis, form: str, command: str
) -> None:
    """A command that was carried out counts, though its reply was lost."""
    proxy = proxied(form)
    with lock(name, timeout=20) as held:
        proxy.lose_replies(1, marker=f"\r\n{command}\r\n".encode())
        held.extend(50)
        held.ensure_held()
    assert proxy.lost.acquire(timeout=1)
    assert not client.exists(f"lock:{name}")


def test_lost_reply_where_values_are_alike(
    name: str, proxied: Callable[..., Proxy], client: redis.Redis
) -> None:
    """Nobody knows who wrote the value, so nobody has the lock until it ends."""
    proxy = proxied("seconds")
    proxy.lose_replies(1, marker=b"\r\nSETNX\r\n")
    assert not lock(name, timeout=20).acquire(blocking=False)
    assert proxy.lost.acquire(timeout=1)
    assert client.exists(f"lock:{name}")
    assert not lock(name, timeout=20).acquire(blocking=False)


def test_equal_values_are_not_taken_for_ours(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """A caller that finds exactly the value that it tried to write did not write it."""
    backend = configure(FORMAT="seconds")
    mine = request(name)
    halted = Halted(backend, calls.Acquire(mine, ""), before="SETNX")
    client.set(f"lock:{name}", halted.command[2])
    assert halted.go_on()[0] == 0
    assert backend.call(calls.Release(name, mine.token)) == 0
    assert client.exists(f"lock:{name}")


def test_lost_reply_to_a_forced_release(
    name: str, proxied: Callable[..., Proxy], client: redis.Redis
) -> None:
    """The second call finds the lock gone, and it counts as released."""
    proxy = proxied("record")
    held = lock(name)
    held.acquire()
    proxy.lose_replies(1, marker=b"\r\nDEL\r\n")
    assert locks["default"].force_release(name, by="ada").token_id == held.token_id
    assert [entry.by for entry in locks["default"].history(name)] == ["ada"]
    with pytest.raises(LockLost):
        held.ensure_held()


def test_forced_release_of_what_is_released_meanwhile(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """If nothing is left to delete, nobody lost the lock, and the audit has no entry."""
    backend = configure()
    mine = request(name)
    backend.call(calls.Acquire(mine, ""))
    shown = backend.holder(name)
    entry = audit_fields("force_released", shown, "ada", "")
    halted = Halted(backend, calls.ForceRelease(name, shown.token_id, entry, 10), before="DEL")
    backend.call(calls.Release(name, mine.token))
    assert halted.go_on() is None
    assert backend.history(name) == []
