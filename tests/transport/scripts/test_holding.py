"""Claiming, renewing, releasing, and what operators do to a holder."""

from __future__ import annotations

import pytest

from django_redis_lock.transport.packing import CLAIM, RENEW
from tests.transport.scripts import LEASE, PROCESS, READER, RECORD, Keys, digest, sharing

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


@pytest.mark.parametrize("how", ["renew", "take_over"])
def test_waiters_are_told_of_a_lease_that_ends_sooner(keys: Keys, how: str) -> None:
    keys.hold("one")
    keys.wait(READER, "two")
    keys.client.zadd(keys.due, {keys.name: keys.now() + LEASE})
    assert keys.renew("one", 500) if how == "renew" else keys.take_over("heir", "one", lease=500)
    assert keys.client.lrange(keys.key("inbox", READER), 0, -1) == ["due 500"]
    assert keys.client.zscore(keys.due, keys.name) <= keys.now() + 500


# Releasing.


@pytest.mark.parametrize("token", ["two", "on", "one-more"])
def test_a_release_of_another_token(keys: Keys, token: str) -> None:
    """The caller only leaves the waiters."""
    keys.hold("one")
    keys.wait(PROCESS, "zero", token, "three")
    assert keys.release(token) == 0
    assert keys.waiting() == ["zero", token, "three"]
    for mine in (token, "zero"):
        assert keys.release(mine, f"{PROCESS} {digest(mine)} {LEASE} {RECORD}") == 0
    assert keys.waiting() == ["three"]
    assert keys.client.hgetall(keys.tokens(PROCESS)) == {digest("three"): "three"}
    assert keys.holder == "one"


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
