"""Every backend against the contract."""

from __future__ import annotations

from typing import Any

import pytest

from django_redis_lock import Lock, semaphore
from tests.contracts.callers import CallerContract
from tests.contracts.capabilities import LACKS
from tests.contracts.handles import HandleContract
from tests.contracts.locks import LockContract
from tests.contracts.records import RecordContract
from tests.contracts.sharing import SharingContract
from tests.contracts.waiting import WaitingContract


@pytest.mark.usefixtures("server")
class TestRedis(LockContract, SharingContract):
    """The Redis backend, on an alias of CACHES."""

    using = "default"


class TestLocMem(LockContract, SharingContract):
    """The backend in the process's memory."""

    using = "locmem"


@pytest.mark.usefixtures("server")
class TestPermit(CallerContract, HandleContract, WaitingContract, RecordContract):
    """The permit of a semaphore that has one, which is held as a lock is."""

    using = "default"

    def lock(self, name: str, *args: Any, **kwargs: Any) -> Lock:
        return semaphore(name, 1, *args, using=self.using, **kwargs)


class TestReader(CallerContract, HandleContract):
    """A lock that is shared, though nobody else is there."""

    using = "locmem"

    def lock(self, name: str, *args: Any, **kwargs: Any) -> Lock:
        return super().lock(name, *args, shared=True, **kwargs)


class TestDummy(CallerContract, HandleContract):
    """The backend that always acquires."""

    using = "dummy"
    lacks = LACKS["DummyLockBackend"]

    def test_everybody_acquires(self, name: str) -> None:
        with self.lock(name), self.lock(name):
            pass
