"""Every backend against the contract."""

from __future__ import annotations

from typing import Any

import pytest

from django_redis_lock import Lock, LockGroup, lock_many, locks, semaphore
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.lease import Request
from tests.contracts.callers import CallerContract
from tests.contracts.capabilities import LACKS
from tests.contracts.handles import HandleContract
from tests.contracts.locks import LayoutContract, LockContract
from tests.contracts.sharing import SharingContract


@pytest.mark.usefixtures("server")
class TestRedis(LockContract, SharingContract):
    """The Redis backend, on an alias of CACHES."""

    using = "default"


class TestLocMem(LockContract, SharingContract):
    """The backend in the process's memory."""

    using = "locmem"

    def test_who_comes_back_has_its_position_again(self, name: str) -> None:
        call, waiting = locks["locmem"].call, [Request(name, token, 20.0, "- {}") for token in "ab"]
        with self.lock(name):
            for one in waiting:
                *_, one.position = call(calls.Acquire(one, "i"))
            call(calls.Release(name, "a"))
            call(calls.Acquire(waiting[0], "i"))
            assert call(calls.ReadQueue(name))[1::2] == [one.position for one in waiting]


@pytest.mark.usefixtures("server")
class TestPermits(LayoutContract):
    """A semaphore of one keeps all that a lock promises."""

    using = "default"

    def lock(self, name: str, *args: Any, **kwargs: Any) -> Lock:
        return semaphore(name, 1, *args, using=self.using, **kwargs)

    def group(self, names: list[str]) -> LockGroup:
        return lock_many(names, limit=1, using=self.using)


class TestLocMemPermits(TestPermits):
    """The same in the process's memory."""

    using = "locmem"


class TestDummy(CallerContract, HandleContract):
    """The backend that always acquires."""

    using = "dummy"
    lacks = LACKS["DummyLockBackend"]

    def test_everybody_acquires(self, name: str) -> None:
        with self.lock(name), self.lock(name):
            pass
