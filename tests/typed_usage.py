"""How a project uses the public API, for the type checker alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from django_redis_lock import AuditEntry, Holder, Lock, LockGroup, Waiter, lock, lock_many, locks
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.celery import single_instance_task


def synchronous() -> None:
    """Hold a lock."""
    with lock("a", timeout=10, blocking_timeout=2, metadata={"shop": "7"}) as held:
        assert_type(held, Lock)
        assert_type(held.fence, int)
        assert_type(held.remaining, float)
        assert_type(held.lost, bool)
        assert_type(held.extend(5), bool)
    assert_type(lock("a", None).acquire(blocking=False), bool)


async def asynchronous() -> None:
    """Hold a lock under asyncio."""
    async with lock("a") as held:
        assert_type(held, Lock)
        assert_type(await held.aowned(), bool)
    assert_type(locks["default"].aholders(), AsyncIterator[Holder])


def several() -> None:
    """Take several locks."""
    with lock_many(["a", "b"], timeout=10) as group:
        assert_type(group, LockGroup)
        assert_type(group.fences, dict[str, int])
        assert_type(group["a"], Lock)


@lock("nightly")
def decorated(number: int) -> str:
    """Keep its signature."""
    return str(number)


@single_instance_task
def plain(number: int) -> str:
    """Keep its signature."""
    return str(number)


@single_instance_task(600, key="import:{number}")
def keyed(number: int) -> str:
    """Keep its signature."""
    return str(number)


def operators() -> None:
    """List and break."""
    backend = locks["default"]
    assert_type(backend, BaseLockBackend)
    assert_type(backend.holders("a*"), Iterator[Holder])
    assert_type(backend.holder("a"), Holder | None)
    assert_type(backend.force_release("a", token_id="0", by="ada", reason="stuck"), Holder | None)
    assert_type(backend.waiting("a"), list[Waiter])
    assert_type(backend.history("a", limit=10), list[AuditEntry])
    assert_type(decorated(1), str)
    assert_type(plain(1), str)
    assert_type(keyed(1), str)
