"""What scripts read: holders, the index, the queue and the audit."""

from __future__ import annotations

from typing import Any

import pytest

from django_redis_lock.transport.packing import INSPECT, WAITING
from tests.transport.scripts import LEASE, OTHER, PROCESS, RECORD, Keys, digest, sharing

# Holders.


def inspect(keys: Keys, *locks: Keys, skip: int = 0) -> list[Any]:
    before_name = len(keys.lock) - len(keys.name)
    own = [key for lock in locks for key in lock.own]
    return list(keys.call(INSPECT, [keys.seen, keys.limits, *own], before_name, skip))


def test_inspecting(keys: Keys) -> None:
    """What another program has put there is no lock, and no queue."""
    endless, text, a_list, free = (
        Keys(keys.client, keys.prefix, name) for name in ("endless", "text", "list", "free")
    )
    keys.hold("one", 5000)
    keys.wait(PROCESS, "two", "three")
    endless.hold("four", None)
    endless.wait(PROCESS, "five")
    endless.wait("@5", "six")
    text.client.set(text.lock, "foreign")
    text.client.set(text.queue, "foreign")
    a_list.client.lpush(a_list.lock, "foreign")
    before = keys.now()
    now, *found = inspect(keys, keys, endless, text, a_list, free)
    assert before <= now <= keys.now()
    assert 4000 < found.pop(1) <= 5000
    one, four = keys.client.mget(keys.lock, endless.lock)
    assert found == [one, 2, four, -1, [2, 1], "foreign", -1, 0, None, -1, 0, None, -2, 0]


def test_inspecting_permits(keys: Keys) -> None:
    """512 of all locks at a time, without those that have ended; all are counted."""
    other = Keys(keys.client, keys.prefix, "other")
    keys.client.hset(keys.limits, keys.name, "9 1 ann")
    ends, rest = keys.now() + LEASE, f"- 7 - {sharing(None)}"
    for each, number in ((keys, 500), (other, 100)):
        permits = {digest(f"{i}"): ends + i for i in range(number)}
        each.client.zadd(each.lock, {**permits, digest("ended"): 5})
        each.client.hset(each.permits, mapping=dict.fromkeys(permits, rest))
    for skip, first, second in ((0, 500, 12), (490, 10, 0), (500, 0, 0)):
        _, one, _, _, two, _, _ = inspect(keys, keys, other, skip=skip)
        assert (one[:2], two[:2]) == (["9 1 ann", 500], [None, 100])
        for answer, number in ((one, first), (two, second)):
            assert [len(part) for part in answer[2:]] == [2 * number, number]
        assert one[2][:1] == [digest(f"{skip}")] * (first > 0)
        assert one[3] == [rest] * first


# The queue.


def read_queue(keys: Keys, after: str = "0") -> list[str]:
    before = keys.now()
    now, *found = keys.call(WAITING, [keys.queue, keys.seen], keys.name, after)
    assert before <= now <= keys.now()
    return list(found)


@pytest.mark.parametrize("processes", [1, 3, 100])
def test_the_queue(keys: Keys, processes: int) -> None:
    """In pages, of which each goes on where the last one ends."""
    for number in range(400):
        keys.wait(f"c{number * number % processes}-1", f"{number}")
    found: list[str] = []
    while page := read_queue(keys, found[-2] if found else "0"):
        assert len(page) // 2 <= 256
        found += page
    assert found[::2] == [f"{number}" for number in range(1, 401)]
    assert found[1::2] == [
        f"c{number * number % processes}-1 {digest(str(number))} {LEASE} {RECORD}"
        for number in range(400)
    ]


def test_the_only_waiter_whose_process_has_died(keys: Keys) -> None:
    """It is neither read nor counted after 3 s."""
    keys.hold("one")
    for ago, shown in ((2500, 1), (3500, 0)):
        keys.wait(PROCESS, "two", ago=ago)
        assert (len(read_queue(keys)) // 2, inspect(keys, keys)[3]) == (shown, shown)


def test_waiters_whose_process_was_not_seen_lately(keys: Keys) -> None:
    """They are neither read nor counted. A quorum keeps no notes of who was seen."""
    keys.hold("one")
    for process, ago in (("c5-1", 3500), (OTHER, 2000), ("c6-1", None), (PROCESS, 0)):
        keys.wait(process, "two", ago=ago)
    keys.wait("quorum", "three", ago=None)
    found = [entry.split()[0] for entry in read_queue(keys)[1::2]]
    assert found == [OTHER, PROCESS, "quorum"]
    assert inspect(keys, keys)[3] == 3
