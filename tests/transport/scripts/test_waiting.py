"""Acquiring, waiting, handing off, claiming and taking back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_redis_lock.transport.packing import ACQUIRE
from tests.transport.scripts import CHANNEL, LEASE, RECORD, Keys, listening

# A free lock.


@pytest.mark.parametrize(("last", "counts"), [(2**53 - 1, True), (2**53, False)])
def test_the_last_fence_counts_as_far_as_numbers_are_exact(
    keys: Keys, last: int, counts: bool
) -> None:
    keys.client.set(keys.fence, last)
    before = keys.now()
    fence = keys.acquire("one")
    assert fence == last + 1 if counts else before <= fence // 1000 <= keys.now()
    assert keys.client.get(keys.fence) == str(fence)
    assert keys.client.get(keys.lock).split()[1] == str(fence)


@pytest.mark.parametrize(("last", "pruned"), [(14, False), (15, True), (16, False)])
def test_each_sixteenth_fence_prunes_the_index(keys: Keys, last: int, pruned: bool) -> None:
    """Names of locks whose leases ran out go then, 32 at most."""
    now = keys.now()
    later = (now + 3_600_000) * 1000 // 16 * 16 + last
    keys.client.set(keys.fence, later)
    keys.client.zadd(keys.index, {f"expired {i}": now - 100 + i for i in range(40)})
    assert keys.acquire("one") == later + 1
    left = keys.client.zrange(keys.index, 0, -1)
    assert left == [*(f"expired {i}" for i in range(32 if pruned else 0, 40)), keys.name]


# A lock that is held.


@pytest.mark.parametrize(("holder", "kind"), [("one 7 {}", 0), ("of another program", 3)])
def test_a_lock_that_is_held(keys: Keys, holder: str, kind: int) -> None:
    """The answer tells for how long, whether the caller is in the queue, and who holds it."""
    keys.client.set(keys.lock, holder, px=LEASE)
    for channel, more in (("", 0), (CHANNEL, 1), (CHANNEL, 2)):
        before = keys.now()
        minus_fence, ttl, now, answer = map(int, keys.acquire("two", channel).split())
        assert (minus_fence, answer) == (0 if kind else -7, kind + more)
        assert LEASE - 1000 < ttl <= LEASE
        assert before <= now <= keys.now()
    assert keys.client.lrange(keys.queue, 0, -1) == [f"{CHANNEL} two {LEASE} {RECORD}"]
    assert 9_000 < keys.client.pttl(keys.queue) <= 10_000


def test_the_name_of_a_queue_is_known_until_it_expires(keys: Keys) -> None:
    """A new name removes up to 32 whose queues have expired. Who is turned away adds none."""
    now, client = keys.now(), keys.client
    keys.hold("one")
    client.zadd(keys.queues, {f"expired {i}": now - 100 + i for i in range(40)})
    assert keys.acquire("two", CHANNEL, LEASE, "", "0").endswith(" 0")
    assert client.zcard(keys.queues) == 40
    for _ in range(2):
        keys.acquire("two", CHANNEL)
    assert client.zcard(keys.queues) == 9
    assert 10_000 <= client.zscore(keys.queues, keys.name) - now < 20_000
    assert 0 < client.ttl(keys.queues) <= 120
    client.set(keys.queues, "of another program")
    assert keys.acquire("three", CHANNEL).endswith(" 1")


@pytest.mark.parametrize("last", ["9", None])
@pytest.mark.parametrize("for_replicas", [True, False])
def test_the_holder_asks_again(keys: Keys, last: str | None, for_replicas: bool) -> None:
    """Its lease stays; a caller that waits for replicas has a write of its own to wait for."""
    keys.hold("one")
    if last:
        keys.client.set(keys.fence, last)
    fence, ttl, _ = keys.acquire("one", "", 5000, *["", "", "1"] * for_replicas).split()
    assert fence == "7"
    assert LEASE - 1000 < int(ttl) <= LEASE
    assert keys.client.get(keys.fence) == (last or ("7" if for_replicas else None))
    assert keys.end() is None


def test_a_process_that_waits_on_is_heard(keys: Keys) -> None:
    """Notes about processes that were heard a minute ago go then, 32 at most."""
    keys.acquire("one")
    keys.acquire("two", CHANNEL)
    before = keys.now()
    keys.client.zadd(keys.heard, {f"gone {i}": before - 61_000 + i for i in range(33)})
    keys.client.zadd(keys.heard, {"lately": before - 50_000, "silent": -1})
    for left in ({"lately", "silent", "gone 32"}, {"lately", "silent"}):
        keys.acquire("two", CHANNEL)
        notes = dict(keys.client.zrange(keys.heard, 0, -1, withscores=True))
        assert before <= notes.pop(CHANNEL) <= keys.now()
        assert notes.keys() == left
    assert 119_000 < keys.client.pttl(keys.heard) <= 120_000


# Who is gone, and who comes back.


def line(keys: Keys, *waiters: tuple[str, str, int]) -> None:
    """Fill the queue: channels, tokens, and how long ago their processes were heard."""
    now = keys.now()
    keys.acquire("one")
    for channel, token, ago in waiters:
        keys.client.zadd(keys.heard, {channel: now - ago})
        keys.wait((channel, token))


def ask(keys: Keys, token: str, channel: str = CHANNEL, ago: int = 1000) -> int:
    """Ask again, so long after the last time; return the kind of the answer."""
    return int(keys.acquire(token, channel, LEASE, str(keys.now() - ago)).split()[3])


def test_waiters_of_processes_that_are_gone_are_dropped(keys: Keys) -> None:
    """Not heard for five seconds, be it since it is silent; a slow poller is heard more seldom."""
    line(keys, ("gone", "a", 5500), ("other", "b", 4000), (CHANNEL, "two", 6000))
    line(keys, ("@poll:15000:1", "c", 7000), ("@poll:15000:2", "d", 8000), ("gone", "e", 5500))
    line(keys, ("ahead", "f", -9000), ("late", "g", 5500))
    now = keys.now()
    keys.client.zadd(keys.heard, {"silent": -now + 5500, "newly": -now + 4000})
    keys.wait(("silent", "h"), ("newly", "i"))
    assert ask(keys, "two") == 2  # the first is gone, and the next is not from here
    assert keys.waiting() == ["b", "two", "c", "i"]


@pytest.mark.parametrize(
    ("first", "ago", "dropped"),
    [
        (CHANNEL, 2500, True),
        (CHANNEL, -2500, True),
        ("other", 0, False),  # that process drops them
        (CHANNEL, 3500, False),  # the server may have been stopped meanwhile
        (CHANNEL, -3500, False),  # its clock was set back
    ],
)
def test_who_drops_waiters(keys: Keys, first: str, ago: int, dropped: bool) -> None:
    line(keys, (first, "two", 0), ("gone", "three", 6000), (CHANNEL, "four", 0))
    assert ask(keys, "two" if first == CHANNEL else "four", ago=ago) == 2
    assert keys.waiting() == ["two", *["three"] * (not dropped), "four"]


@pytest.mark.parametrize("command", ["zcard", "zscore", "lrem"])
def test_nobody_is_gone_where_one_may_not_read_who_was_heard(
    keys: Keys, without: Callable[[str], Keys], command: str
) -> None:
    """This user may not know, or another program's data is there."""
    line(keys, (CHANNEL, "two", 0), ("gone", "three", 6000))
    if command == "lrem":
        keys.client.set(keys.heard, "foreign")
        ask(keys, "two")
    else:
        ask(without(command), "two")
    assert keys.waiting() == ["two", "three"]


def test_who_lost_its_place_joins_again_if_no_more_is_permitted(
    keys: Keys, without: Callable[[str], Keys]
) -> None:
    come_back(keys, without("linsert"))
    assert keys.waiting() == ["a", "b", "c", "d", "e", "back", "last", "new", "old"]


def come_back(keys: Keys, mine: Keys) -> None:
    keys.acquire("one")
    for token, since in (("a", 5), ("b", 9), ("c", 7), ("d", 8)):
        keys.wait((CHANNEL, token), record=f'{{"since":{since}}}')
    keys.wait((CHANNEL, "e"))
    records = [("back", 7, "0"), ("last", 9, "0"), ("new", 1, "")]
    for token, since, asked in records:
        arguments = (token, LEASE, f'{{"since":{since}}}', keys.name, CHANNEL, asked)
        assert mine.call(ACQUIRE, keys.all, *arguments).split()[3] == "1"
    keys.acquire("old", CHANNEL, LEASE, "0")  # it does not say since when it waits


# Handing off.


def test_a_hand_off_over_a_channel_of_a_shard(keys: Keys) -> None:
    """Only a name of that form is that of a sharded channel."""
    sharded, plain = "lock-grant:{12}:one", "lock-grant:{12}:one:two"
    with (
        listening(keys.client, sharded, sharded=True) as of_shard,
        listening(keys.client, sharded, plain) as others,
    ):
        for channel in (sharded, plain):
            keys.hold("one")
            keys.wait((channel, "two"))
            assert keys.release("one") == 1
            assert keys.holder == "two"
        assert [channel for channel, _ in of_shard()] == [sharded]
        assert [channel for channel, _ in others()] == [plain]


def test_who_can_not_be_told_has_longer(keys: Keys, without: Callable[[str], Keys]) -> None:
    """The user of the one who releases may not publish: the waiter looks within two seconds."""
    keys.acquire("one")
    keys.wait((CHANNEL, "two"))
    with listening(keys.client, CHANNEL) as messages:
        before = keys.now()
        assert without("publish").release("one") == 1
        assert messages() == []
    due = int(keys.client.get(keys.lock).partition('"unclaimed":"')[2].split()[0])
    assert before + 2000 <= due <= keys.now() + 2000
    assert keys.holder == "two"


def test_a_parked_message_waits_for_a_user_who_may_publish_it(
    keys: Keys, without: Callable[[str], Keys]
) -> None:
    """One who may not read the messages leaves it first in the queue, and the lock free."""
    parked = f"{keys.name}:parked"
    keys.acquire("one")
    keys.client.hset(f"{parked}::{keys.name}", "two", "{}")
    keys.wait((f"@park:{parked}", "two"), (CHANNEL, "three"))
    assert without("hexists").release("one") == 1
    assert (keys.holder, keys.waiting()) == (None, ["two", "three"])
    assert without("hexists").acquire("four").startswith("-")
    assert (keys.holder, keys.waiting()) == (None, ["two", "three"])
    keys.acquire("five")
    assert (keys.holder, keys.waiting()) == ("two", ["three"])
    assert keys.client.zrange(f"{parked}:outbox", 0, -1) == [f"two {keys.name}"]


def test_dead_and_foreign_waiters_are_dropped(keys: Keys) -> None:
    """Nobody receives the grant, or the entry is another program's."""
    keys.acquire("one")
    keys.wait(("nobody", "two"))
    keys.client.rpush(keys.queue, "foreign", "a b c d", "@poll:5:1 two 5")
    for lease in ("0", "4000000000000"):
        keys.client.rpush(keys.queue, f"@poll:5:1 two {lease} {RECORD}")
    assert keys.release("one") == 1
    assert keys.client.exists(keys.lock, keys.queue) == 0
    assert keys.end() is None


@pytest.mark.parametrize("lease", [1, 3_999_999_999_999])
def test_the_leases_of_waiters(keys: Keys, lease: int) -> None:
    """From a millisecond to a hundred years."""
    keys.acquire("one")
    keys.wait(("@poll:5:1", "two"), lease=lease)
    assert keys.release("one") == 1
    assert keys.holder == "two"


def test_the_caller_who_is_first_in_the_queue_needs_no_message(keys: Keys) -> None:
    """A lock that is free goes to the first of those who wait, which may be the caller."""
    keys.wait((CHANNEL, "two"), (CHANNEL, "three"))
    with listening(keys.client, CHANNEL) as messages:
        fence, ttl, _ = keys.acquire("two", CHANNEL).split()
        assert messages() == []
    assert keys.client.get(keys.lock) == f"two {fence} {RECORD}"
    assert LEASE - 1000 < int(ttl) <= LEASE
    assert keys.waiting() == ["three"]


# Taking back.


def test_silent_processes_are_passed_over(keys: Keys) -> None:
    """They keep their places for five seconds, however many they are."""
    now, forgotten = keys.now(), "@poll:5:2"
    keys.client.zadd(keys.heard, {"silent": -now + 3_000, forgotten: -now + 5_500, "heard": 5})
    keys.acquire("one")
    keys.wait(*[("silent", f"a{i}") for i in range(150)], (forgotten, "gone"))
    keys.wait(("nobody", "dead"), ("@poll:5:1", "awake"), ("heard", "later"))
    keys.wait(*[("silent", f"b{i}") for i in range(150)], ("@poll:5:1", "last"))
    assert keys.release("one") == 1
    assert keys.holder == "awake"
    silent = [f"{each}{i}" for each in "ab" for i in range(150)]
    assert keys.waiting() == [*silent[:150], "later", *silent[150:], "last"]


@pytest.mark.parametrize(
    ("channel", "heard", "since", "silent"),
    [
        ("@poll:5:1", 1000, 60_000, False),
        ("@poll:5:1", 1500, 60_000, True),
        ("@poll:5:1", None, 1000, False),
        ("@poll:5:1", None, 1500, True),
        ("@poll:5:1", None, None, True),
        ("@poll:5000:1", 4000, 60_000, False),
        ("@poll:5000:1", 5500, 60_000, True),
    ],
)
def test_who_was_not_heard_lately_is_silent_once_a_lock_was_taken_back(
    keys: Keys, channel: str, heard: int | None, since: int | None, silent: bool
) -> None:
    """All processes of a host may have vanished together. A poller is heard as often as it says."""
    keys.hand_off("one", due=-1, channel="nobody")
    now = keys.now()
    if heard:
        keys.client.zadd(keys.heard, {channel: now - heard})
    keys.wait((channel, "two"), record=f'{{"since":{now - since}}}' if since else RECORD)
    keys.acquire("three", "process-3")
    assert keys.holder == ("three" if silent else "two")
    at = keys.client.zscore(keys.heard, channel)
    assert (at is not None and now <= -at <= keys.now()) is silent
    assert keys.waiting() == (["two"] if silent else ["three"])


def test_a_queue_to_which_a_place_goes_back_expires(keys: Keys) -> None:
    """Also if the caller does not wait, and so does not set it."""
    keys.hand_off("one", due=-1, channel="@poll:5:1")
    assert isinstance(keys.acquire("two"), int)
    assert keys.waiting() == ["one"]
    assert 9_000 < keys.client.pttl(keys.queue) <= 10_000
