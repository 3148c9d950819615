"""Commands of processes that cross: a call is halted before one of them, and goes on later."""

from __future__ import annotations

import time
from itertools import permutations
from typing import Any

import pytest
import redis

from django_redis_lock import lock
from django_redis_lock.backends.getset import FORMATS, GetSetLockBackend
from django_redis_lock.exceptions import (
    LockError,
)
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.lease import Request
from tests.backends.getset.conftest import Configure
from tests.tools import counted

pytestmark = pytest.mark.usefixtures("no_workers")


class Halted:
    """A call of one process, halted before it sends a command."""

    def __init__(self, backend: GetSetLockBackend, call: calls.Call, before: str) -> None:
        self._backend = backend
        self._client = redis.Redis.from_url(backend.location.url)
        self._steps: Any = backend.servers.carry_out(call)
        self.sent: list[Any] = []
        self.command = self._steps.send(None).words
        while self.command[0] != before:
            self.step()

    def step(self) -> None:
        try:
            reply = self._carry_out()
        except redis.ResponseError as error:
            self.command = self._steps.throw(error).words
        else:
            self.command = self._steps.send(reply).words

    def _carry_out(self) -> Any:
        self.sent.append(self.command[0])
        with self._client.client() as connection:
            connection.response_callbacks = {}
            return connection.execute_command(*self.command)

    def go_on(self) -> Any:
        try:
            while True:
                self.step()
        except StopIteration as stop:
            self._client.close()
            return stop.value


def request(name: str, seconds: float = 20) -> Request:
    return Request(name, f"{time.monotonic_ns():032x}", seconds, "- {}")


@pytest.mark.parametrize("form", FORMATS)
def test_who_comes_too_late_puts_the_time_of_the_winner_back(
    name: str, configure: Configure, client: redis.Redis, form: str
) -> None:
    """Another program that takes an ended lock before our GETSET keeps it."""
    backend = configure(FORMAT=form)
    client.set(f"lock:{name}", "1000000000")
    late = Halted(backend, calls.Acquire(request(name), ""), before="GETSET")
    winner = str(int(time.time()) + 61)
    assert client.getset(f"lock:{name}", winner) == "1000000000"
    fence, ttl_ms, _, kind = late.go_on()
    assert (fence, kind) == (0, 3)
    assert 50_000 < ttl_ms <= 80_000
    assert client.get(f"lock:{name}") == winner


def test_winner_writes_its_time_again_where_a_loser_went_over_it(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """The GETSET of another program that lost the race does not shorten our lease."""
    backend = configure(FORMAT="seconds")
    client.set(f"lock:{name}", "1000000000")
    mine = request(name)
    winner = Halted(backend, calls.Acquire(mine, ""), before="GETSET")
    winner.step()
    client.getset(f"lock:{name}", str(int(time.time()) + 2))
    assert winner.go_on()[0] > 0
    assert float(client.get(f"lock:{name}")) > time.time() + 15
    assert backend.call(calls.Release(name, mine.token)) == 1


@pytest.mark.parametrize("order", sorted(set(permutations("AAABBB"))), ids="".join)
def test_two_who_find_no_fence_begin_at_the_clock_once(
    name: str, configure: Configure, client: redis.Redis, order: tuple[str, ...]
) -> None:
    """However their commands cross after a loss of data, no fence gets ahead of the clock."""
    backend = configure()
    client.delete("lock-fence")
    late = {
        one: Halted(backend, calls.Acquire(request(f"{name}:{one}"), ""), before="SETNX")
        for one in "AB"
    }
    for one in late.values():
        one.step()  # the lock's own SETNX
        assert one.command[1] == "lock-fence"
    for one in order:
        late[one].step()
    fences = [one.go_on()[0] for one in late.values()]
    assert fences[0] != fences[1]
    # It was the sum of two clocks, which no loss of data in the next 50 years would come up to.
    assert all(abs(fence / 1e6 - time.time()) < 60 for fence in fences)
    last = max(fences)
    client.flushall()
    with lock(name) as held:
        assert held.fence > last


@pytest.mark.parametrize("low", ["1", "5000", "-7"])
def test_low_number_under_the_fence_key(
    name: str, configure: Configure, client: redis.Redis, low: str
) -> None:
    """All callers that find it delete it, and fences begin at the clock."""
    backend = configure()
    client.set("lock-fence", low)
    crossing = [
        Halted(backend, calls.Acquire(request(f"{name}:{number}"), ""), before="DEL")
        for number in range(2)
    ]
    fences = [one.go_on()[0] for one in crossing]
    assert all(abs(fence / 1e6 - time.time()) < 60 for fence in fences)
    with lock(name) as held:
        assert held.fence > fences[0]


@pytest.mark.parametrize("number", ["10000000000000000", "9223372036854775807", "x", "1.5"])
def test_fence_of_another_program(
    name: str, configure: Configure, client: redis.Redis, number: str
) -> None:
    """A value that is no fence of ours is an error that names the key, and leaves no lock."""
    configure()
    client.set("lock-fence", number)
    with pytest.raises(LockError, match=r"'lock-fence'.* another program"):
        lock(name).acquire()
    assert not client.exists(f"lock:{name}")


def test_release_at_the_last_moment_deletes_nothing(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """So close to its end the lock is left to expire: DEL could hit the next holder."""
    backend = configure()
    mine = request(name)
    backend.call(calls.Acquire(mine, ""))
    backend.call(calls.Renew([(name, mine.token, 40)]))
    with counted(client) as counts:
        assert backend.call(calls.Release(name, mine.token)) in (0, 1)
    assert "del" not in counts


@pytest.mark.parametrize("form", FORMATS)
def test_late_renewal_leaves_the_successor_alone(
    name: str, configure: Configure, client: redis.Redis, form: str
) -> None:
    """A renewal that arrives after the end of the lease does not take the lock back."""
    backend = configure(FORMAT=form)
    mine = request(name)
    assert backend.call(calls.Acquire(mine, ""))[0] > 0
    late = Halted(backend, calls.Renew([(name, mine.token, 20_000)]), before="GETSET")
    client.delete(f"lock:{name}")  # as if the lease had passed
    with lock(name, timeout=77) as successor:
        value = client.get(f"lock:{name}")
        assert late.go_on() == [-2]
        assert client.get(f"lock:{name}") == value
        successor.ensure_held()
    late = Halted(backend, calls.Acquire(mine, ""), before="SETNX")
    late.go_on()
    late = Halted(backend, calls.Renew([(name, mine.token, 20_000)]), before="GETSET")
    client.delete(f"lock:{name}")
    assert late.go_on() == [-2]
    assert not client.exists(f"lock:{name}"), "a renewal must not bring a lost lock back"
