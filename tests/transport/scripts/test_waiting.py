"""Acquiring, waiting, handing off, claiming and taking back."""

from __future__ import annotations

import pytest

from tests.transport.scripts import (
    LEASE,
    OTHER,
    PROCESS,
    READER,
    RECORD,
    SLOW,
    Keys,
    digest,
    sharing,
)

# Fences.


@pytest.mark.parametrize("how", ["acquire", "share", "queue", "take_over"])
@pytest.mark.parametrize(
    ("last", "counts"),
    [
        (str(2**53 - 1), True),
        (str(2**53), True),
        ("9" * 17, True),
        ("7", False),
        ("z" * 16, False),
        ("9" * 20, False),
        (None, False),
    ],
)
def test_the_last_fence(keys: Keys, how: str, last: str | None, counts: bool) -> None:
    """They rise beyond 2^53, too. Any other value is ignored."""
    if how in {"queue", "take_over"}:
        keys.hold("one")
    keys.last("foreign" if last is None else last)
    before = keys.now()
    for more in (1, 2):
        if how == "queue":
            fence = keys.acquire(f"{more}", PROCESS).split()[4]
        elif how == "take_over":
            fence = keys.take_over("one", "one")
        else:
            fence = getattr(keys, how)(f"{more}")
        if how != "queue":
            keys.release(f"{more}")
        fence = int(str(fence).split()[0])
        assert fence == int(last or 0) + more if counts else before <= fence // 1000 <= keys.now()
        assert keys.client.get(keys.fence) == str(fence)


def test_the_index_stays_small(keys: Keys) -> None:
    """Once in a while an acquisition removes 32 names of locks whose leases ran out."""
    now = keys.now()
    keys.client.zadd(keys.index, {f"expired {i}": now - 100 + i for i in range(40)})
    left = [40]
    while left[-1] and len(left) < 2000:
        keys.acquire("one")
        left.append(keys.client.zcard(keys.index) - 1)
        keys.release("one")
    assert sorted({*left}) == [0, 8, 40]


# A lock that is held.


@pytest.mark.parametrize(("holder", "kind"), [("one 7 - - {}", 0), ("of another program", 3)])
def test_a_lock_that_is_held(keys: Keys, holder: str, kind: int) -> None:
    """The answer tells for how long, whether the caller is in the queue, and who holds it."""
    keys.client.set(keys.lock, holder, px=LEASE)
    found = set()
    for process, more in (("", 0), (PROCESS, 1), (PROCESS, 2)):
        before = keys.now()
        minus_fence, ttl, now, answer, position = map(int, keys.acquire("two", process).split())
        assert (minus_fence, answer) == (0 if kind else -7, kind + more)
        assert LEASE - 1000 < ttl <= LEASE
        assert before <= now <= keys.now()
        found.add(position)
    assert found == {0, int(keys.client.get(keys.fence))}
    assert keys.client.zrange(keys.queue, 0, -1, withscores=True) == [(PROCESS, position)]
    entry = f"{digest('two')} {LEASE} {RECORD}"
    assert keys.client.zrange(keys.waiters(PROCESS), 0, -1, withscores=True) == [(entry, position)]
    assert keys.client.hgetall(keys.tokens(PROCESS)) == {digest("two"): "two"}
    for key in (keys.queue, keys.waiters(PROCESS), keys.tokens(PROCESS), keys.seen):
        assert 599_000 < keys.client.pttl(key) <= 600_000
    wait = 250 if kind else LEASE
    assert keys.client.zscore(keys.due, keys.name) == pytest.approx(now + wait, abs=1000)
    assert before <= keys.client.zscore(keys.seen, PROCESS) <= keys.now()


@pytest.mark.parametrize("last", ["9", None, "foreign"])
@pytest.mark.parametrize("for_replicas", [True, False])
def test_the_holder_asks_again(keys: Keys, last: str | None, for_replicas: bool) -> None:
    """Its lease stays; a caller that waits for replicas has a write of its own to wait for."""
    keys.hold("one")
    keys.last(last)
    fence, ttl, _ = keys.acquire("one", "", 5000, *["", "", "1"] * for_replicas).split()
    assert fence == "7"
    assert LEASE - 1000 < int(ttl) <= LEASE
    if for_replicas:
        assert keys.client.get(keys.fence) == ("9" if last == "9" else "7")
    assert keys.end() is None


@pytest.mark.parametrize(
    ("ago", "position", "kind"), [(0, "", "0"), (0, "1", "1"), (6_000, "", "1"), (None, "", "1")]
)
def test_how_many_may_wait(keys: Keys, ago: int | None, position: str, kind: str) -> None:
    """A newcomer is refused, one that waited before is not; the dead don't count."""
    keys.acquire("one")
    keys.wait(OTHER, "two")
    keys.wait(PROCESS, "three", ago=ago)
    assert keys.acquire("two", OTHER, LEASE, "", "1").split()[3] == "2"
    assert keys.acquire("four", "c3-1", LEASE, position, "2").split()[3] == kind


# Handing off, and taking back.


@pytest.mark.parametrize(
    ("receives", "ago", "gets"),
    [(True, 4_000, True), (True, 5_500, False), (False, 1_000, True), (False, 1_500, False)],
)
@pytest.mark.parametrize("limit", [None, 2])
def test_who_is_gone_is_passed_over(
    keys: Keys, receives: bool, ago: int, gets: bool, limit: int | None
) -> None:
    """Without a subscriber after 1.15 s, with one after 5 s. It leaves no lock and no permit."""
    keys.acquire("one")
    keys.client.zadd(keys.seen, {"c9-1": keys.now()})  # the server has run meanwhile
    record = {"record": sharing(limit)} if limit else {}
    keys.wait(PROCESS, "two", ago=ago, **record)
    with keys.client.pubsub() as subscription:
        subscription.subscribe(keys.key("grant", PROCESS if receives else OTHER))
        assert subscription.get_message(timeout=5)["type"] == "subscribe"
        assert keys.release("one") == 1
    assert (keys.client.exists(keys.lock), keys.end() is None) == (int(gets), not gets)
    assert keys.client.exists(keys.queue) == 0


def test_a_server_that_stood_still_passes_nobody_over(keys: Keys) -> None:
    keys.acquire("one")
    keys.wait(PROCESS, "two", ago=60_000)
    keys.release("one")
    assert keys.holder == "two"


def test_foreign_waiters_are_dropped(keys: Keys) -> None:
    """Entries of another form, without a token, or of an impossible lease."""
    keys.acquire("one")
    for lease in (0, 4_000_000_000_000):
        keys.wait(READER, f"of {lease}", lease=lease)
    for each in ("foreign", "", "0123456789abcdef 5000 {}"):
        keys.client.zadd(keys.waiters(READER), {each: 0})
    assert keys.release("one") == 1
    assert keys.client.exists(keys.lock, keys.queue) == 0
    assert keys.end() is None


@pytest.mark.parametrize("key", ["waiters", "tokens"])
@pytest.mark.parametrize("how", ["release", "acquire", "beat"])
def test_a_poisoned_key_of_one_process_keeps_no_other_from_the_lock(
    keys: Keys, key: str, how: str
) -> None:
    keys.acquire("one")
    keys.wait(READER, "two")
    keys.wait("i3-1", "three")
    poisoned = getattr(keys, key)(READER)
    keys.client.delete(poisoned)
    keys.client.set(poisoned, "foreign")
    if how != "release":
        keys.client.delete(keys.lock)
    if how == "beat":
        keys.client.zadd(keys.due, {keys.name: 0})
        keys.beat(OTHER)
    else:
        getattr(keys, how)("one")
    assert keys.holder == "three"


@pytest.mark.parametrize(
    ("process", "ago", "silent"),
    [
        (READER, 1000, False),
        (READER, 1500, True),
        (READER, None, True),
        (SLOW, 4000, False),
        (SLOW, 21_000, True),
    ],
)
def test_who_was_not_heard_lately_is_passed_over_once_a_lock_was_taken_back(
    keys: Keys, process: str, ago: int | None, silent: bool
) -> None:
    """All processes of a host may have vanished together. A poller is heard as often as it says.
    The process that did not claim the lock leaves the queue of the lock, and counts as silent."""
    keys.wait(PROCESS, "zero")
    keys.hand_off("one", due=-1)
    keys.wait(process, "two", ago=ago)
    keys.acquire("three", OTHER)
    assert keys.holder == ("three" if silent else "two")
    assert keys.client.zscore(keys.seen, PROCESS) is None
    assert keys.waiting() == ([] if silent else ["three"])
    assert keys.client.zcard(keys.waiters(PROCESS)) == 1  # for when it comes back
