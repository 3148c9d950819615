"""Every backend against the contract."""

from __future__ import annotations

from typing import Any

import pytest

from django_redis_lock import Lock, LockGroup, lock_many, semaphore
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
