"""Fences of a quorum whose servers lose their data while their clocks are an hour apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from django.conf import settings
from django.test import override_settings

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockUnavailable
from example_project.embedded import free_port
from tests.tools import eventually
from tests.tools.quorums import Quorum, in_use
from tests.tools.stepped import SteppedServer

HOUR = 3600.0
LEARNS = "restarted, and too few others answer to tell it the last fence"


@pytest.fixture
def skewed() -> Iterator[Quorum]:
    """Three servers, the clock of the first of which is an hour ahead."""
    with ExitStack() as stack:
        quorum = Quorum([stack.enter_context(SteppedServer()) for _ in range(3)])
        for client in quorum.clients:
            stack.callback(client.close)
        quorum.servers[0].step(HOUR)
        stack.enter_context(in_use(quorum, REJOIN_DELAY=1))
        yield quorum


def hold(name: str) -> int:
    locks.reset()
    try:
        with lock(name, timeout=1, using="redlock") as held:
            return held.fence
    finally:
        locks.reset()


def hold_without_the_third(quorum: Quorum, name: str) -> int:
    """Hold a lock for which the third server can't be reached; return the fence."""
    entry = quorum.entry(SERVER_TIMEOUT=2, REJOIN_DELAY=1)
    entry["LOCATION"][2] = f"redis://127.0.0.1:{free_port()}/0"
    with override_settings(LOCKS={**settings.LOCKS, "redlock": entry}):
        fence = hold(name)
    assert fence > int(quorum.clients[2].time()[0] + HOUR / 2) * 1_000_000
    assert quorum.clients[2].get("lock-fence") is None
    return fence


def forget(quorum: Quorum, index: int) -> None:
    quorum.servers[index].kill()
    quorum.servers[index].restart()


def why_unavailable(name: str) -> str:
    try:
        hold(name)
    except LockUnavailable as error:
        return str(error)
    return ""


def votes(quorum: Quorum, index: int) -> bool:
    """Whether a server has learned what it needs to vote."""
    mark = quorum.clients[index].get("lock-server") or ""
    return mark.count(" ") == 1


def test_a_server_that_forgot_does_not_vote_below_a_fence_that_only_one_knows(
    skewed: Quorum, name: str
) -> None:
    """While the only server with the last fence is away no lock is granted."""
    fence = hold_without_the_third(skewed, name)
    forget(skewed, 1)
    skewed.servers[0].pause()
    eventually(lambda: LEARNS in why_unavailable(name))
    assert not votes(skewed, 1)
    skewed.servers[0].resume()
    assert eventually(lambda: not why_unavailable(name))
    assert hold(name) > fence


def test_a_server_that_has_learned_the_last_fence_gives_a_greater_one(
    skewed: Quorum, name: str
) -> None:
    """Once a restarted server has learned the fence, the servers that knew it may go."""
    fence = hold_without_the_third(skewed, name)
    forget(skewed, 1)
    eventually(lambda: hold(name + "other") and votes(skewed, 1))
    skewed.servers[0].kill()
    assert hold(name) > fence


def test_servers_that_all_forgot_vote_when_all_answer(skewed: Quorum, name: str) -> None:
    """If no server knows a fence, as in a new installation, they start by themselves."""
    for index in range(3):
        forget(skewed, index)
    assert "REJOIN_DELAY" in why_unavailable(name)
    eventually(lambda: not why_unavailable(name))
    eventually(lambda: hold(name + "other") and all(votes(skewed, index) for index in range(3)))


def test_admitted_servers_go_on_from_the_greatest_fence(skewed: Quorum, name: str) -> None:
    """Admitting servers at once does not let fences fall below what one of them knows."""
    fence = hold_without_the_third(skewed, name)
    forget(skewed, 1)
    locks["redlock"].admit()
    skewed.servers[0].kill()
    assert hold(name) > fence
