"""The contract, as far as a time as the value can keep it."""

from __future__ import annotations

import pytest

from tests.backends.getset.conftest import Configure
from tests.contracts.capabilities import LACKS
from tests.contracts.locks import LockContract
from tests.contracts.sharing import UnsharedContract


@pytest.fixture(autouse=True)
def _alias(configure: Configure) -> None:
    configure()


class TestGetSet(LockContract, UnsharedContract):
    using = "default"
    lacks = LACKS["GetSetLockBackend"] | {"waiters", "precision"}
