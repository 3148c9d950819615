"""What one server of a quorum answers, and writes."""

from __future__ import annotations

import pytest
import redis

from django_redis_lock.backends.redlock import servers
from django_redis_lock.protocol.lease import token_id
from django_redis_lock.transport.packing import Packing
from tests.transport.scripts import LEASE, RECORD, Keys

DELAY = 20_000
ENTRY = "the caller's entry"


class Server(Keys):
    def __init__(self, client: redis.Redis, prefix: str) -> None:
        super().__init__(client, prefix)
        self.all = Packing(prefix).quorum_keys(self.name)
        self.mark = self.all[4]

    @property
    def run(self) -> str:
        return str(self.client.info("server")["run_id"])

    def vote(
        self, token: str, attempt: int = 1, entry: str = "", least: int = 0, delay: int = 0
    ) -> dict[str, int]:
        arguments = (token, LEASE, RECORD, self.name, entry, least, delay, "", attempt)
        answer = self.call(servers.ACQUIRE, self.all, *arguments).split()
        return dict(zip(("fence", "left", "now", "kind", "holder"), map(int, answer), strict=True))

    def confirm(self, token: str, fence: int, entry: str = "") -> int:
        return int(self.call(servers.CONFIRM, self.all, token, fence, entry))

    def withdraw(self, token: str, entry: str = "", attempt: int | str = "") -> int:
        return int(self.call(servers.RELEASE, self.all, token, self.name, entry, attempt))

    def last_fence(self) -> str:
        return str(self.call(servers.READ_FENCE, self.all, DELAY))


def number_of(token: str) -> int:
    return int(token_id(token.encode())[:12], 16)


@pytest.fixture
def keys(client: redis.Redis, name: str) -> Server:
    return Server(client, name)


# Voting, or not.


@pytest.mark.parametrize(("attempt", "again"), [(1, False), (2, False), (3, True)])
def test_a_later_attempt_of_the_caller(keys: Server, attempt: int, again: bool) -> None:
    """It has a fence and a lease of its own; an earlier one, that comes late, has the vote's."""
    first = keys.vote("one", attempt=2)
    keys.client.pexpire(keys.lock, 5000)
    answer = keys.vote("one", attempt=attempt)
    assert (answer["kind"], answer["holder"]) == (0, number_of("one"))
    assert answer["fence"] == (answer["now"] if again else first["fence"])
    assert (answer["left"] > 5000) is again
    assert keys.client.get(keys.lock).endswith(f" {3 if again else 2} {RECORD}")


@pytest.mark.parametrize("foreign", [True, False])
def test_a_lock_that_is_held(keys: Server, foreign: bool) -> None:
    """The caller enters the queue, once, at its first position."""
    held = "of another program" if foreign else f"one 7 5 {RECORD}"
    keys.client.set(keys.lock, held, px=LEASE)
    assert keys.vote("two")["fence"] == 0
    assert keys.client.exists(keys.queue) == 0
    waiters, at = keys.waiters("quorum"), []
    for _ in range(2):
        answer = keys.vote("two", attempt=9, entry=ENTRY)
        assert (answer["fence"], answer["kind"]) == (0, int(foreign))
        assert answer["holder"] == number_of(held if foreign else "one")
        assert LEASE - 1000 < answer["left"] <= LEASE
        at.append(keys.client.zscore(waiters, ENTRY))
    assert (keys.client.zcard(waiters), len({*at})) == (1, 1)
    assert keys.client.zrange(keys.queue, 0, -1) == ["quorum"]
    for key in (keys.queue, waiters):
        assert 59_000 < keys.client.pttl(key) <= 60_000
    assert keys.client.get(keys.lock) == held
    keys.client.persist(keys.lock)
    assert keys.vote("two")["left"] == -1


@pytest.mark.parametrize(
    ("run", "since", "new", "votes"),
    [
        ("", -1, "", True),
        ("", -1, " new", False),
        ("", 5000, "", False),
        ("", DELAY + 5000, "", False),
        ("other", -1, "", False),
    ],
)
def test_the_mark_of_a_server(keys: Server, run: str, since: int, new: str, votes: bool) -> None:
    """Of another start it does not count, nor if the clock was set back since."""
    mark = f"{run or keys.run} {keys.now() + since}{new}"
    keys.client.set(keys.mark, mark)
    keys.client.set(keys.fence, 5)
    assert keys.last_fence() == f"5 {int(votes)}"
    answer = keys.vote("one", delay=DELAY)
    assert (answer["kind"] == 0) is votes
    if not votes:
        begun_anew = run == "other" or since > DELAY
        assert (keys.client.get(keys.mark) != mark) is begun_anew
        assert (answer["left"] > 0) is (begun_anew or since > 0)


# After the vote.


@pytest.mark.parametrize("last", [None, 5, 99])
def test_confirming(keys: Server, last: int | None) -> None:
    """The lock has the fence that was given out, and later ones are greater."""
    keys.client.set(keys.lock, f"one 7 1 {RECORD}", px=5000)
    if last:
        keys.client.set(keys.fence, last)
    assert keys.confirm("one", 50) == 1
    assert keys.client.get(keys.lock) == f"one 50 1 {RECORD}"
    assert 4000 < keys.client.pttl(keys.lock) <= 5000
    assert keys.client.get(keys.fence) == str(max(50, last or 0))


@pytest.mark.parametrize(("attempt", "released"), [("", 1), (2, 1), (1, 0)])
def test_withdrawing(keys: Server, attempt: int | str, released: int) -> None:
    """A later attempt keeps its vote."""
    keys.vote("one", attempt=2)
    keys.wait("quorum", "waiter", ago=None)
    assert keys.withdraw("one", attempt=attempt) == released
    left = keys.client.exists(keys.lock, keys.queue, keys.waiters("quorum"))
    assert left == (0 if released else 3)
    assert (keys.end() is None) is bool(released)


@pytest.mark.parametrize("how", ["withdraw", "confirm"])
def test_leaving(keys: Server, how: str) -> None:
    """The queue goes with the last of the waiters."""
    keys.vote("one")
    for entry in (ENTRY, "another"):
        keys.vote("two", entry=entry)
    for entry, left in (("", 2), (ENTRY, 1), ("another", 0)):
        leave = keys.withdraw("two", entry) if how == "withdraw" else keys.confirm("two", 5, entry)
        assert leave == 0
        assert keys.client.zcard(keys.waiters("quorum")) == left
        assert keys.client.exists(keys.queue) == int(left > 0)
