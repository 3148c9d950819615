"""Several locks at once."""

from __future__ import annotations

from typing import Any

import pytest

from django_redis_lock.transport.scripts import ACQUIRE_MANY, RELEASE_MANY
from tests.transport.scripts import CHANNEL, LEASE, Keys, listening

Locks = list[Keys]


@pytest.fixture
def three(keys: Keys) -> Locks:
    """Three locks with the index and the last fence in common."""
    found = [Keys(keys.client, f"{keys.name}-{i}") for i in range(3)]
    for each in found:
        each.index, each.fence, each.heard = keys.index, keys.fence, keys.heard
    return found


def keys_of(locks: Locks) -> list[str]:
    first = locks[0]
    others = [part for each in locks[1:] for part in (each.lock, each.queue)]
    return [first.lock, first.queue, first.index, first.fence, first.heard, *others]


def acquire(locks: Locks) -> Any:
    arguments = [
        part
        for i, each in enumerate(locks)
        for part in (f"token-{i}", LEASE + i, f'{{"number":{i}}}', each.name)
    ]
    return locks[0].call(ACQUIRE_MANY, keys_of(locks), *arguments)


def release(locks: Locks) -> Any:
    arguments = [part for i, each in enumerate(locks) for part in (f"token-{i}", each.name)]
    return locks[0].call(RELEASE_MANY, keys_of(locks), *arguments)


def holders(locks: Locks) -> list[str | None]:
    return [each.holder for each in locks]


TAKEN = ["token-0", "token-1", "token-2"]


def test_all_are_free(three: Locks) -> None:
    answer = list(map(int, acquire(three).split()))
    fences, leases = answer[::2], answer[1::2]
    assert leases == [LEASE, LEASE + 1, LEASE + 2]
    assert fences == sorted(set(fences))
    for i, (each, fence) in enumerate(zip(three, fences, strict=True)):
        assert each.client.get(each.lock) == f'token-{i} {fence} {{"number":{i}}}'
        assert LEASE - 1000 < each.client.pttl(each.lock) <= LEASE + i
        assert fence // 1000 + LEASE - 1 <= each.end() <= fence // 1000 + LEASE + i


def test_the_holder_asks_again(three: Locks) -> None:
    """An earlier sending took them, or some of them."""
    first = acquire(three).split()
    three[1].client.delete(three[1].lock)
    again = acquire(three).split()
    assert again[0::4] == first[0::4]
    assert int(again[2]) > int(first[2])
    assert all(LEASE - 1000 < int(ttl) <= LEASE + 2 for ttl in again[1::2])
    three[0].client.persist(three[0].lock)
    assert acquire(three).split()[1] == "-1"


@pytest.mark.parametrize(("number", "before"), [(0, []), (1, [0]), (2, [0, 1])])
def test_one_is_held(three: Locks, number: int, before: list[int]) -> None:
    """None is taken, and the first that another holds is named."""
    three[number].hold("other")
    three[2].hold("other")
    assert acquire(three) == number + 1
    assert [each.holder for each in three if each.holder] == ["other"] * len({number, 2})
    assert all(each.end() is None for each in three)


def test_what_an_earlier_sending_took_is_given_back(three: Locks) -> None:
    """And goes to those who wait for it."""
    acquire(three)
    three[2].hold("other")
    three[0].wait((CHANNEL, "waiter"))
    with listening(three[0].client, CHANNEL) as messages:
        assert acquire(three) == 3
        assert [text.split()[-1] for _, text in messages()] == [three[0].name]
    assert holders(three) == ["waiter", None, "other"]
    assert three[1].end() is None


def test_waiters_of_a_free_lock_go_first(three: Locks) -> None:
    three[1].wait(("@poll:500:1", "waiter"))
    assert acquire(three) == 2
    assert holders(three) == [None, "waiter", None]
    assert three[1].end() is not None
    three[1].hand_off("waiter", due=1000, channel="@poll:500:1")
    assert acquire(three) == 2


def test_dead_waiters_of_a_free_lock_do_not(three: Locks) -> None:
    three[1].wait(("nobody", "waiter"))
    assert isinstance(acquire(three), str)
    assert holders(three) == TAKEN
    assert three[1].waiting() == []


def test_dead_waiters_leave_a_free_lock_free(three: Locks) -> None:
    """If another lock is held, the lock that they waited for is not written for them."""
    three[0].wait(("nobody", "waiter"))
    three[1].hold("other")
    assert acquire(three) == 2
    assert holders(three) == [None, "other", None]
    assert three[0].end() is None


def test_a_lock_that_was_not_claimed_in_time(three: Locks) -> None:
    """It is taken back; those who wait for it go first."""
    three[1].hand_off("waiter", due=-1)
    assert isinstance(acquire(three), str)
    assert holders(three) == TAKEN
    assert three[0].client.zrange(three[0].heard, 0, -1) == [CHANNEL]
    assert three[0].client.zpopmin(three[0].heard)[0][1] < 0
    three[1].hand_off("waiter", due=-1)
    three[1].wait(("@poll:500:1", "next"), record=f'{{"since":{three[1].now()}}}')
    assert acquire(three) == 2
    assert three[1].holder == "next"


def test_a_grant_that_crossed_is_kept(three: Locks) -> None:
    """Whoever holds a lock that was handed off to it need not claim it first."""
    three[1].hand_off("token-1", due=-1)
    assert isinstance(acquire(three), str)
    assert holders(three) == TAKEN
    assert three[0].client.zcard(three[0].heard) == 0


@pytest.mark.parametrize(("last", "pruned"), [(12, False), (13, True), (15, True), (16, False)])
def test_each_sixteenth_fence_prunes_the_index(three: Locks, last: int, pruned: bool) -> None:
    first = three[0]
    later = (first.now() + 3_600_000) * 1000 // 16 * 16 + last
    first.client.set(first.fence, later)
    first.client.zadd(first.index, {"expired": 1})
    answer = acquire(three).split()
    assert list(map(int, answer[::2])) == [later + 1, later + 2, later + 3]
    assert (first.client.zscore(first.index, "expired") is None) is pruned


def test_releasing(three: Locks) -> None:
    acquire(three)
    three[1].hold("other")
    three[2].wait((CHANNEL, "waiter"))
    with listening(three[0].client, CHANNEL) as messages:
        assert release(three) == [1, 0, 1]
        assert [text.split()[-1] for _, text in messages()] == [three[2].name]
    assert holders(three) == [None, "other", "waiter"]
    assert three[0].end() is None
    assert None not in (three[1].end(), three[2].end())
    assert release(three) == [0, 0, 0]
