"""What scripts read: holders, the index, the queue and the audit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redis_lock.transport.packing import (
    HISTORY,
    INSPECT,
    WAITING,
)
from tests.transport.scripts import CHANNEL, REFUSED, Keys

# Holders.


def inspect(keys: Keys, *of_locks: str) -> list[Any]:
    before_name = len(keys.lock) - len("lock")
    return list(keys.call(INSPECT, [keys.heard, keys.limits, *of_locks], before_name, ""))


def test_inspecting(keys: Keys) -> None:
    """What another program has put there is no lock, and no queue."""
    name = keys.name
    keys.hold("one", 5000)
    keys.wait((CHANNEL, "two"), (CHANNEL, "three"))
    keys.hold("four", None, name=f"{name}:endless")
    keys.client.lpush(f"{name}:list", "foreign")
    keys.client.set(f"{name}:text", "foreign")
    before = keys.now()
    now, *found = inspect(
        keys,
        *(keys.lock, keys.queue, f"{name}:none"),
        *(f"{name}:endless", f"{name}:text", f"{name}:none"),
        *(f"{name}:list", f"{name}:none", f"{name}:none"),
        *(f"{name}:free", f"{name}:none", f"{name}:none"),
    )
    assert before <= now <= keys.now()
    assert 4000 < found.pop(1) <= 5000
    one, four = keys.client.mget(keys.lock, f"{name}:endless")
    assert found == [one, 2, four, -1, 0, None, -1, 0, None, -2, 0]


def test_inspecting_what_this_user_may_not_read(keys: Keys, without: Callable[[str], Keys]) -> None:
    """The number of waiters is unknown; a lock that can't be read is an error."""
    keys.hold("one")
    assert inspect(without("llen"), keys.lock, keys.queue, keys.permits)[3] is None
    with pytest.raises(redis.ResponseError, match=REFUSED):
        inspect(without("get"), keys.lock, keys.queue, keys.permits)


# The queue.


@pytest.mark.parametrize(("most", "read"), [(-1, 250), (1, 1), (150, 150)])
def test_the_queue(keys: Keys, most: int, read: int) -> None:
    keys.wait(*[(CHANNEL, f"{number}") for number in range(250)])
    before = keys.now()
    now, *entries = keys.call(WAITING, [keys.queue, keys.heard], most)
    assert before <= now <= keys.now()
    assert entries == keys.client.lrange(keys.queue, 0, -1)[:read]


def test_waiters_whose_process_was_not_heard_lately(keys: Keys) -> None:
    """They are neither read nor counted."""
    keys.hold("one")
    now = keys.now()
    keys.client.zadd(keys.heard, {"gone": now - 3500, "lately": now - 2000, "silent": 3500 - now})
    keys.wait(("gone", "two"), ("lately", "three"), ("silent", "four"), ("gone", "five"))
    keys.wait(("lately", "six"))
    (_, waiter) = keys.call(WAITING, [keys.queue, keys.heard], 1)
    assert waiter.split()[1] == "three"
    assert len(keys.call(WAITING, [keys.queue, keys.heard], -1)) == 3
    assert inspect(keys, keys.lock, keys.queue, keys.permits)[3] == 2


def test_where_processes_are_not_noted_all_waiters_are_read(keys: Keys) -> None:
    """A quorum keeps no notes."""
    keys.wait((CHANNEL, "two"), record=f'{{"since":{keys.now() - 9000}}}')
    assert len(keys.call(WAITING, [keys.queue, keys.heard], -1)) == 2


def test_a_queue_that_is_none(keys: Keys, without: Callable[[str], Keys]) -> None:
    """Another program's data is no queue; that it may not be read is an error."""
    assert len(keys.call(WAITING, [keys.queue, keys.heard], -1)) == 1
    keys.client.set(keys.queue, "foreign")
    assert len(keys.call(WAITING, [keys.queue, keys.heard], -1)) == 1
    with pytest.raises(redis.ResponseError, match=REFUSED):
        without("lrange").call(WAITING, [keys.queue, keys.heard], -1)


# The index.


# The audit.


def test_the_audit(keys: Keys) -> None:
    """A page tells where the next one begins; a lock's entries are chosen by name."""
    for i in range(5):
        keys.client.xadd(keys.queue, {"event": "freed", "name": f"n{i % 2}"}, id=f"1-{i + 1}")

    def read(name: str, before: str, most: int) -> tuple[str, list[str]]:
        ((end, *page),) = keys.call(HISTORY, [keys.queue], name, before, most)
        return end, [entry[0] for entry in page]

    assert read("", "+", 2) == ("1-4", ["1-5", "1-4"])
    assert read("", "1-4", 2) == ("1-2", ["1-3", "1-2"])
    assert read("", "1-2", 2) == ("", ["1-1"])
    assert read("n1", "+", 9) == ("", ["1-4", "1-2"])
    assert read("n0", "+", 5) == ("1-1", ["1-5", "1-3", "1-1"])
    ((_, newest, *_),) = keys.call(HISTORY, [keys.queue], "", "+", 1)
    assert newest == ["1-5", ["event", "freed", "name", "n0"]]
