"""The Lua scripts, called as the backend calls them: what they return and what they write."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from django_redis_lock.transport.scripts import ACQUIRE

RECORD = '{"host":"here"}'
CHANNEL = "process-1"


class Keys:
    """The keys of one lock, and calls of scripts with them."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.client = client
        self.name = name
        self.lock, self.queue, self.index, self.fence, self.heard = self.all = [
            f"{name}:{key}" for key in ("lock", "queue", "index", "fence", "heard")
        ]

    def acquire(self, token: str, channel: str = "", lease: int = 30_000) -> Any:
        return self.client.eval(
            ACQUIRE.source, 5, *self.all, token, str(lease), RECORD, self.name, channel
        )

    def now(self) -> int:
        """Return the server's clock in ms."""
        seconds, micros = self.client.time()
        return int(seconds * 1000 + micros // 1000)

    def hand_off(self, token: str, due: int, lease: int, channel: str = CHANNEL) -> None:
        """Write the lock as it is after a hand-off whose claim is due in so many ms."""
        mark = f'"unclaimed":"{self.now() + due} {lease} {channel}",'
        self.client.set(self.lock, f"{token} 7 {{{mark}{RECORD[1:]}", px=lease + 2000)


@pytest.fixture
def keys(client: redis.Redis, name: str) -> Keys:
    return Keys(client, name)


def test_a_free_lock(keys: Keys) -> None:
    before = keys.now()
    fence = keys.acquire("one")
    assert before <= fence // 1000 <= keys.now()
    assert keys.client.get(keys.lock) == f"one {fence} {RECORD}"
    assert keys.client.get(keys.fence) == str(fence)
    assert keys.client.zscore(keys.index, keys.name) == fence // 1000 + 30_000
    assert 29_000 < keys.client.pttl(keys.lock) <= 30_000


@pytest.mark.parametrize(("last", "pruned"), [(14, False), (15, True), (16, False)])
def test_each_sixteenth_fence_prunes_the_index(keys: Keys, last: int, pruned: bool) -> None:
    """Names of locks whose leases ran out go then."""
    later = (keys.now() + 3_600_000) * 1000 // 16 * 16 + last
    keys.client.set(keys.fence, later)
    keys.client.zadd(keys.index, {"expired": 1})
    assert keys.acquire("one") == later + 1
    assert (keys.client.zscore(keys.index, "expired") is None) is pruned


@pytest.mark.parametrize("known", [True, False])
def test_a_process_that_joins_is_heard_if_it_is_known(keys: Keys, known: bool) -> None:
    """A silent process that calls is awake again; others need no note before they wait."""
    keys.acquire("one")
    if known:
        keys.client.zadd(keys.heard, {CHANNEL: -5})
    before = keys.now()
    assert keys.acquire("two", CHANNEL).split()[3] == "1"
    at = keys.client.zscore(keys.heard, CHANNEL)
    assert before <= at <= keys.now() if known else at is None


@pytest.mark.parametrize(("channel", "left"), [(CHANNEL, 29_000), ("@poll:500:1", 30_000)])
def test_an_attempt_claims_what_was_handed_off(keys: Keys, channel: str, left: int) -> None:
    """A lease begins when its waiter is told, and that of a polling waiter when it asks."""
    keys.hand_off("one", due=200, lease=30_000, channel=channel)
    fence, ttl, now = keys.acquire("one", channel).split()
    assert fence == "7"
    assert left - 500 < int(ttl) <= left
    assert keys.client.get(keys.lock) == f"one 7 {RECORD}"
    assert keys.client.zscore(keys.index, keys.name) == int(now) + int(ttl)
    assert 0 <= int(ttl) - keys.client.pttl(keys.lock) < 500


def test_a_claim_that_is_not_due_is_waited_for(keys: Keys) -> None:
    """Another caller learns until when."""
    keys.hand_off("one", due=1000, lease=30_000)
    free, ttl, _, kind = keys.acquire("two").split()
    assert (free, kind) == ("0", "0")
    assert 0 < int(ttl) <= 1000
    assert '"unclaimed"' in keys.client.get(keys.lock)


def test_a_claim_that_is_overdue_is_taken_back(keys: Keys) -> None:
    """The caller gets the lock, and the silent process, which still listens, keeps its place."""
    keys.hand_off("one", due=-1, lease=30_000)
    with keys.client.pubsub() as silent:
        silent.subscribe(CHANNEL)
        assert silent.get_message(timeout=5)["type"] == "subscribe"
        before = keys.now()
        assert isinstance(keys.acquire("two", "process-2"), int)
        assert silent.get_message(timeout=5)["data"] == f"look {keys.name}"
    assert keys.client.get(keys.lock).startswith("two ")
    assert keys.client.lrange(keys.queue, 0, -1) == [f"{CHANNEL} one 30000 {RECORD}"]
    notes = dict(keys.client.zrange(keys.heard, 0, -1, withscores=True))
    assert notes.keys() == {CHANNEL, "process-2"}
    assert before <= -notes[CHANNEL] <= notes["process-2"] <= keys.now()
