"""Permits: what they leave behind, whose turn it is, and what other programs have written."""

from __future__ import annotations

import pytest

from django_redis_lock.transport.packing import INSPECT, RENEW
from tests.transport.scripts import LEASE, PROCESS, READER, Keys, digest, sharing

# What is left behind.


def test_the_keys_last_as_long_as_the_last_permit(keys: Keys) -> None:
    """However the others end, and whichever was given first."""
    keys.share("short", lease=5_000, limit=None)
    keys.share("long", lease=50_000, limit=None)
    keys.share("middle", lease=20_000, limit=None)

    def check(seconds: int) -> None:
        for key in (keys.lock, keys.permits):
            assert seconds * 1000 - 1000 < keys.client.pttl(key) <= seconds * 1000 + 1
        assert seconds * 1000 - 1000 < keys.end() - keys.now() <= seconds * 1000

    check(50)
    assert keys.give_up("long") == 1
    check(20)
    assert keys.renew("short", 30_000) == [30_000]
    check(30)
    assert keys.renew("short", 10_000) == [10_000]
    check(20)
    assert keys.force("middle") == 1
    check(10)
    assert keys.give_up("short") == 1
    assert keys.client.exists(keys.lock, keys.permits) == 0
    assert keys.end() is None


@pytest.mark.parametrize("how", ["give_up", "force", "take_over"])
def test_a_permit_without_end_leaves_nothing(keys: Keys, how: str) -> None:
    """Another program would otherwise be kept out for good."""
    keys.share("endless")
    keys.share("other", lease=5_000)
    assert keys.renew("endless", -1) == [-1]
    assert keys.client.pttl(keys.lock) == keys.client.pttl(keys.permits) == -1
    assert keys.end() == float("inf")
    assert keys.renew("endless", 0) == [-1]
    if how == "take_over":
        assert keys.take_over("heir", "endless", sharing(2), lease=4_000)
    else:
        assert getattr(keys, how)("endless") == 1
    assert keys.client.pttl(keys.lock) <= 5_001
    assert keys.client.pttl(keys.permits) <= 5_001
    assert keys.end() <= keys.now() + 5_000


def test_a_permit_whose_record_is_lost(keys: Keys) -> None:
    """As one that a full server has evicted: it is none, and its end counts for nobody."""
    keys.share("one", lease=5_000)
    keys.share("two")
    keys.renew("two", -1)
    keys.client.delete(keys.permits)
    assert keys.renew("two", LEASE) == [-2]
    assert keys.client.zrange(keys.lock, 0, -1) == [digest("one")]
    assert keys.client.pttl(keys.lock) <= 5_001
    assert len(keys.share("one", PROCESS, "1").split()) == 3
    keys.client.hdel(keys.permits, digest("one"))
    assert keys.share("three") > 0
    keys.expire("one")
    assert keys.acquire("four").startswith("-")
    assert keys.shared_by("three")


# Other programs.


def test_a_lock_of_another_program(keys: Keys) -> None:
    """``SET NX PX`` excludes those who share the lock, and is excluded by them."""
    assert keys.client.set(keys.lock, "foreign", nx=True, px=LEASE)
    assert keys.share("one", PROCESS).split()[3] == "4"
    assert keys.take_over("two", "other", sharing(None)) is None
    keys.client.delete(keys.lock)
    assert keys.share("one", PROCESS, "1").split()[0].isdigit()
    assert not keys.client.set(keys.lock, "foreign", nx=True, px=LEASE)
    keys.give_up("one")
    assert keys.client.set(keys.lock, "foreign", nx=True, px=LEASE)


def test_foreign_data_beside_the_permits(keys: Keys) -> None:
    """No limit, no record: the permits themselves are known."""
    keys.client.set(keys.limits, "foreign")
    assert isinstance(keys.share("one"), int)
    keys.client.set(keys.permits, "foreign")
    assert keys.renew("one", 9_000) == [9_000]
    before_name = len(keys.lock) - len(keys.name)
    answer = keys.call(INSPECT, [keys.seen, keys.limits, *keys.own], before_name, 0)
    limit, number, (id_, _), rest = answer[1]
    assert (limit, number, id_, rest) == (None, 1, digest("one"), [])
    other = Keys(keys.client, keys.prefix, "other")
    other.hold("two")
    both = [keys.index, keys.seen, *keys.own, *other.own]
    arguments = (keys.name, "one", 8_000, other.name, "two", 7_000)
    assert keys.call(RENEW, both, *arguments) == [8_000, 7_000]


@pytest.mark.parametrize("limit", ["", "many", "-3 1 ann", "1"])
def test_a_limit_that_another_program_has_written(keys: Keys, limit: str) -> None:
    """It counts if it begins with a number."""
    keys.client.hset(keys.limits, keys.name, limit)
    keys.share("one")
    assert isinstance(keys.share("two"), int) is (limit != "1")


def test_a_permit_that_was_not_claimed_leaves_nothing(keys: Keys) -> None:
    """Once it is taken back, the keys last as long as the other permits."""
    keys.share("one", lease=5_000)
    keys.unclaimed("two", -10)
    assert keys.acquire("three").startswith("-")
    assert keys.shared_by("one")
    assert keys.client.pttl(keys.lock) <= 5_001
    assert keys.client.pttl(keys.permits) <= 5_001
    assert keys.end() <= keys.now() + 5_000


def test_ended_permits_are_removed_while_others_live(keys: Keys) -> None:
    """Though a semaphore is never idle and never full."""
    keys.share("lives", limit=1000)
    keys.share("dead", limit=1000)
    keys.expire("dead")
    for number in range(400):
        keys.share(f"{number}", limit=1000)
        keys.give_up(f"{number}")
    assert keys.shared_by("lives")


def test_a_hold_of_a_waiter_is_listed_to_its_end(keys: Keys) -> None:
    """Though the claim of its permit is due much earlier."""
    keys.share("one", limit=1)
    keys.wait(READER, "two", record=sharing(1))
    keys.give_up("one")
    (message,) = keys.client.lrange(keys.key("inbox", READER), 0, -1)
    assert message.split()[:2] == ["grant", "two"]
    assert 0 < keys.ends("two") <= 1200
    assert keys.client.pttl(keys.lock) > LEASE - 1500
    keys.share("beside", limit=3, lease=500)  # whose end is the last of those known
    assert keys.renew("two", 0)[0] > LEASE - 1500
    assert LEASE - 1500 < keys.ends("two") <= LEASE
    assert keys.end() - keys.now() > LEASE - 1500
    assert keys.client.hget(keys.permits, digest("two")).split(" ", 2)[2] == f"- {sharing(1)}"
