"""Servers of a quorum that fail or refuse while they are asked."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest

from django_redis_lock import lock
from django_redis_lock.backends.redlock import votes
from django_redis_lock.backends.redlock.rounds import PENDING
from django_redis_lock.exceptions import (
    LockUnavailable,
)
from django_redis_lock.operators.breaking import Result, release_shown
from tests.backends.redlock.conftest import backend
from tests.tools import eventually
from tests.tools.quorums import Quorum, in_use, started


@pytest.mark.parametrize("how", ["down", "paused"])
def test_a_minority_that_fails_is_not_noticed(name: str, how: str) -> None:
    """With one server of three down or paused, locks work without waiting for it."""
    with started(3) as servers, in_use(servers, SERVER_TIMEOUT=20):
        before = lock(name + "before", using="redlock")
        before.acquire()
        if how == "down":
            servers.servers[1].kill()
        else:
            servers.servers[1].pause()
        began = time.monotonic()
        before.ensure_held()
        for _ in range(5):
            with lock(name, timeout=60, using="redlock") as held:
                held.ensure_held()
                assert lock(name, blocking=False, using="redlock").acquire() is False
                assert backend().holder(name).fence == held.fence
        asyncio.run(_hold_under_asyncio(name))
        before.release()
        # Waiting for the server would be twenty seconds for each of these calls.
        assert time.monotonic() - began < 20


async def _hold_under_asyncio(name: str) -> None:
    async with lock(name, timeout=60, using="redlock") as held:
        await held.aensure_held()
        assert not await lock(name, blocking=False, using="redlock").aacquire()


def test_no_majority_is_unavailable_and_not_a_refusal(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two of three down the error names them; it never looks like a held lock."""
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())
    with started(3) as servers, in_use(servers):
        servers.servers[0].kill()
        servers.servers[1].kill()
        with pytest.raises(LockUnavailable, match="no majority of its 3 servers") as error:
            lock(name, using="redlock").acquire(blocking=False)
        assert error.value.name == name
        for url in servers.urls[:2]:
            assert url in str(error.value)
        assert servers.urls[2] not in str(error.value)
        assert not re.search(r"[.][.;]", str(error.value))
        for ask in (backend().holder, backend().waiting, backend().history):
            with pytest.raises(LockUnavailable):
                ask(name)
        # The vote that the third gave is withdrawn, so that it blocks nobody later.
        eventually(lambda: servers.clients[2].get(f"lock:{name}") is None)


def test_a_release_reaches_a_server_that_was_down(name: str) -> None:
    """A server that kept its data over a crash gets the release that it missed."""
    with started(3, persist=True) as servers, in_use(servers):
        held = lock(name, timeout=600, using="redlock")
        held.acquire()
        eventually(lambda: all(servers.values(name)))
        servers.servers[0].kill()
        held.release()
        servers.servers[0].restart()
        eventually(lambda: servers.values(name) == [None] * 3)


@pytest.mark.parametrize(
    ("answers", "again", "in_doubt"),
    [
        ([0, 0, 0], [False, False, False], False),
        ([0, 0, 0], [True, False, False], False),
        ([0, 0, 0], [True, True, False], True),
        ([0, 0, 1], [True, False, False], True),
        ([0, 0, 1], [False, False, True], False),
        ([0, PENDING, 0], [True, False, False], True),
        ([0, OSError(), 0], [False, False, False], False),
        ([0, 0, 0, PENDING, 0], [True, False, False, False, False], False),
        ([0, 0, 0, PENDING, 1], [True, False, False, False, False], True),
    ],
)
def test_a_loss_is_what_a_majority_tells_at_the_first_asking(
    answers: list[Any], again: list[bool], in_doubt: bool
) -> None:
    """A server that was asked again proves nothing: the first sending may have worked."""
    assert votes.in_doubt(answers, again) is in_doubt


@pytest.mark.parametrize(
    ("setting", "number", "result"),
    [
        ("maxmemory", 3, Result.RELEASED),
        ("min-replicas-to-write", 1, Result.RELEASED),
        ("min-replicas-to-write", 2, Result.UNAVAILABLE),  # one has done it
        ("min-replicas-to-write", 3, Result.REFUSED),
    ],
)
def test_forced_release_where_servers_refuse(
    servers: Quorum, name: str, setting: str, number: int, result: Result
) -> None:
    """The release counts as refused only if no server has released the lock."""
    lock(name, using="redlock", timeout=20).acquire()
    eventually(lambda: None not in servers.tokens(name))
    shown = backend().holder(name)
    assert shown
    for client in servers.clients[:number]:
        client.config_set(setting, 1)
    try:
        (outcome,) = release_shown([shown], by="ada")
        free = 3 if setting == "maxmemory" else 3 - number
        eventually(lambda: servers.tokens(name).count(None) == free)
    finally:
        for client in servers.clients:
            client.config_set(setting, 0)
    assert outcome.result is result
