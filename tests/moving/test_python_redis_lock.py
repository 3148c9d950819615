"""From python-redis-lock: both beside each other, on one server and at one key."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis_lock
from django.core.cache import caches
from redis_lock import Lock as OldLock
from redis_lock.django_cache import RedisCache as OldCache

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockError, LockLost, LockNotAcquired, LockNotOwned
from django_redis_lock.signals import lock_released
from tests.moving.rows import Rows
from tests.settings import server_url
from tests.tools import Background, eventually, waiters
from tests.tools.console import command
from tests.tools.docs import DOCS, blocks

PAGE = "move-from-python-redis-lock.md"

rows = Rows(PAGE)


@pytest.fixture
def old_client(server: Any) -> Any:
    """A client as python-redis-lock wants it, for another database than that of our locks."""
    with redis.Redis.from_url(server_url(3), socket_timeout=None) as client:
        yield client


def test_each_row_has_a_test() -> None:
    """And no option or method of the old lock is without a row."""
    assert rows.shown == rows.documented
    options = {*inspect.signature(OldLock).parameters} - {"redis_client", "name"}
    methods = [each for each in vars(OldLock) if not each.startswith("_")]
    known = {"register_scripts"} | {each for each in methods if each.endswith("_script")}
    assert rows.lack(*options, *{*methods} - known, "reset_all", "locked_get_or_set") == []


@rows.show('Lock(client, "x"): never expires', 'lock("x"): TIMEOUT, renewed while the holder lives')
def test_a_lock_without_a_lease(old_client: Any, client: redis.Redis, name: str) -> None:
    """Theirs outlives its holder; ours ends soon after it."""
    assert OldLock(old_client, name).acquire()
    assert lock(name).acquire()
    assert old_client.pttl(f"lock:{name}") == -1
    assert 0 < client.pttl(f"lock:{name}") <= 30_000


@rows.show("expire=60", "timeout=60")
def test_a_fixed_lease(old_client: Any, client: redis.Redis, name: str) -> None:
    """Theirs is cut to whole seconds; a lease of less than one never ends."""
    assert OldLock(old_client, name, expire=60).acquire()
    assert lock(name, timeout=60).acquire()
    for each in (old_client, client):
        assert 59_000 < each.pttl(f"lock:{name}") <= 60_000
    with pytest.raises(redis.ResponseError, match="invalid expire"):
        OldLock(old_client, f"{name}-short", expire=0.5).acquire()
    assert lock(f"{name}-short", timeout=0.5).acquire()
    assert 0 < client.pttl(f"lock:{name}-short") <= 500


@rows.show("expire=60, auto_renewal=True", "timeout=60, auto_renew=True")
def test_a_renewed_lease(old_client: Any, client: redis.Redis, name: str) -> None:
    """Theirs is renewed after two thirds by a thread for each lock, ours after one third."""
    before = OldLock(old_client, name, expire=3, auto_renewal=True)
    before.acquire()
    assert before._lock_renewal_interval == 2
    with lock(name, timeout=0.6, auto_renew=True):
        first = locks["default"].holder(name).expires_at
        eventually(lambda: locks["default"].holder(name).expires_at > first)
    before.release()


@rows.show("blocking=False", "blocking=False")
def test_a_lock_that_does_not_wait(old_client: Any, client: redis.Redis, name: str) -> None:
    OldLock(old_client, name, expire=60).acquire()
    lock(name).acquire()
    with pytest.raises(redis_lock.NotAcquired), OldLock(old_client, name, blocking=False):
        pass
    with pytest.raises(LockNotAcquired), lock(name, blocking=False):
        pass


@rows.show("acquire(blocking=True, timeout=5)", "acquire(blocking_timeout=5)")
def test_a_wait_that_ends(old_client: Any, client: redis.Redis, name: str) -> None:
    """Theirs counts whole seconds, ours milliseconds."""
    OldLock(old_client, name, expire=60).acquire()
    lock(name).acquire()
    assert OldLock(old_client, name, expire=60).acquire(timeout=1) is False
    assert lock(name).acquire(blocking_timeout=0.05) is False


@rows.show("TimeoutTooLarge: longer than expire", "any blocking_timeout")
def test_a_wait_that_is_longer_than_the_lease(old_client: Any, server: Any, name: str) -> None:
    with pytest.raises(redis_lock.TimeoutTooLarge):
        OldLock(old_client, name, expire=1).acquire(timeout=2)
    assert lock(name, timeout=1, blocking_timeout=2).acquire()


@rows.show("extend()", "reacquire()")
def test_a_lease_is_set_to_its_full_length(old_client: Any, client: redis.Redis, name: str) -> None:
    before, held = OldLock(old_client, name, expire=60), lock(name, timeout=60)
    for each, connection in ((before, old_client), (held, client)):
        each.acquire()
        connection.pexpire(f"lock:{name}", 9_000)
    before.extend()
    held.reacquire()
    for connection in (old_client, client):
        assert connection.pttl(f"lock:{name}") > 59_000


@rows.show("extend(expire=90)", "extend(90, replace_ttl=True)")
def test_a_lease_is_set_to_another_length(old_client: Any, client: redis.Redis, name: str) -> None:
    """Without ``replace_ttl`` ours adds to what is left."""
    before, held = OldLock(old_client, name, expire=60), lock(name, timeout=60)
    before.acquire()
    held.acquire()
    before.extend(expire=90)
    held.extend(90, replace_ttl=True)
    for connection in (old_client, client):
        assert 89_000 < connection.pttl(f"lock:{name}") <= 90_000


@rows.show("NotExpirable", "LockError")
def test_a_lock_without_end_can_not_be_extended(old_client: Any, server: Any, name: str) -> None:
    before, held = OldLock(old_client, name), lock(name, timeout=None)
    before.acquire()
    held.acquire()
    with pytest.raises(redis_lock.NotExpirable):
        before.extend(5)
    with pytest.raises(LockError, match="never expires"):
        held.extend(5)
    held.release()


@rows.show("NotAcquired from release() and extend()", "LockNotOwned, LockLost")
def test_errors_of_those_who_do_not_hold_it(old_client: Any, server: Any, name: str) -> None:
    before, held = OldLock(old_client, name, expire=60), lock(name, timeout=60)
    for act in (before.release, before.extend):
        with pytest.raises(redis_lock.NotAcquired):
            act()
    for act in (held.release, held.reacquire):
        with pytest.raises(LockNotOwned):
            act()
    held.acquire()
    locks["default"].force_release(name)
    with pytest.raises(LockLost):
        held.release()


@rows.show("AlreadyAcquired", "LockError")
def test_a_lock_is_acquired_twice(old_client: Any, server: Any, name: str) -> None:
    before, held = OldLock(old_client, name, expire=60), lock(name)
    before.acquire()
    held.acquire()
    with pytest.raises(redis_lock.AlreadyAcquired):
        before.acquire()
    with pytest.raises(LockError):
        held.acquire()
    held.release()


@rows.show("locked()", "locked()")
def test_whether_it_is_held(old_client: Any, server: Any, name: str) -> None:
    OldLock(old_client, name, expire=60).acquire()
    lock(name).acquire()
    assert OldLock(old_client, name).locked()
    assert lock(name).locked()


@rows.show("id, get_owner_id()", 'token_id, locks["default"].holder(name)')
def test_who_holds_it(old_client: Any, server: Any, name: str) -> None:
    """Theirs shows the secret with which any program can release it."""
    before, held = OldLock(old_client, name, expire=60), lock(name)
    before.acquire()
    held.acquire()
    assert OldLock(old_client, name).get_owner_id() == before.id
    assert locks["default"].holder(name).token_id == held.token_id  # type: ignore[union-attr]


@rows.show("Lock(…, id=id_from_elsewhere).release()", "lock(…).take_over(ticket), then release()")
def test_a_lock_is_released_elsewhere(old_client: Any, server: Any, name: str) -> None:
    before, held = OldLock(old_client, name, expire=60), lock(name)
    before.acquire()
    OldLock(old_client, name, id=before.id).release()
    held.acquire()
    ticket = held.detach(30)
    elsewhere = lock(name)
    assert elsewhere.take_over(ticket)
    elsewhere.release()
    assert (OldLock(old_client, name).locked(), lock(name).locked()) == (False, False)


@rows.show("reset()", 'locks["default"].force_release(name)')
def test_a_lock_is_taken_away(old_client: Any, server: Any, name: str) -> None:
    """Ours says who lost it, and tells the holder."""
    OldLock(old_client, name, expire=60).acquire()
    held = lock(name)
    held.acquire()
    OldLock(old_client, name).reset()
    assert locks["default"].force_release(name).fence == held.fence  # type: ignore[union-attr]
    with pytest.raises(LockLost):
        held.ensure_held()
    assert not OldLock(old_client, name).locked()


@pytest.mark.usefixtures("no_workers", "db")
@rows.show("reset_all(client) at the start", "nothing; manage.py locks release --all --only-dead")
def test_what_a_crash_left(old_client: Any, server: Any, settings: Any, name: str) -> None:
    """Theirs frees the locks of all processes that live; ours only what is known to be dead."""
    settings.LOCKS = {"default": settings.LOCKS["default"]}
    OldLock(old_client, name, expire=60).acquire()
    held = lock(name)
    held.acquire()
    redis_lock.reset_all(old_client)
    command("release", "--all", "--only-dead", "--noinput")
    assert not OldLock(old_client, name).locked()
    held.ensure_held()


@rows.show("strict=, signal_expire=", "none")
def test_options_that_are_gone(name: str) -> None:
    for option in ("strict", "signal_expire"):
        with pytest.raises(TypeError, match=option):
            lock(name, **{option: 1})


@rows.show("cache.lock(key, expire=60) of its RedisCache", "lock(key, timeout=60)")
def test_the_lock_of_its_cache(client: redis.Redis, name: str) -> None:
    """Its key has no prefix or version of the cache, so it is the same as ours."""
    cache = OldCache(server_url(), {})
    assert cache.lock(name, expire=60).acquire()
    assert client.keys() == [f"lock:{name}"]
    assert lock(name, blocking=False).acquire() is False
    cache.close()


@rows.show("cache.locked_get_or_set(key, create)", "get_or_set() of the cache inside of lock(key)")
def test_a_value_is_made_once(server: Any, name: str) -> None:
    cache = OldCache(server_url(3), {})
    assert cache.locked_get_or_set(name, lambda: 8) == 8
    assert cache.locked_get_or_set(name, lambda: 9) == 8
    made = []

    def create() -> int:
        made.append(1)
        return len(made)

    def ours() -> int:
        with lock(f"get_or_set:{name}"):
            return int(caches["default"].get_or_set(name, create))

    threads = [Background(ours) for _ in range(4)]
    assert [thread.outcome() for thread in threads] == [1] * 4
    cache.close()


# While both run.


@pytest.fixture
def shared(server: Any) -> Any:
    """A client for the database that has our locks."""
    with redis.Redis.from_url(server_url(), socket_timeout=None) as client:
        yield client


def test_both_exclude_each_other_at_one_key(shared: Any, name: str) -> None:
    """With the default prefix the keys are the same."""
    before, held = OldLock(shared, name, expire=60), lock(name, timeout=60)
    assert before.acquire()
    assert held.acquire(blocking=False) is False
    before.release()
    assert held.acquire()
    assert before.acquire(blocking=False) is False
    with pytest.raises(redis_lock.NotAcquired):
        before.release()
    held.ensure_held()


def test_our_waiter_takes_over_from_the_old_lock(shared: Any, name: str) -> None:
    before, held = OldLock(shared, name, expire=60), lock(name, timeout=60)
    before.acquire()
    waiting = Background(held.acquire)
    eventually(lambda: waiters(name) == 1)
    before.release()
    assert waiting.outcome() is True


def test_an_old_waiter_is_not_told_of_our_release(shared: Any, name: str) -> None:
    """It looks again only when its own wait ends: after ``timeout``, ``expire``, or never."""
    held = lock(name, timeout=60)
    held.acquire()
    waiting = Background(lambda: OldLock(shared, name, expire=60).acquire(timeout=2))
    eventually(lambda: blocked(shared))
    held.release()
    assert blocked(shared)
    assert waiting.outcome() is True  # by the last look, after two seconds


@pytest.mark.usefixtures("bridge")
def test_an_old_waiter_is_told_by_the_bridge(shared: Any, name: str) -> None:
    """The receiver on the page ends its wait at once."""
    held = lock(name, timeout=60)
    held.acquire()
    waiting = Background(lambda: OldLock(shared, name, expire=60).acquire(timeout=60))
    eventually(lambda: blocked(shared))
    held.release()
    assert waiting.outcome() is True


def test_a_reset_of_all_old_locks_frees_ours(shared: Any, name: str) -> None:
    """So it has to go before both run; the holder finds out."""
    held = lock(name, timeout=60)
    held.acquire()
    redis_lock.reset_all(shared)
    with pytest.raises(LockLost):
        held.ensure_held()


def blocked(client: redis.Redis) -> int:
    """Return how many connections wait in a BLPOP."""
    return int(client.info("clients")["blocked_clients"])


@pytest.fixture
def bridge(server: object) -> Iterator[None]:
    """The receiver that the page defines."""
    (block,) = (block for block in blocks(DOCS / "how-to" / PAGE) if block.how == "bridge")
    namespace: dict[str, Any] = {}
    code = block.text.replace("redis://127.0.0.1:6379/1", server_url())
    exec(code, namespace)  # noqa: S102 - our own documentation
    yield
    lock_released.disconnect(namespace["wake_old_waiters"])
    namespace["client"].close()
