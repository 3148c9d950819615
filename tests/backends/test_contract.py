"""Every backend against the contract."""

from __future__ import annotations

import pytest

from tests.contracts.callers import CallerContract
from tests.contracts.capabilities import LACKS
from tests.contracts.handles import HandleContract
from tests.contracts.locks import LockContract
from tests.contracts.sharing import PermitContract, SharingContract


@pytest.mark.usefixtures("server")
class TestRedis(LockContract, SharingContract):
    """The Redis backend, on an alias of CACHES."""

    using = "default"


class TestLocMem(LockContract, SharingContract):
    """The backend in the process's memory."""

    using = "locmem"


@pytest.mark.usefixtures("server")
class TestPermits(PermitContract):
    """Semaphores of the Redis backend."""

    using = "default"


class TestLocMemPermits(PermitContract):
    """Those in the process's memory."""

    using = "locmem"


class TestDummy(CallerContract, HandleContract):
    """The backend that always acquires."""

    using = "dummy"
    lacks = LACKS["DummyLockBackend"]

    def test_everybody_acquires(self, name: str) -> None:
        with self.lock(name), self.lock(name):
            pass
