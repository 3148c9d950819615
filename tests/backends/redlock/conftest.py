"""Three servers, and the backend on them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_redis_lock import locks
from django_redis_lock.backends.redlock import RedlockLockBackend
from tests.tools.quorums import Quorum, in_use, started


@pytest.fixture(scope="module")
def session_quorum() -> Iterator[Quorum]:
    with started(3) as servers:
        yield servers


@pytest.fixture
def servers(session_quorum: Quorum) -> Iterator[Quorum]:
    with in_use(session_quorum):
        yield session_quorum


def backend() -> RedlockLockBackend:
    found = locks["redlock"]
    assert isinstance(found, RedlockLockBackend)
    return found
