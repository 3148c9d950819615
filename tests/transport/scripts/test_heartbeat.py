"""Heartbeats: what they tell their process and do for locks, a bounded part at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from django_redis_lock.protocol.heartbeats import WAITER_TIMEOUT
from tests.transport.scripts import LEASE, OTHER, PROCESS, READER, SLOW, Keys, digest, sharing

NAME = "name"


@contextmanager
def counting(client: redis.Redis) -> Iterator[Callable[[], int]]:
    """Yield what counts the commands that the server has carried out, also those of scripts."""

    def total() -> int:
        stats = client.info("commandstats")
        return sum(each["calls"] for key, each in stats.items() if key != "cmdstat_info")

    before = total()
    yield lambda: total() - before


# What the process is told.


@pytest.mark.parametrize(
    ("gone", "known"),
    [
        ((), True),
        (("queue",), True),  # its position is known from its waiters
        (("tokens",), False),
        (("waiters",), False),
        (("tokens", "waiters"), False),
        (("queue", "tokens", "waiters"), False),
        (("one token",), False),
        (("one waiter",), False),
    ],
)
def test_names_in_whose_queue_the_last_waiter_is_not(
    keys: Keys, gone: tuple[str, ...], known: bool
) -> None:
    """As where a full server has evicted keys. The keys that are left stay."""
    keys.hold("one")
    keys.wait(PROCESS, "two", "three")
    (first,) = keys.client.zrange(keys.waiters(PROCESS), 0, 0)
    for each in gone:
        if each == "one token":
            keys.client.hdel(keys.tokens(PROCESS), digest("two"))
        elif each == "one waiter":
            keys.client.zrem(keys.waiters(PROCESS), first)
        else:
            keys.client.delete(keys.queue if each == "queue" else getattr(keys, each)(PROCESS))
    for key in (keys.queue, keys.waiters(PROCESS), keys.tokens(PROCESS)):
        keys.client.pexpire(key, 1_000)
    assert keys.beat(**{NAME: "three"})[1] == [NAME] * (not known)
    if known:
        assert keys.waiting() == ["two", "three"]
        for key in (keys.queue, keys.waiters(PROCESS), keys.tokens(PROCESS)):
            assert keys.client.pttl(key) > 599_000
    assert keys.beat(**{NAME: "four", "other": "five"})[1] == [NAME, "other"]


def test_the_queue_of_a_parked_message_does_not_expire(keys: Keys) -> None:
    """Though others wait in it, too."""
    keys.hold("one")
    keys.wait("@outbox", "parked")
    keys.wait(PROCESS, "two")
    assert keys.beat(**{NAME: "two"})[1] == []
    assert keys.client.pttl(keys.queue) == -1


def test_messages(keys: Keys) -> None:
    """Each once, at most 64 at a time; then the next heartbeat is due at once."""
    inbox = keys.key("inbox", PROCESS)
    assert keys.beat()[2] == []
    sent = [f"message {number}" for number in range(130)]
    keys.client.rpush(inbox, *sent)
    keys.client.rpush(keys.key("inbox", OTHER), "of another")
    for first, due in ((0, 0), (64, 0), (128, -1), (192, -1)):
        assert keys.beat() == (due, [], sent[first : first + 64])
    keys.client.set(inbox, "foreign")
    assert keys.beat()[2] == []


# What is done for locks.


@pytest.mark.parametrize(
    ("lock", "holder", "due"),
    [
        ("free", "two", 1200),
        ("free for a poller", "two", 20_000),
        ("held", "one", LEASE),
        ("endless", "one", 300_000),
        ("foreign", "foreign", 250),
        ("foreign, ends", "foreign", 100),
        ("handed off", "one", 1000),
        ("not claimed", "two", 1200),
    ],
)
def test_a_lock_that_is_due(keys: Keys, lock: str, holder: str, due: int) -> None:
    """It goes to its first waiter if it is free or was not claimed; else it is due later."""
    match lock:
        case "held" | "endless":
            keys.hold("one", LEASE if lock == "held" else None)
        case "foreign" | "foreign, ends":
            keys.client.set(keys.lock, "foreign", px=100 if "ends" in lock else None)
        case "handed off" | "not claimed":
            keys.hand_off("one", due=1000 if lock == "handed off" else -1, process=OTHER)
            keys.client.zadd(keys.seen, {OTHER: keys.now()})
    keys.wait(SLOW if "poller" in lock else READER, "two", "three")
    keys.client.zadd(keys.due, {NAME: keys.now()})
    found, *_ = keys.beat()
    assert (keys.holder or "foreign") == holder
    assert due - 100 <= found <= due + 1
    assert keys.client.pttl(keys.due) > 599_000
    assert (keys.client.zscore(keys.seen, OTHER) is None) is (lock != "handed off")


@pytest.mark.parametrize(
    ("ends", "process", "shared_by"),
    [
        (LEASE, None, ("one", "two")),
        (-10, None, ("two", "three")),
        (-10, OTHER, ("two", "three")),
        (500, OTHER, ("one", "two")),
    ],
)
def test_permits_that_are_due(
    keys: Keys, ends: int, process: str | None, shared_by: tuple[str, ...]
) -> None:
    """One that has ended or was not claimed goes to the first waiter. The lock is due again when a
    permit has ended, or the next waiter may be silent."""
    keys.share("two")
    if process:
        keys.unclaimed("one", ends, process)
        keys.client.zadd(keys.seen, {process: keys.now()})
    else:
        keys.share("one")
        keys.expire("one", ago=-ends)
    keys.wait(READER, "three", "four", record=sharing(2))
    keys.client.zadd(keys.due, {NAME: keys.now()})
    due, *_ = keys.beat()
    assert keys.shared_by(*shared_by)
    ends_in = min(keys.ends(token) for token in shared_by)
    assert due == pytest.approx(min(ends_in, 1000 * WAITER_TIMEOUT), abs=100)
    if ends == 500:  # the last millisecond of a permit counts
        last = keys.client.zscore(keys.lock, digest("one"))
        assert keys.client.zscore(keys.due, NAME) == last + 1
    assert (keys.client.zscore(keys.seen, OTHER) is None) is (ends != 500)


def test_a_first_waiter_that_may_be_silent(keys: Keys) -> None:
    """Who waits behind it for a permit is served as soon as it counts as silent."""
    keys.share("one")
    keys.wait(OTHER, "two")
    keys.wait(READER, "three", record=sharing(2))
    for silent_in, next_due in (1000, 1000), (-1, -1):
        seen_at = keys.now() - 1000 * WAITER_TIMEOUT + silent_in
        keys.client.zadd(keys.seen, {OTHER: seen_at})
        keys.client.zadd(keys.due, {NAME: keys.now()})
        due, *_ = keys.beat()
        assert due == pytest.approx(next_due, abs=100)
        assert keys.shared_by("one", *["three"] * (silent_in < 0))


# A bounded part.


def test_many_due_locks(keys: Keys) -> None:
    """A heartbeat does 64, those that are due first; the next is due at once."""
    locks = [Keys(keys.client, keys.prefix, f"{number:03}") for number in range(150)]
    for lock in locks:
        lock.wait(READER, f"waits-{lock.name}")
    keys.client.zadd(keys.due, {lock.name: number for number, lock in enumerate(locks)})
    for done, due_at_once in ((64, True), (128, True), (150, False)):
        keys.client.zadd(keys.seen, {READER: keys.now()})
        with counting(keys.client) as commands:
            due, *_ = keys.beat(SLOW)
            assert commands() <= 64 * 60
        assert [lock.holder is not None for lock in locks] == [True] * done + [False] * (150 - done)
        assert (due == 0) is due_at_once


def test_many_processes_that_were_not_heard_for_a_minute(keys: Keys) -> None:
    """They are forgotten; so are those that were heard in the future."""
    now = keys.now()
    keys.client.zadd(keys.seen, {f"past {i}": now - 61_000 - i for i in range(100)})
    keys.client.zadd(keys.seen, {f"future {i}": now + 9_000 + i for i in range(100)})
    keys.client.zadd(keys.seen, {"lately": now - 50_000})
    for left in (200 - 128 + 2, 2, 2):
        keys.beat()
        assert keys.client.zcard(keys.seen) == left
    assert {*keys.client.zrange(keys.seen, 0, -1)} == {"lately", PROCESS}


@pytest.mark.parametrize("how", ["set_limit", "give_up", "release", "acquire"])
def test_a_limit_that_is_raised_by_many(keys: Keys, how: str) -> None:
    """A script grants 64 permits; heartbeats grant the others."""
    tokens = [f"{number}" for number in range(150)]
    keys.acquire("one") if how == "release" else keys.share("one", limit=1)
    keys.wait(READER, *tokens, record=sharing(1000))
    with counting(keys.client) as commands:
        if how == "set_limit":
            keys.set_limit(2000)
        elif how == "acquire":
            keys.client.delete(keys.lock, keys.permits)
            assert keys.share("new", PROCESS, limit=1000).split()[3] == "1"
        else:
            getattr(keys, how)("one")
        assert commands() <= 64 * 30
    granted = [64]
    while keys.client.zcard(keys.lock) < 150:
        assert len(granted) < 9
        with counting(keys.client) as commands:
            due, *_ = keys.beat(READER)
            assert commands() <= 64 * 30
        granted.append(keys.client.zcard(keys.lock))
        assert due == 0 or granted[-1] >= 150
    assert len(granted) == 3
    assert keys.client.exists(keys.waiters(READER)) == 0
