"""Fences across majorities."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from django_redis_lock import lock
from django_redis_lock.backends.redlock import RedlockLockBackend, votes
from django_redis_lock.backends.redlock.votes import PENDING
from django_redis_lock.exceptions import LockUnavailable
from tests.tools import eventually
from tests.tools.quorums import Quorum, in_use


def test_the_last_fence_is_what_a_majority_of_voters_or_everybody_knows() -> None:
    """A server that lost the fence does not count, unless all servers have answered."""
    assert votes.last_fence([[7, 1], [9, 1], PENDING]) == 9
    assert votes.last_fence([[7, 1], [0, 0], PENDING]) is PENDING
    assert votes.last_fence([[7, 1], [0, 0], [5, 0]]) == 7
    assert votes.last_fence([[0, 0], [9, 0], PENDING]) is PENDING
    for answers in ([[7, 1], [0, 0], OSError()], [[0, 0], OSError(), PENDING]):
        assert votes.last_fence(answers) is PENDING


def test_servers_that_all_lost_their_data_vote_after_the_delay(
    session_quorum: Quorum, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then they give no lock, as one may still be held."""
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", ())
    with in_use(session_quorum, REJOIN_DELAY=0.3) as servers:
        for client in servers.clients:
            client.flushall()
        held = lock(name, timeout=20, using="redlock")
        with pytest.raises(LockUnavailable, match="REJOIN_DELAY"):
            held.acquire(blocking=False)

        def all_vote() -> bool:
            with suppress(LockUnavailable), held:
                pass
            return all(map(_votes, servers.clients))

        eventually(all_vote)


def _votes(client: Any) -> bool:
    """Whether a server has learned the last fence again."""
    return (client.get("lock-server") or "").count(" ") == 1


def test_a_free_lock_is_one_round_trip_where_the_clocks_are_known(
    servers: Quorum, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fence ahead of all clocks, all servers give the same, and none has to be settled."""
    monkeypatch.setattr("django_redis_lock.backends.redlock.CLOCK_MARGIN", 60_000_000)
    rounds = []
    send = RedlockLockBackend._send

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args[0].lock_name == name:
            rounds.append(args[0])
        return send(self, *args, **kwargs)

    monkeypatch.setattr(RedlockLockBackend, "_send", count)
    fences = []
    for _ in range(5):
        with lock(name, timeout=60, using="redlock") as held:
            fences.append(held.fence)
    assert len(rounds) in (10, 11)  # to acquire and to release; the first did not know the clocks
    assert fences == sorted(set(fences))
