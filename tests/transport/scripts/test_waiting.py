"""Acquiring, waiting, handing off, claiming and taking back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_redis_lock.transport.scripts import ACQUIRE
from tests.transport.scripts import CHANNEL, LEASE, RECORD, Keys, listening, out_of_memory

# A free lock.


def test_a_free_lock(keys: Keys) -> None:
    before = keys.now()
    fence = keys.acquire("one")
    assert before <= fence // 1000 <= keys.now()
    assert keys.client.get(keys.lock) == f"one {fence} {RECORD}"
    assert keys.client.get(keys.fence) == str(fence)
    assert keys.end() == fence // 1000 + LEASE
    assert LEASE - 1000 < keys.client.pttl(keys.lock) <= LEASE


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


def test_a_lock_without_end(keys: Keys) -> None:
    keys.hold("one", None)
    assert keys.acquire("two").split()[1] == "-1"
    assert keys.acquire("one").split()[:2] == ["7", "-1"]


@pytest.mark.parametrize("last", ["9", None])
@pytest.mark.parametrize("for_replicas", [True, False])
def test_the_holder_asks_again(keys: Keys, last: str | None, for_replicas: bool) -> None:
    """Its lease stays; a caller that waits for replicas has a write of its own to wait for."""
    keys.hold("one")
    if last:
        keys.client.set(keys.fence, last)
    fence, ttl, _ = keys.acquire("one", "", 5000, *["", "1"] * for_replicas).split()
    assert fence == "7"
    assert LEASE - 1000 < int(ttl) <= LEASE
    assert keys.client.get(keys.fence) == (last or ("7" if for_replicas else None))
    assert keys.end() is None


def test_who_waits_for_messages_in_a_list_is_alive(keys: Keys) -> None:
    keys.acquire("one")
    keys.acquire("two", f"@list:{keys.name}:messages")
    assert 4000 < keys.client.pttl(f"{keys.name}:messages:alive") <= 5000


@pytest.mark.parametrize("known", [True, False])
def test_a_process_that_joins_is_heard(keys: Keys, known: bool) -> None:
    """A silent process that calls is awake again."""
    keys.acquire("one")
    if known:
        keys.client.zadd(keys.heard, {CHANNEL: -5})
    before = keys.now()
    assert keys.acquire("two", CHANNEL).split()[3] == "1"
    assert before <= keys.client.zscore(keys.heard, CHANNEL) <= keys.now()
    expires = keys.client.pttl(keys.heard)
    assert expires == -1 if known else 119_000 < expires <= 120_000


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


@pytest.mark.parametrize("polls", [5, 30_000])
def test_a_queue_is_kept_until_a_slow_poller_looks_again(keys: Keys, polls: int) -> None:
    keys.acquire("one")
    keys.acquire("two", f"@poll:{polls}:1")
    longest = max(polls, 10_000)
    assert longest - 1000 < keys.client.pttl(keys.queue) <= longest


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


def test_a_waiter_that_asks_for_the_first_time_drops_nobody(keys: Keys) -> None:
    """Nor does one whose first call is sent again."""
    line(keys, (CHANNEL, "two", 0), ("gone", "three", 6000))
    for _ in range(2):
        keys.acquire("four", CHANNEL, LEASE, "")
    assert keys.waiting() == ["two", "three", "four"]


@pytest.mark.parametrize(("since", "gone"), [(4000, False), (6000, True), (-6000, True)])
def test_a_process_without_a_note_was_heard_when_its_waiter_joined(
    keys: Keys, since: int, gone: bool
) -> None:
    line(keys, (CHANNEL, "two", 0))
    keys.wait(("unknown", "three"), record=f'{{"since":{keys.now() - since}}}')
    keys.wait(("unknown", "four"), record='{"since":"?"}')
    keys.client.rpush(keys.queue, " ")  # another program's
    ask(keys, "two")
    assert keys.client.llen(keys.queue) == 4 - gone


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


def test_waiters_are_heard_by_a_server_that_is_out_of_memory(keys: Keys) -> None:
    """Else all would be gone after a while."""
    line(keys, (CHANNEL, "two", 0), ("other", "three", 2000))
    with out_of_memory(keys.client):
        ask(keys, "three", "other")
        ask(keys, "two")
    heard = dict(keys.client.zrange(keys.heard, 0, -1, withscores=True))
    assert all(keys.now() - at < 1000 for at in heard.values())


def test_who_lost_its_place_comes_back_to_it(keys: Keys) -> None:
    """It comes before all who joined later; who joins for the first time is the last."""
    come_back(keys, keys)
    assert keys.waiting() == ["a", "back", "b", "c", "d", "e", "last", "new", "old"]


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


@pytest.mark.parametrize(("lease", "due", "key"), [(LEASE, 1200, LEASE), (500, 500, 2500)])
def test_a_hand_off(keys: Keys, lease: int, due: int, key: int) -> None:
    """The process of the waiter is told, and has to claim the lock; its key outlives that."""
    keys.acquire("one")
    keys.wait((CHANNEL, "two"), lease=lease)
    with listening(keys.client, CHANNEL) as messages:
        assert keys.release("one") == 1
        ((_, text),) = messages()
    word, token, fence, told, now, name = text.split()
    assert (word, token, int(told), name) == ("grant", "two", lease, keys.name)
    mark = f'"unclaimed":"{int(now) + due} {lease} {CHANNEL}",'
    assert keys.client.get(keys.lock) == f"two {fence} {{{mark}{RECORD[1:]}"
    assert keys.client.get(keys.fence) == fence
    assert key - 1000 < keys.client.pttl(keys.lock) <= key
    assert keys.end() == int(now) + key
    assert keys.waiting() == []


def test_a_hand_off_to_a_polling_waiter(keys: Keys) -> None:
    """It has as long as it says."""
    keys.acquire("one")
    keys.wait(("@poll:700:1", "two"))
    before = keys.now()
    assert keys.release("one") == 1
    token, fence, mark, lease, rest = keys.client.get(keys.lock).split(" ", 4)
    assert (token, fence, lease) == ("two", keys.client.get(keys.fence), str(LEASE))
    assert rest == f'@poll:700:1",{RECORD[1:]}'
    assert before + 700 <= int(mark.removeprefix('{"unclaimed":"')) <= keys.now() + 700


def test_a_hand_off_through_a_list(keys: Keys) -> None:
    """A process that pops no messages any more is dead."""
    dead, alive = f"{keys.name}:dead", f"{keys.name}:alive"
    keys.client.set(f"{alive}:alive", "")
    keys.acquire("one")
    keys.wait((f"@list:{dead}", "two"), (f"@list:{alive}", "three"))
    assert keys.release("one") == 1
    assert keys.holder == "three"
    assert keys.client.exists(dead) == 0
    assert keys.client.lpop(alive).startswith("grant three ")
    keys.client.rpush(alive, "earlier")
    keys.wait((f"@list:{alive}", "four"))
    keys.hold("one")
    assert keys.release("one") == 1
    assert [text.split()[0] for text in keys.client.lrange(alive, 0, -1)] == ["earlier", "grant"]
    assert 59_000 < keys.client.pttl(alive) <= 60_000


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


@pytest.mark.parametrize(
    ("before", "lease", "told"), [(LEASE, 999, True), (LEASE, 1000, False), (400, 999, False)]
)
def test_the_others_are_told_of_a_claim_that_is_due_sooner_than_they_know(
    keys: Keys, before: int, lease: int, told: bool
) -> None:
    """Each process once; a lease that ends in a second or later they see by themselves."""
    keys.hold("one", before)
    keys.wait((CHANNEL, "two"), ("process-2", "three"), ("process-2", "four"), lease=lease)
    with listening(keys.client, CHANNEL, "process-2") as messages:
        keys.release("one")
        first, *others = messages()
    assert first[0] == CHANNEL
    assert others == [("process-2", f"look {keys.name}")] * told
    assert keys.waiting() == ["three", "four"]


def test_the_last_waiter_is_not_told_of_its_own_claim(keys: Keys) -> None:
    keys.acquire("one")
    keys.wait((CHANNEL, "two"), lease=500)
    with listening(keys.client, CHANNEL) as messages:
        keys.release("one")
        assert [text.split()[0] for _, text in messages()] == ["grant"]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [(LEASE, 999, True), (LEASE, 1000, False), (500, 999, False), (None, 999, True)],
)
def test_waiters_are_told_of_a_lease_that_ends_sooner(
    keys: Keys, before: int | None, after: int, told: bool
) -> None:
    keys.hold("one", before)
    keys.wait((CHANNEL, "two"), (CHANNEL, "three"), ("process-2", "four"))
    with listening(keys.client, CHANNEL, "process-2") as messages:
        assert keys.renew("one", after) == [after]
        look = f"look {keys.name}"
        assert messages() == [(CHANNEL, look), ("process-2", look)] * told


def test_the_caller_who_is_first_in_the_queue_needs_no_message(keys: Keys) -> None:
    """A lock that is free goes to the first of those who wait, which may be the caller."""
    keys.wait((CHANNEL, "two"), (CHANNEL, "three"))
    with listening(keys.client, CHANNEL) as messages:
        fence, ttl, _ = keys.acquire("two", CHANNEL).split()
        assert messages() == []
    assert keys.client.get(keys.lock) == f"two {fence} {RECORD}"
    assert LEASE - 1000 < int(ttl) <= LEASE
    assert keys.waiting() == ["three"]


def test_a_caller_who_is_not_first_in_the_queue(keys: Keys) -> None:
    """It learns until when the first has to claim the lock."""
    keys.wait(("@poll:700:1", "two"))
    for kind in ("1", "2"):
        minus_fence, ttl, _, answer = keys.acquire("three", CHANNEL).split()
        assert (minus_fence, answer) == (f"-{keys.client.get(keys.lock).split()[1]}", kind)
        assert 0 < int(ttl) <= 700
    assert keys.holder == "two"
    assert keys.end() is not None


# Claiming.


@pytest.mark.parametrize(
    ("channel", "due", "lease", "left"),
    [
        (CHANNEL, 200, LEASE, LEASE - 1000),
        (CHANNEL, 5000, LEASE, LEASE),
        (CHANNEL, 600, 800, 600),
        ("@poll:500:1", 200, LEASE, LEASE),
    ],
)
def test_an_attempt_claims_what_was_handed_off(
    keys: Keys, channel: str, due: int, lease: int, left: int
) -> None:
    """A lease begins when its waiter is told, and that of a polling waiter when it asks."""
    keys.hand_off("one", due, lease, channel)
    fence, ttl, now = keys.acquire("one", channel).split()
    assert fence == "7"
    assert left - 400 < int(ttl) <= left
    assert keys.client.get(keys.lock) == f"one 7 {RECORD}"
    assert keys.end() == int(now) + int(ttl)
    assert 0 <= int(ttl) - keys.client.pttl(keys.lock) < 400


def test_a_claim_without_memory(keys: Keys) -> None:
    """Nobody loses a lock because the server can't take more."""
    keys.hand_off("one", due=200)
    with out_of_memory(keys.client):
        _, ttl, _ = keys.acquire("one", CHANNEL).split()
    assert keys.client.get(keys.lock) == f"one 7 {RECORD}"
    assert 0 <= int(ttl) - keys.client.pttl(keys.lock) < 400


def test_a_claim_after_the_lease(keys: Keys) -> None:
    """The caller gets the lock anew."""
    keys.hand_off("one", due=-1, lease=800)
    assert keys.acquire("one", CHANNEL) > 7
    assert keys.client.get(keys.lock).endswith(f" {RECORD}")


def test_a_claim_that_is_not_due_is_waited_for(keys: Keys) -> None:
    """Another caller learns until when."""
    keys.hand_off("one", due=1000)
    minus_fence, ttl, _, kind = keys.acquire("two").split()
    assert (minus_fence, kind) == ("-7", "0")
    assert 0 < int(ttl) <= 1000
    assert '"unclaimed"' in keys.client.get(keys.lock)


# Taking back.


def test_a_claim_that_is_overdue_is_taken_back(keys: Keys) -> None:
    """The caller gets the lock, and the silent process, which still listens, keeps its place."""
    keys.hand_off("one", due=-1)
    with listening(keys.client, CHANNEL) as messages:
        before = keys.now()
        assert isinstance(keys.acquire("two", "process-2"), int)
        assert messages() == [(CHANNEL, f"look {keys.name}")]
    assert keys.holder == "two"
    assert keys.end() is not None
    assert keys.client.lrange(keys.queue, 0, -1) == [f"{CHANNEL} one {LEASE} {RECORD}"]
    notes = dict(keys.client.zrange(keys.heard, 0, -1, withscores=True))
    assert notes.keys() == {CHANNEL, "process-2"}
    assert before <= -notes[CHANNEL] <= notes["process-2"] <= keys.now()


@pytest.mark.parametrize(
    ("channel", "caller", "kept"),
    [("nobody", "process-2", False), ("@poll:5:1", "", True), (CHANNEL, CHANNEL, False)],
)
def test_whose_place_is_kept(keys: Keys, channel: str, caller: str, kept: bool) -> None:
    """Not that of a dead process, nor of a waiter that has gone from the caller's process."""
    keys.hand_off("one", due=-1, channel=channel)
    with listening(keys.client, CHANNEL):
        keys.acquire("two", caller)
    assert keys.waiting() == ["one"] * kept
    assert keys.client.zscore(keys.heard, channel) < 0
    assert keys.client.zcard(keys.heard) == len({channel, caller} - {""})


def test_a_queue_to_which_a_place_goes_back_expires(keys: Keys) -> None:
    """Also if the caller does not wait, and so does not set it."""
    keys.hand_off("one", due=-1, channel="@poll:5:1")
    assert isinstance(keys.acquire("two"), int)
    assert keys.waiting() == ["one"]
    assert 9_000 < keys.client.pttl(keys.queue) <= 10_000


@pytest.mark.parametrize(
    ("polls", "ago", "gone"),
    [(5, 900, True), (5, 1100, False), (5000, 2400, True), (5000, 2600, False)],
)
def test_a_poller_whose_process_looks_but_does_not_claim_is_gone(
    keys: Keys, polls: int, ago: int, gone: bool
) -> None:
    """It would delay the others again; one that was not heard keeps its place."""
    channel = f"@poll:{polls}:1"
    keys.hand_off("one", due=-1, channel=channel)
    keys.client.zadd(keys.heard, {channel: keys.now() - ago})
    assert isinstance(keys.acquire("two"), int)
    assert keys.waiting() == ["one"] * (not gone)
    assert (keys.client.zscore(keys.heard, channel) > 0) is gone


def test_a_poller_that_is_gone_from_the_process_of_the_caller(keys: Keys) -> None:
    """Its other waiters go on as before."""
    keys.hand_off("one", due=-1, channel="@poll:5:1")
    keys.wait(("@poll:5:1", "three"))
    keys.acquire("two", "@poll:5:1")
    assert keys.holder == "three"
    assert keys.waiting() == ["two"]


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


def test_only_silent_waiters(keys: Keys) -> None:
    """The lock comes free, and they find it so when they look."""
    keys.client.zadd(keys.heard, {"silent": -keys.now()})
    keys.acquire("one")
    keys.wait(("silent", "two"))
    assert keys.release("one") == 1
    assert keys.client.exists(keys.lock) == 0
    assert keys.waiting() == ["two"]
    assert keys.acquire("three", "process-3") > 0
    keys.client.delete(keys.lock)
    assert keys.acquire("two", "other").split()[0] != "0"


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


def test_all_waiters_of_a_process_are_silent(keys: Keys) -> None:
    """Those that have come lately, too."""
    keys.hand_off("one", due=-1, channel="nobody")
    for token, since in (("two", 60_000), ("three", 0)):
        keys.wait(("@poll:5:1", token), record=f'{{"since":{keys.now() - since}}}')
    keys.acquire("four", "process-4")
    assert keys.holder == "four"
    assert keys.waiting() == ["two", "three"]
