"""Permits: what they leave behind, whose turn it is, and what other programs have written."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from django_redis_lock.transport.packing import (
    ACQUIRE,
    ACQUIRE_SHARED,
    INSPECT,
    RELEASE_SHARED,
    RENEW,
    SET_LIMIT,
)
from tests.transport.scripts import CHANNEL, LEASE, RECORD, Keys, listening


def record(limit: int | None, rest: str = RECORD) -> str:
    return f'{{"limit":{"null" if limit is None else limit},{rest[1:]}'


class Permits(Keys):
    """The keys of a lock that several hold."""

    def share(
        self, token: str, *more: str, lease: int = LEASE, limit: int | None = 2, channel: str = ""
    ) -> Any:
        arguments = (token, lease, record(limit), self.name, channel, *more)
        return self.call(ACQUIRE_SHARED, self.all, *arguments)

    def give_up(self, token: str, *more: str) -> Any:
        return self.call(RELEASE_SHARED, self.all, token, self.name, *(more or [""]))

    def set_limit(self, limit: int | str) -> None:
        assert self.call(SET_LIMIT, self.all, self.name, limit, "ann") == 1

    @property
    def holders(self) -> set[str]:
        """The tokens of the permits, of which both keys must know."""
        tokens = set(self.client.zrange(self.lock, 0, -1))
        assert tokens == set(self.client.hkeys(self.permits))
        return tokens

    def ends(self, token: str) -> float:
        """Return when a permit ends, in ms from now."""
        return float(self.client.zscore(self.lock, token)) - self.now()

    def expire(self, *tokens: str, ago: int = 10) -> None:
        """Let permits have ended."""
        self.client.zadd(self.lock, dict.fromkeys(tokens, self.now() - ago))

    def unclaimed(self, token: str, due: int, channel: str = CHANNEL, limit: int = 2) -> None:
        """Write a permit as it is after a hand-off whose claim is due in so many ms."""
        until = self.now() + due
        mark = f'"unclaimed":"{until} {LEASE} {channel}",'
        fence = 7 + self.client.hlen(self.permits)
        self.client.hset(self.permits, token, f"{fence} {{{mark}{record(limit)[1:]}")
        self.client.zadd(self.lock, {token: until})


@pytest.fixture
def permits(client: redis.Redis, name: str) -> Permits:
    return Permits(client, name)


# What is left behind.


def test_the_keys_last_as_long_as_the_last_permit(permits: Permits) -> None:
    """However the others end, and whichever was given first."""
    permits.share("short", lease=5_000, limit=None)
    permits.share("long", lease=50_000, limit=None)
    permits.share("middle", lease=20_000, limit=None)

    def check(seconds: int) -> None:
        for key in (permits.lock, permits.permits):
            assert seconds * 1000 - 1000 < permits.client.pttl(key) <= seconds * 1000 + 1
        assert seconds * 1000 - 1000 < permits.end() - permits.now() <= seconds * 1000

    check(50)
    assert permits.give_up("long") == 1
    check(20)
    assert permits.renew("short", 30_000) == [30_000]
    check(30)
    assert permits.renew("short", 10_000) == [10_000]
    check(20)
    assert permits.force("middle") == 1
    check(10)
    assert permits.give_up("short") == 1
    assert permits.client.exists(permits.lock, permits.permits) == 0
    assert permits.end() is None


@pytest.mark.parametrize("how", ["give_up", "force", "take_over"])
def test_a_permit_without_end_leaves_nothing(permits: Permits, how: str) -> None:
    """Another program would otherwise be kept out for good."""
    permits.share("endless")
    permits.share("other", lease=5_000)
    assert permits.renew("endless", -1) == [-1]
    assert permits.client.pttl(permits.lock) == permits.client.pttl(permits.permits) == -1
    assert permits.end() == float("inf")
    assert permits.renew("endless", 0) == [-1]
    if how == "take_over":
        assert permits.take_over("heir", "endless", 4_000, record(2))
    else:
        assert getattr(permits, how)("endless") == 1
    assert permits.client.pttl(permits.lock) <= 5_001
    assert permits.client.pttl(permits.permits) <= 5_001
    assert permits.end() <= permits.now() + 5_000


@pytest.mark.parametrize("how", ["give_up", "force", "set_limit"])
def test_a_dead_writer_does_not_get_what_readers_leave(permits: Permits, how: str) -> None:
    """The lock is free then, and not held by a waiter whom no message reaches."""
    permits.share("one")
    permits.wait(("nobody", "dead"))
    if how == "set_limit":
        permits.expire("one")
        permits.set_limit(3)
    else:
        assert getattr(permits, how)("one") == 1
    assert permits.client.exists(permits.lock, permits.queue, permits.permits) == 0
    assert permits.end() is None


def test_a_dead_reader_leaves_no_permit(permits: Permits) -> None:
    permits.share("one", limit=None, lease=5_000)
    permits.wait(("nobody", "dead"), ("@poll:5000:1", "two"), record=record(None))
    assert permits.call(SET_LIMIT, permits.all, permits.name, "", "") == 1
    assert permits.holders == {"one", "two"}
    assert permits.give_up("two", "", "1") == 1
    assert permits.client.pttl(permits.lock) <= 5_001
    assert permits.end() <= permits.now() + 5_000


def test_ended_permits_are_removed_while_others_live(permits: Permits) -> None:
    """Though a semaphore is never idle and never full."""
    permits.share("lives", limit=1000)
    permits.share("dead", limit=1000)
    permits.expire("dead")
    for number in range(400):
        permits.share(f"{number}", limit=1000)
        permits.give_up(f"{number}")
    assert permits.holders == {"lives"}


def test_a_hold_of_a_waiter_is_listed_to_its_end(permits: Permits) -> None:
    """Though the claim of its permit is due much earlier."""
    permits.share("one", limit=1)
    permits.wait((CHANNEL, "two"), record=record(1))
    with listening(permits.client, CHANNEL) as messages:
        permits.give_up("one")
        ((_, message),) = messages()
    assert message.split()[:2] == ["grant", "two"]
    assert 0 < permits.ends("two") <= 1200
    permits.share("beside", limit=3, lease=500)  # whose end is the last of those known
    assert permits.renew("two", 0)[0] > LEASE - 1000
    assert LEASE - 1000 < permits.ends("two") <= LEASE
    assert permits.end() - permits.now() > LEASE - 1000
    assert permits.client.hget(permits.permits, "two").split(" ", 1)[1] == record(1)


def test_a_permit_whose_record_is_lost(permits: Permits) -> None:
    """As one that a full server has evicted: it is none, and its end counts for nobody."""
    permits.share("one", lease=5_000)
    permits.share("two")
    permits.renew("two", -1)
    permits.client.delete(permits.permits)
    assert permits.renew("two", LEASE) == [-2]
    assert permits.client.zrange(permits.lock, 0, -1) == ["one"]
    assert permits.client.pttl(permits.lock) <= 5_001
    assert permits.share("one", "0", channel=CHANNEL) > 0
    permits.client.hdel(permits.permits, "one")
    assert permits.share("three") > 0
    permits.expire("one")
    assert permits.acquire("four").startswith("-")
    assert permits.holders == {"three"}


def test_who_claims_a_permit_lets_others_in(permits: Permits) -> None:
    """Those for whom there is room since a lease has ended: nobody else would see that."""
    permits.share("one", limit=3)
    permits.unclaimed("two", due=1_000, limit=3)
    permits.wait(("@poll:5:1", "three"), record=record(2))
    permits.expire("one")
    assert len(permits.share("two", "0", limit=3, channel=CHANNEL).split()) == 3
    assert permits.holders == {"two", "three"}
    assert permits.waiting() == []


# Sent twice.


def test_a_permit_that_is_asked_for_again(permits: Permits) -> None:
    """As after a lost reply: it counts once, with the lease that it has if there is no other."""
    fence = permits.share("one")
    assert permits.share("one", lease=90_000).split()[0] == str(fence)
    assert permits.ends("one") <= LEASE
    permits.share("two")
    assert permits.holders == {"one", "two"}
    permits.renew("one", 3_000)
    fence, ttl, _ = permits.share("one", str(permits.now()), lease=LEASE).split()
    assert permits.client.hget(permits.permits, "one").split()[0] == fence
    assert int(ttl) <= 3_000
    assert permits.give_up("one") == 1
    assert permits.give_up("one") == 0
    assert permits.holders == {"two"}


def test_a_downgrade_that_is_sent_again(permits: Permits) -> None:
    """The hold stays one, beside those who were let in meanwhile."""
    permits.acquire("one")
    permits.wait(("@poll:5000:1", "two"), record=record(None))
    permits.wait(("@poll:5000:1", "three"))
    first = permits.take_over("one", "one", record=record(None))
    assert permits.holders == {"one", "two"}
    assert permits.take_over("one", "one", record=record(None)) > first
    assert permits.holders == {"one", "two"}
    assert permits.waiting() == ["three"]
    assert permits.take_over("one", "one", record=RECORD) is None
    assert permits.take_over("four", "two", record=RECORD) is None


def test_a_waiter_that_is_in_the_queue_twice(permits: Permits) -> None:
    """Under a former channel as well: its permit stays its own, and room is left to others."""
    permits.share("one", limit=4)
    waiters = [
        (each, token) for token in ("two", "three") for each in ("@poll:5000:1", "@poll:6000:1")
    ]
    permits.wait(*waiters, record=record(4))
    permits.set_limit(4)
    assert permits.holders == {"one", "two", "three"}
    permits.renew("two", LEASE)
    permits.wait(("@poll:5000:1", "two"), ("nobody", "two"), record=record(4))
    permits.give_up("three")
    assert permits.ends("two") > 2_000
    assert permits.holders == {"one", "two"}
    assert permits.waiting() == []


# Whose turn it is.


def test_those_who_wait_go_before_newcomers(permits: Permits) -> None:
    """Also if there is room, while somebody waits for the lock alone."""
    permits.share("one", limit=9)
    kind = permits.acquire("two", CHANNEL).split()[3]
    assert kind == "1"
    for more in ((), ("0",)):
        assert permits.share("three", *more, limit=9, channel="").split()[3] == "0"
    minus_fence, ttl, _, kind = permits.share("three", limit=None, channel=CHANNEL).split()
    assert -int(minus_fence) == int(permits.client.get(permits.fence))
    assert (LEASE - 1000 < int(ttl) <= LEASE, kind) == (True, "1")
    assert permits.waiting() == ["two", "three"]


def test_who_waits_knows_of_the_first_end(permits: Permits) -> None:
    for token, lease in (("one", 20_000), ("two", 4_000), ("three", 9_000)):
        permits.share(token, lease=lease, limit=3)
    assert 3_000 < int(permits.share("four", limit=3, channel=CHANNEL).split()[1]) <= 4_000
    assert 3_000 < int(permits.acquire("five", CHANNEL).split()[1]) <= 4_000
    for token in ("one", "two", "three"):
        permits.renew(token, -1)
    assert permits.share("four", limit=3, channel=CHANNEL).split()[1] == "-1"


def test_a_paused_queue_keeps_its_order(permits: Permits) -> None:
    """The lock is free, and its waiters stay, also a single one, and also with slow pollers."""
    permits.set_limit(0)
    for number, token in enumerate(("one", "two"), 1):
        answer = permits.share(token, channel="@poll:20000:1").split()
        assert (answer[1], answer[3]) in {("-2", "1"), ("-1", "1")}
        assert len(permits.waiting()) == number
        permits.set_limit(0)
        assert 15_000 < permits.client.pttl(permits.queue) <= 20_000
    assert permits.share("one", "0", channel="@poll:20000:1").split()[3] == "2"
    assert permits.waiting() == ["one", "two"]
    assert 15_000 < permits.client.pttl(permits.queue) <= 20_000
    assert permits.client.exists(permits.lock) == 0
    limit, at, by = permits.client.hget(permits.limits, permits.name).split()
    assert (limit, by) == ("0", "ann")
    assert abs(permits.now() - int(at)) < 5_000
    permits.set_limit("")
    assert permits.holders == {"one", "two"}
    assert permits.client.exists(permits.limits) == 0


def test_permits_that_were_not_claimed_go_on(permits: Permits) -> None:
    """Their waiters return to the head of the queue in order, and those who are awake get in.

    Who was silent for too long is dropped, and keeps nobody out. Who was not heard lately waits on.
    """
    now = permits.now()
    permits.share("one", limit=3)
    for number, token in enumerate(("two", "three")):
        permits.unclaimed(token, due=number - 100, channel=f"@poll:5:{number}", limit=3)
    permits.wait(("gone", "writer"))
    permits.wait((CHANNEL, "four"), ("@poll:5:8", "quiet"), ("@poll:5:9", "five"), record=record(3))
    permits.client.zadd(permits.heard, {CHANNEL: now, "@poll:5:9": now, "gone": 5_500 - now})
    answer = permits.share("four", "0", limit=3, channel=CHANNEL)
    assert len(answer.split()) == 3
    assert permits.holders == {"one", "four", "five"}
    assert permits.waiting() == ["two", "three", "quiet"]
    silent = permits.client.zrange(permits.heard, "-inf", 0, byscore=True)
    assert set(silent) == {"@poll:5:0", "@poll:5:1", "@poll:5:8", "gone"}
    assert permits.renew("two", LEASE) == [-2]


def test_a_permit_is_given_back_unless_it_was_claimed(permits: Permits) -> None:
    """As by a waiter that gives up at the moment of its grant, whoever then has the lock."""
    permits.share("one")
    assert permits.give_up("one", "", "1") == 0
    permits.unclaimed("two", due=1000)
    assert permits.give_up("two", "", "1") == 1
    assert permits.holders == {"one"}
    permits.wait((CHANNEL, "writer"))
    entry = permits.client.lindex(permits.queue, 0)
    assert permits.release("writer", entry) == 0
    assert permits.waiting() == []
    assert permits.release("one") == 1  # a hold that was downgraded without an answer
    assert permits.client.exists(permits.lock) == 0


def test_who_waited_before_is_not_refused(permits: Permits) -> None:
    """Though as many wait by now as may; only a newcomer is."""
    permits.acquire("one")
    ask = ("two", LEASE, RECORD, permits.name, CHANNEL)
    for asked, kind in (("", "1"), ("", "2"), ("0", "2")):
        assert permits.call(ACQUIRE, permits.all, *ask, asked, "1").split()[3] == kind
    assert permits.call(ACQUIRE, permits.all, "three", *ask[1:], "", "1").split()[3] == "0"
    permits.client.delete(permits.queue)
    permits.wait((CHANNEL, "four"))
    assert permits.call(ACQUIRE, permits.all, "five", *ask[1:], "", "1").split()[3] == "0"
    assert permits.call(ACQUIRE, permits.all, *ask, "0", "1").split()[3] == "1"


@pytest.mark.parametrize(("first", "kind"), [("gone", "1"), ("other", "0")])
def test_the_dead_do_not_count(permits: Permits, first: str, kind: str) -> None:
    """A living process whose waiter is the first drops them; until then, they count."""
    permits.acquire("one")
    now = permits.now()
    permits.client.zadd(permits.heard, {"other": now, CHANNEL: now, "gone": now - 5_500})
    permits.wait((first, "two"), (CHANNEL, "three"), ("gone", "four"))
    ask = ("five", LEASE, RECORD, permits.name, CHANNEL, "", "2")
    assert permits.call(ACQUIRE, permits.all, *ask).split()[3] == kind
    assert permits.waiting() == ["two", "three", "four", *["five"] * (kind == "1")]


def test_short_leases_are_told_once(permits: Permits) -> None:
    """However many readers get the lock together, who waits behind them looks once."""
    permits.acquire("one")
    readers = [(CHANNEL, f"reader-{number}") for number in range(5)]
    permits.wait(*readers, lease=500, record=record(None))
    permits.wait(("other", "writer"))
    with listening(permits.client, CHANNEL, "other") as messages:
        permits.release("one")
        told = messages()
    assert len(permits.holders) == 5
    assert [text for channel, text in told if channel == "other"] == [f"look {permits.name}"]
    assert sum(text.startswith("grant ") for _, text in told) == 5


# Other programs.


def test_a_lock_of_another_program(permits: Permits) -> None:
    """``SET NX PX`` excludes those who share the lock, and is excluded by them."""
    assert permits.client.set(permits.lock, "foreign", nx=True, px=LEASE)
    assert permits.share("one", channel=CHANNEL).split()[3] == "4"
    assert permits.take_over("two", "other", record=record(None)) is None
    permits.client.delete(permits.lock)
    assert permits.share("one", "0", channel=CHANNEL).split()[0].isdigit()
    assert not permits.client.set(permits.lock, "foreign", nx=True, px=LEASE)
    permits.give_up("one")
    assert permits.client.set(permits.lock, "foreign", nx=True, px=LEASE)


@pytest.mark.parametrize("kind", ["list", "hash"])
def test_what_is_no_lock(permits: Permits, kind: str) -> None:
    """It is left alone: an error for who asks for it, no lock for those who renew and list."""
    if kind == "list":
        permits.client.rpush(permits.lock, "foreign")
    else:
        permits.client.hset(permits.lock, "foreign", "1")
    for ask in (permits.share, permits.acquire, permits.release):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            ask("one")
    assert permits.give_up("one") == 0
    assert permits.renew("one", LEASE) == [-2]
    assert permits.client.type(permits.lock) == kind


def test_foreign_data_beside_the_permits(permits: Permits) -> None:
    """No limit, no record: the permits themselves are known."""
    permits.client.set(permits.limits, "foreign")
    assert isinstance(permits.share("one"), int)
    permits.client.delete(permits.permits)
    permits.client.set(permits.permits, "foreign")
    assert permits.renew("one", 9_000) == [9_000]
    before_name = len(permits.lock) - len("lock")
    own = [permits.lock, permits.queue, permits.permits]
    answer = permits.call(INSPECT, [permits.heard, permits.limits, *own], before_name, "")
    limit, (token, _), rest = answer[1]
    assert (limit, token, rest) == (None, "one", [])
    both = [permits.index, *own, f"{permits.name}:2", f"{permits.name}:3", f"{permits.name}:4"]
    permits.client.set(f"{permits.name}:2", f"two 7 {RECORD}", px=LEASE)
    arguments = (permits.name, "one", 8_000, "other", "two", 7_000)
    assert permits.call(RENEW, both, *arguments) == [8_000, 7_000]


@pytest.mark.parametrize("limit", ["", "many", "-3 1 ann", "1"])
def test_a_limit_that_another_program_has_written(permits: Permits, limit: str) -> None:
    """It counts if it begins with a number."""
    permits.client.hset(permits.limits, permits.name, limit)
    permits.share("one")
    assert isinstance(permits.share("two"), int) is (limit != "1")
