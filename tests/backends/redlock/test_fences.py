"""Fences across majorities."""

from __future__ import annotations

from typing import Any

import pytest

from django_redis_lock import lock
from django_redis_lock.backends.redlock import votes
from django_redis_lock.backends.redlock.backend import Clocks, RedlockLockBackend
from django_redis_lock.backends.redlock.votes import PENDING
from tests.tools.quorums import Quorum


def test_the_last_fence_is_what_a_majority_of_voters_or_everybody_knows() -> None:
    """A server that lost the fence does not count, unless all servers have answered."""
    assert votes.last_fence([[7, 1], [9, 1], PENDING]) == 9
    assert votes.last_fence([[7, 1], [0, 0], PENDING]) is PENDING
    assert votes.last_fence([[7, 1], [0, 0], [5, 0]]) == 7
    assert votes.last_fence([[0, 0], [9, 0], PENDING]) is PENDING
    for answers in ([[7, 1], [0, 0], OSError()], [[0, 0], OSError(), PENDING]):
        with pytest.raises(votes.NoQuorum):
            votes.last_fence(answers)


def test_a_free_lock_is_one_round_trip_where_the_clocks_are_known(
    servers: Quorum, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fence ahead of all clocks, all servers give the same, and none has to be settled."""
    monkeypatch.setattr(Clocks, "MARGIN", 60_000_000)
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
