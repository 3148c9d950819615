"""Claiming, renewing, releasing, and what operators do to a holder."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from django_redis_lock.transport.packing import CLAIM, RENEW
from tests.transport.scripts import LEASE, OTHER, PROCESS, RECORD, Keys, digest, place, sharing

# Claiming without waiting for the answer.


def test_a_claim(keys: Keys) -> None:
    """The lease ends when the grant has said."""
    keys.hand_off("one", due=1000)
    end = keys.now() + LEASE
    for token, fence in (("two", 7), ("one", 8), ("one", "")):
        assert keys.call(CLAIM, [keys.lock], token, fence, end) == 0
    assert ":" in keys.client.get(keys.lock).split()[2]
    assert keys.call(CLAIM, [keys.lock], "one", 7, end) == 1
    assert keys.client.get(keys.lock) == f"one 7 - {RECORD}"
    assert keys.client.pexpiretime(keys.lock) == end
    assert keys.call(CLAIM, [keys.lock], "one", 7, end + 1000) == 0
    assert keys.client.pexpiretime(keys.lock) == end


# Renewing.


def test_a_renewal_without_end(keys: Keys) -> None:
    """Once more it writes, too, so that a caller can wait for replicas."""
    keys.hold("one", 5000)
    written = -1
    for _ in range(2):
        assert keys.renew("one", -1) == [-1]
        before, written = written, keys.client.info("persistence")["rdb_changes_since_last_save"]
        assert written > before
    assert keys.client.pttl(keys.lock) == -1
    assert keys.end() == float("inf")


def test_the_waiters_of_each_lock_are_told_of_its_end(keys: Keys) -> None:
    """Once, and only of one within a second that is sooner than they know."""
    other = Keys(keys.client, keys.prefix, "other")
    for each, process in ((keys, PROCESS), (other, OTHER)):
        each.hold("one")
        each.wait(process, "two")
    all_keys = [keys.index, keys.seen, *keys.own, *other.own]
    for lease, told in ((900, True), (900, False), (5000, False)):
        with keys.listening(PROCESS, OTHER) as messages:
            arguments = (keys.name, "one", lease, other.name, "one", lease)
            assert keys.call(RENEW, all_keys, *arguments) == [lease, lease]
            found = [(PROCESS, "due 900"), (OTHER, "due 900")] if told else []
            assert messages() == found
    ends = [keys.client.zscore(keys.due, each.name) for each in (keys, other)]
    assert all(0 < end - keys.now() <= 900 for end in ends)


@pytest.mark.parametrize(
    ("before", "lease", "left"),
    [
        (5000, "0", 5000),
        (None, "0", -1),
        (5000, "+4000", 5000),
        (5000, "+6000", 6000),
        (None, "+6000", -1),
    ],
)
def test_a_renewal_that_only_checks_or_extends(
    keys: Keys, before: int | None, lease: str, left: int
) -> None:
    keys.hold("one", before)
    (answer,) = keys.renew("one", lease)
    assert left - 1000 < answer <= left
    assert left - 1000 < keys.client.pttl(keys.lock) <= left
    assert (keys.end() is None) is (left != 6000)


def test_renewals_of_what_is_not_held(keys: Keys) -> None:
    """They are lost, and no reason to lose the others."""
    names = ("other", "longer", "list", "free", "mine")
    other, longer, a_list, free, mine = locks = [
        Keys(keys.client, keys.prefix, name) for name in names
    ]
    other.hold("two")
    longer.hold("one-more")
    keys.client.lpush(a_list.lock, "one 7 - ")
    mine.hold("one")
    arguments = [part for name in names for part in (name, "one", LEASE)]
    own = [key for lock in locks for key in lock.own]
    answer = keys.call(RENEW, [keys.index, keys.seen, *own], *arguments)
    assert answer == [-2, -2, -2, -2, LEASE]
    assert keys.client.zrange(keys.index, 0, -1) == ["mine"]
    assert keys.client.exists(free.lock) == 0


def test_a_renewal_where_the_index_is_another_programs(keys: Keys) -> None:
    keys.client.set(keys.index, "foreign")
    keys.hold("one", 5000)
    assert keys.renew("one", LEASE) == [LEASE]
    assert keys.renew("one", -1) == [-1]


@pytest.mark.parametrize(("due", "left"), [(200, LEASE), (-LEASE, -2)])
def test_a_renewal_claims(keys: Keys, due: int, left: int) -> None:
    keys.hand_off("one", due)
    assert keys.renew("one", LEASE) == [left]
    assert (":" in keys.client.get(keys.lock).split()[2]) is (left < 0)


# Releasing.


@pytest.mark.parametrize("token", ["two", "on", "one-more"])
def test_a_release_of_another_token(keys: Keys, token: str) -> None:
    """The caller only leaves the waiters."""
    keys.hold("one")
    keys.wait(PROCESS, "zero", token, "three")
    assert keys.release(token) == 0
    assert keys.waiting() == ["zero", token, "three"]
    for mine in (token, "zero"):
        assert keys.release(mine, place(mine)) == 0
    assert keys.waiting() == ["three"]
    assert keys.client.hgetall(keys.tokens(PROCESS)) == {digest("three"): "three"}
    keys.release("three", place("three"))
    assert keys.client.exists(keys.queue, keys.waiters(PROCESS), keys.tokens(PROCESS)) == 0
    assert keys.holder == "one"


@pytest.mark.parametrize("claimed", [True, False])
def test_a_release_of_what_was_not_claimed(keys: Keys, claimed: bool) -> None:
    """As a waiter does that gives up at the moment of its grant."""
    if claimed:
        keys.hold("one")
    else:
        keys.hand_off("one", due=1000)
    assert keys.release("one", "", "1") == int(not claimed)
    assert keys.holder == ("one" if claimed else None)


def test_a_release_by_a_user_who_may_not_read(keys: Keys, without: Callable[[str], Keys]) -> None:
    """It is an error, and no loss."""
    keys.hold("one", 5000)
    with pytest.raises(redis.ResponseError):
        without("get").release("one")
    assert keys.release("one") == 1


# Operators.


@pytest.mark.parametrize("held", [True, False])
def test_a_forced_release_of_another_token(keys: Keys, held: bool) -> None:
    """An earlier sending may have released the lock, which its entry tells."""
    if held:
        keys.hold("two")
    assert keys.force("one") is None
    assert keys.force("one", sent_before=True) is None
    keys.client.xadd(keys.audit, {"event": "forced", "why": "other"})
    assert keys.force("one", sent_before=True) is None
    keys.client.xadd(keys.audit, {"event": "forced", "why": "stuck"})
    for _ in range(199):
        keys.client.xadd(keys.audit, {"event": "other"})
    assert keys.force("one") is None
    assert keys.force("one", sent_before=True) == 1
    keys.client.xadd(keys.audit, {"event": "other"})
    assert keys.force("one", sent_before=True) is None
    assert keys.holder == ("two" if held else None)


def test_a_forced_release_that_could_not_be_noted_after_all(keys: Keys) -> None:
    """The answer says so."""
    keys.acquire("one")
    assert keys.force("one", most=-1) == 2
    assert keys.holder is None


def test_taking_over(keys: Keys) -> None:
    """Before the waiters, who are told if the new lease ends sooner than they know."""
    keys.acquire("one")
    keys.wait(PROCESS, "three")
    with keys.listening(PROCESS) as messages:
        fence = keys.take_over("two", "one")
        assert messages() == []
        assert keys.client.get(keys.lock) == f"two {fence} - {RECORD}"
        assert keys.take_over("two", "one", lease=900) > fence
        assert messages() == [(PROCESS, "due 900")]
        assert 0 < keys.client.pttl(keys.lock) <= 900
        assert keys.end() <= keys.now() + 900
        keys.hold("four", 400)
        assert keys.take_over("five", "four", lease=900)
        assert messages() == []
    assert keys.waiting() == ["three"]


@pytest.mark.parametrize("last", ["9", None, "foreign"])
@pytest.mark.parametrize("record", [RECORD, sharing(2)])
def test_only_asking_for_a_takeover(keys: Keys, last: str | None, record: str) -> None:
    """It writes what is there, for replicas to acknowledge; the holder keeps the lock."""
    keys.hold("one")
    keys.last(last)
    assert keys.take_over("two", "one", record, "ask") == 1
    assert keys.take_over("two", "zero", record, "ask") is None
    assert keys.holder == "one"
    assert keys.client.get(keys.fence) == ("9" if last == "9" else "0")
