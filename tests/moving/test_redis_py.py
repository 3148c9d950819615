"""From ``cache.lock`` of django-redis and redis-py's ``Lock``: both beside ours, on one server."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django_redis.client import DefaultClient
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError as OldLockError
from redis.exceptions import LockNotOwnedError
from redis.lock import Lock as OldLock

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import (
    LockError,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockUnavailable,
)
from tests.moving.rows import Rows
from tests.settings import server_url
from tests.tools import Background, eventually, waiters

rows = Rows("move-from-redis-py.md")


def old(client: redis.Redis, name: str, **options: Any) -> OldLock:
    """Return a lock of redis-py at another key than ours of the same name."""
    return OldLock(client, f"old:{name}", **options)


def test_each_row_has_a_test() -> None:
    """And no option or method of the old locks is without a row."""
    assert rows.shown == rows.documented
    options = {*inspect.signature(OldLock).parameters}
    options |= {*inspect.signature(DefaultClient.lock).parameters} - {"self"}
    options |= {*inspect.signature(OldLock.acquire).parameters} - {"self"}
    methods = [each for each in vars(OldLock) if not each.startswith(("_", "do_", "lua_", "LUA_"))]
    assert rows.lack(*options - {"redis"}, *{*methods} - {"register_scripts"}) == []


@rows.show("Lock(client, name), client.lock(name), cache.lock(key)", "lock(name)")
def test_the_server_is_that_of_the_settings(client: redis.Redis, name: str) -> None:
    """A handle needs no client, and is made in the same way in every place."""
    for before in (OldLock(client, f"1:{name}"), client.lock(f"2:{name}"), _cache().lock(name)):
        assert before.acquire()
    with lock(name):
        assert locks["default"].location.alias == "locks"
        found = set(client.keys(f"*{name}"))
    assert found == {f"1:{name}", f"2:{name}", f":1:{name}", f"lock:{name}"}


@rows.show("version=2 of cache.lock", 'part of the name: lock("import:v2")')
def test_a_version_is_part_of_the_key(server: object, name: str) -> None:
    """Locks of two versions do not exclude each other."""
    assert _cache().lock(name, version=1).acquire()
    assert _cache().lock(name, version=2).acquire()
    assert lock(f"{name}:v1").acquire()
    assert lock(f"{name}:v2").acquire()
    with pytest.raises(TypeError, match="version"):
        lock(name, version=2)  # type: ignore[call-arg]


@rows.show("client= of cache.lock", "using=, an alias of LOCKS")
def test_another_server_has_an_alias(client: redis.Redis, name: str) -> None:
    with redis.Redis.from_url(server_url(1), decode_responses=True) as other:
        assert _cache().lock(name, client=other).acquire()
        assert lock(name, using="url").acquire()
        assert {f":1:{name}", f"by-url:{name}"} <= set(other.keys())
    assert client.keys() == []


@rows.show(
    "timeout not given: never expires", "the backend's TIMEOUT, renewed while the holder lives"
)
def test_a_lock_without_a_lease(client: redis.Redis, name: str) -> None:
    """Theirs outlives its holder; ours ends soon after it."""
    assert old(client, name).acquire()
    assert client.pttl(f"old:{name}") == -1
    assert lock(name).acquire()
    assert 0 < client.pttl(f"lock:{name}") <= 30_000
    holder = locks["default"].holder(name)
    assert holder is not None
    assert holder.auto_renew


@rows.show("timeout=None: never expires", "timeout=None, the same")
def test_a_lock_that_never_expires(client: redis.Redis, name: str) -> None:
    assert old(client, name, timeout=None).acquire()
    with lock(name, timeout=None) as held:
        held.ensure_held()
        eventually(lambda: client.pttl(f"lock:{name}") == -1)
        assert client.pttl(f"old:{name}") == -1


@rows.show("timeout=10", "timeout=10, the same: a fixed lease")
def test_a_fixed_lease(client: redis.Redis, name: str) -> None:
    assert old(client, name, timeout=10).acquire()
    assert lock(name, timeout=10).acquire()
    for key in (f"old:{name}", f"lock:{name}"):
        assert 9_000 < client.pttl(key) <= 10_000
    assert not locks["default"].holder(name).auto_renew  # type: ignore[union-attr]


@rows.show("blocking, blocking_timeout", "the same")
def test_the_options_of_waiting(client: redis.Redis, name: str) -> None:
    for make in (lambda **options: old(client, name, **options), lambda **o: lock(name, **o)):
        assert make(timeout=10).acquire()
        assert make(blocking=False).acquire() is False
        assert make(blocking_timeout=0.05).acquire() is False
        assert make().acquire(blocking=False) is False
        assert make().acquire(blocking_timeout=0.05) is False


@rows.show("sleep=0.1 between two attempts", "none: a waiter is told, first come, first served")
def test_a_waiter_is_told(server: object, name: str) -> None:
    """The lock is handed off, so a late third can't come in between."""
    first, second = lock(name, timeout=10), lock(name, timeout=10)
    first.acquire()
    waiting = Background(second.acquire)
    eventually(lambda: waiters(name) == 1)
    first.release()
    assert lock(name, blocking=False).acquire() is False
    assert waiting.outcome() is True
    with pytest.raises(TypeError, match="sleep"):
        lock(name, sleep=0.1)  # type: ignore[call-arg]


@rows.show(
    "thread_local=True: another thread can't release",
    "a handle is released from any thread; make one for each use",
)
def test_a_release_from_another_thread(client: redis.Redis, name: str) -> None:
    before, held = old(client, name), lock(name)
    before.acquire()
    held.acquire()
    with pytest.raises((OldLockError, AttributeError)):  # its thread-local has no token there
        Background(before.release).outcome()
    Background(held.release).outcome()
    assert not lock(name).locked()


@rows.show("raise_on_release_error=False", "catch LockNotOwned")
def test_an_error_of_the_release_is_caught(client: redis.Redis, name: str) -> None:
    if "raise_on_release_error" in inspect.signature(OldLock).parameters:
        with old(client, name, timeout=10, raise_on_release_error=False):
            client.delete(f"old:{name}")
    held = lock(name, timeout=10)
    held.acquire()
    locks["default"].force_release(name)
    with pytest.raises(LockNotOwned):
        held.release()


@rows.show(
    "acquire(sleep, blocking, blocking_timeout, token)", "acquire(blocking, blocking_timeout)"
)
def test_the_arguments_of_acquire(name: str) -> None:
    """A token is random, and never shown."""
    for argument in ("sleep", "token"):
        with pytest.raises(TypeError, match=argument):
            lock(name).acquire(**{argument: "1"})


@rows.show("extend(additional_time, replace_ttl=False), reacquire()", "the same")
def test_a_lease_is_set_again(client: redis.Redis, name: str) -> None:
    before, held = old(client, name, timeout=10), lock(name, timeout=10)
    for each in (before, held):
        assert each.acquire()
        for act, least in (
            (lambda each=each: each.extend(10), 19_000),
            (lambda each=each: each.extend(5, replace_ttl=True), 4_000),
            (lambda each=each: each.reacquire(), 9_000),
        ):
            assert act() is True
            key = f"{'old' if each is before else 'lock'}:{name}"
            assert least < client.pttl(key) <= least + 1_000


@rows.show("the same without a lease: LockError", "with timeout=None: LockError")
def test_a_lock_without_end_can_not_be_extended(client: redis.Redis, name: str) -> None:
    before, held = old(client, name), lock(name, timeout=None)
    before.acquire()
    held.acquire()
    for act in (lambda: before.extend(5), before.reacquire):
        with pytest.raises(OldLockError):
            act()
    for act in (lambda: held.extend(5), held.reacquire):
        with pytest.raises(LockError, match="never expires"):
            act()
    held.release()


@rows.show("owned(), locked()", "the same")
def test_who_holds_it(client: redis.Redis, name: str) -> None:
    for make in (lambda: old(client, name, timeout=10), lambda: lock(name, timeout=10)):
        held, another = make(), make()
        assert (held.owned(), held.locked()) == (False, False)
        held.acquire()
        assert (held.owned(), another.owned(), another.locked()) == (True, False, True)
        held.release()


@rows.show("with: LockError when it is not acquired", "LockNotAcquired")
def test_a_with_statement_that_gets_nothing(client: redis.Redis, name: str) -> None:
    old(client, name).acquire()
    lock(name).acquire()
    with pytest.raises(OldLockError), old(client, name, blocking_timeout=0):
        pass
    with pytest.raises(LockNotAcquired), lock(name, blocking_timeout=0):
        pass


@rows.show("release(), extend(): LockNotOwnedError when it has expired", "LockLost")
def test_a_lease_that_has_passed(client: redis.Redis, name: str) -> None:
    before, held = old(client, name, timeout=0.01), lock(name, timeout=0.01)
    before.acquire()
    held.acquire()
    eventually(lambda: not client.exists(f"old:{name}", f"lock:{name}"))
    for act, error in (
        (lambda: before.extend(1), LockNotOwnedError),
        (before.release, LockNotOwnedError),
        (lambda: held.extend(1), LockLost),
        (held.release, LockLost),
    ):
        with pytest.raises(error):
            act()


@rows.show("release(): LockError when it was never acquired", "LockNotOwned")
def test_a_release_without_a_lock(client: redis.Redis, name: str) -> None:
    with pytest.raises(OldLockError):
        old(client, name).release()
    with pytest.raises(LockNotOwned):
        lock(name).release()


@rows.show("redis.exceptions.ConnectionError, TimeoutError …", "LockUnavailable")
def test_a_server_that_is_down(settings: Any, name: str) -> None:
    """It is no error of redis-py any more, which callers would have to know."""
    down = "redis://127.0.0.1:1/0"
    settings.LOCKS = {"default": {"LOCATION": down}}
    with redis.Redis.from_url(down) as client, pytest.raises(RedisConnectionError):
        client.lock(name).acquire()
    with pytest.raises(LockUnavailable):
        lock(name).acquire()


@rows.show("acquiring a held lock again waits for itself", "LockError, and the lock is kept")
def test_a_handle_is_acquired_twice(client: redis.Redis, name: str) -> None:
    before, held = old(client, name, timeout=10), lock(name, timeout=10)
    before.acquire()
    assert before.acquire(blocking_timeout=0.05) is False
    held.acquire()
    with pytest.raises(LockError):
        held.acquire()
    held.ensure_held()


@rows.show("redis.asyncio.lock.Lock", "the same handle: async with, aacquire(), arelease() …")
def test_the_asynchronous_lock(server: Any, client: redis.Redis, name: str) -> None:
    async def both() -> list[bool]:
        async with AsyncRedis.from_url(server.url()) as connection:
            async with connection.lock(f"old:{name}", timeout=10), lock(name, timeout=10) as held:
                await held.aensure_held()
                return [bool(client.exists(f"{kind}:{name}")) for kind in ("old", "lock")]

    assert asyncio.run(both()) == [True, True]
    assert not client.exists(f"old:{name}", f"lock:{name}")


def _cache() -> Any:
    return caches["locks"]


# While both run.


@pytest.mark.usefixtures("server")
def test_both_exclude_each_other_at_one_key(settings: Any, name: str) -> None:
    """Of threads that use the old lock and ours, never two are inside."""
    settings.LOCKS = {"default": {"LOCATION": "locks", "KEY_PREFIX": ":1"}}
    inside: list[object] = []
    seen: list[int] = []

    def work(make: Any) -> None:
        for _ in range(5):
            with make():
                inside.append(make)
                seen.append(len(inside))
                inside.remove(make)

    kinds = [lambda: _cache().lock(name, timeout=10, sleep=0.01), lambda: lock(name, timeout=10)]
    for thread in [Background(lambda make=make: work(make)) for make in kinds * 2]:
        thread.outcome()
    assert seen == [1] * 20


def test_our_waiter_takes_over_from_the_old_lock(server: object, settings: Any, name: str) -> None:
    """It looks every quarter of a second, as the old lock sends no message of its end."""
    settings.LOCKS = {"default": {"LOCATION": "locks", "KEY_PREFIX": ":1"}}
    before, ours = _cache().lock(name, timeout=60), lock(name, timeout=10)
    before.acquire()
    waiting = Background(ours.acquire)
    eventually(lambda: waiters(name) == 1)
    assert str(locks["default"].holder(name)).startswith("another program")
    assert list(locks["default"].holders()) == []  # it is in no index
    before.release()
    assert waiting.outcome() is True
    assert _cache().lock(name).acquire(blocking=False) is False


def test_a_prefix_stands_for_the_start_of_the_old_names(
    client: redis.Redis, settings: Any, name: str
) -> None:
    settings.LOCKS = {"default": {"LOCATION": "locks", "KEY_PREFIX": "shop"}}
    with client.lock(f"shop:{name}", timeout=10):
        assert lock(name, blocking=False).acquire() is False
    with lock(name, timeout=10):
        assert client.lock(f"shop:{name}").acquire(blocking=False) is False
