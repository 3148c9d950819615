"""The SETNX and GETSET backend: values, other programs, crossing commands, restricted servers."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import StringIO
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import redis
from django.core.management import CommandError, call_command

from django_redis_lock import lock, locks
from django_redis_lock.backends.getset import GetSetLockBackend
from django_redis_lock.backends.getset.clocks import ServerClock
from django_redis_lock.backends.getset.exchanges import CLAIM_KEPT
from django_redis_lock.backends.getset.timestamps import ENDLESS, FORMATS, Form, read_stamp
from django_redis_lock.backends.settings import LONGEST_INTERVAL
from django_redis_lock.exceptions import (
    InvalidLockBackend,
    LockError,
    LockLost,
    LockUnavailable,
)
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.audit import taken
from django_redis_lock.protocol.lease import Request
from example_project.embedded import EmbeddedServer
from tests.project.test_docs import DOCS
from tests.tools import ROOT, Background, counted, eventually, waiters
from tests.tools.proxy import Proxy

pytestmark = pytest.mark.usefixtures("no_workers")

GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
PLAIN = tuple(name for name in FORMATS if name != "record")


@pytest.fixture
def configure(server: EmbeddedServer, settings: Any) -> Callable[..., GetSetLockBackend]:
    """Return a function that makes the default alias a GETSET backend with given options."""

    def configure(url: str = "", **options: Any) -> GetSetLockBackend:
        entry = {"BACKEND": GETSET, "LOCATION": url or server.url(), "OPTIONS": options}
        settings.LOCKS = {"default": entry}
        backend = locks["default"]
        assert isinstance(backend, GetSetLockBackend)
        return backend

    return configure


Configure = Callable[..., GetSetLockBackend]


# What is stored.


def test_whole_seconds_are_those_of_the_documentation_of_setnx(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """The value is the current time, the timeout and one."""
    configure(FORMAT="seconds")
    before = int(client.time()[0])
    with lock(name, timeout=30):
        value = client.get(f"lock:{name}")
    assert value.isdecimal()
    assert before + 31 <= int(value) <= int(client.time()[0]) + 40


@pytest.mark.parametrize("form", PLAIN)
@pytest.mark.parametrize("lease", [0.5, 30, 86400 * 400])
def test_a_time_is_read_as_it_was_written(form: str, lease: float) -> None:
    """The value is never before the end of the lease, and not much after it."""
    now_ms = time.time_ns() // 1_000_000
    end_ms = now_ms + int(lease * 1000)
    stamp = Form(form).stamp(end_ms, "0" * 32, now_ms, "{}")
    read = read_stamp(stamp.value)
    assert end_ms <= read.end_ms <= end_ms + 1000
    assert float(stamp.value) * (1 if form == "milliseconds" else 1000) == read.end_ms
    endless = {Form(form).stamp(math.inf, "0" * 32, now_ms, "{}").value for _ in range(3)}
    assert len(endless) == 3
    assert all(read_stamp(value).end_ms == math.inf for value in endless)
    assert all(float(value) >= ENDLESS for value in endless)


@pytest.mark.parametrize(
    ("value", "end_ms"),
    [
        (b"1700000000", 1_700_000_000_000),
        (b" 1700000000\n", 1_700_000_000_000),
        (b"1700000000.25", 1_700_000_000_250),
        (b"1700000000123", 1_700_000_000_123),
        (b"1700000000123456", 1_700_000_000_123.456),
        (b"0", 0),
        (b"2147483649.0", 2_147_483_649_000),  # redis-py 2: "one past the last time"
        (b"99999999999999999999", math.inf),
        (b"", math.inf),
        (b"-1", math.inf),
        (b"nan", math.inf),
        (b"1e9", math.inf),
        (b"0x10", math.inf),
        ("١٢".encode(), math.inf),
        (b"\xff\x00", math.inf),
    ],
)
def test_times_of_other_programs(value: bytes, end_ms: float) -> None:
    """Seconds, milliseconds and microseconds are read; a value that is no time never ends."""
    assert read_stamp(value).end_ms == end_ms


def test_what_is_no_time_is_held_until_it_is_deleted(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """An unreadable value of another program excludes us; it can be shown and released by force."""
    backend = configure()
    client.set(f"lock:{name}", "another's")
    assert not lock(name).acquire(blocking_timeout=0.05)
    holder = backend.holder(name)
    assert (holder.ttl, holder.fence, holder.host) == (None, None, None)
    assert backend.force_release(name) == holder
    assert lock(name).acquire(blocking=False)
    client.delete(f"lock:{name}")
    client.rpush(f"lock:{name}", "no string")
    with pytest.raises(LockError, match="another program"):
        lock(name).acquire(blocking=False)


def test_key_of_another_program(name: str, configure: Configure, client: redis.Redis) -> None:
    """The key can be that of another program."""
    configure(FORMAT="seconds", KEY="lock.{name}")
    with lock(name):
        assert client.get(f"lock.{name}").isdecimal()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"FORMAT": "iso"}, "'FORMAT'] is 'iso'; it can be 'record' or 'seconds'"),
        ({"CLOCK": None}, "'CLOCK'] is None; it can be 'server' or 'local'"),
        ({"KEY": "lock.foo"}, r"'KEY'] is 'lock.foo'; .* such as 'lock.{name}'"),
        ({"WAIT": "queue"}, "no option 'WAIT'"),
        ({"POLL_INTERVAL": 0}, r"'POLL_INTERVAL'\] is 0; give seconds between 0.001 and 10"),
        ({"POLL_INTERVAL": "1"}, r"'POLL_INTERVAL'\] is '1'; give seconds"),
        ({"POLL_RETRIES": 3}, "has 'POLL_RETRIES', which was removed. Give blocking_timeout"),
    ],
)
def test_senseless_options(configure: Configure, options: dict[str, Any], words: str) -> None:
    """An invalid option is an error that says what is valid."""
    with pytest.raises(InvalidLockBackend, match=words):
        configure(**options)


# Commands that cross. A call is carried out up to a command, and goes on later.


class Halted:
    """A call of one process, halted before it sends a command."""

    def __init__(self, backend: GetSetLockBackend, call: calls.Call, before: str) -> None:
        self._backend = backend
        self._client = redis.Redis.from_url(backend.location.url)
        self._steps: Any = backend._exchanges.carry_out(call)
        self.sent: list[Any] = []
        self.command = self._steps.send(None).words
        while self.command[0] != before:
            self.step()

    def step(self) -> None:
        """Carry out one command."""
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
        """Carry out the rest; return the answer."""
        try:
            while True:
                self.step()
        except StopIteration as stop:
            self._client.close()
            return stop.value


def request(name: str, seconds: float = 20) -> Request:
    """Return a request."""
    return Request(name, f"{time.monotonic_ns():032x}", seconds, "{}")


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


def test_released_while_somebody_comes_too_late(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """A value that is put back late does not revive a lock that was released meanwhile."""
    backend = configure()
    client.set(f"lock:{name}", "1000000000")
    late = Halted(backend, calls.Acquire(request(name), ""), before="GETSET")
    client.set(f"lock:{name}", str(int(time.time()) + 61))
    late.step()
    client.delete(f"lock:{name}")
    assert late.go_on()[0] == 0
    assert not client.exists(f"lock:{name}")


def test_only_one_of_ours_replaces_an_ended_value(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """A value that another process is about to replace is left alone until that process is dead."""
    backend = configure()
    client.set(f"lock:{name}", "1000000000")
    first = Halted(backend, calls.Acquire(request(name), ""), before="GETSET")
    assert not lock(name).acquire(blocking=False)
    assert client.get(f"lock:{name}") == "1000000000"
    (claim,) = client.keys(f"lock-claim:*:{name}")
    assert 0 < client.pttl(claim) <= CLAIM_KEPT * 1000
    assert first.go_on()[0] > 0
    assert not lock(name).acquire(blocking=False)


@pytest.mark.parametrize("form", FORMATS)
def test_taking_an_ended_lock_keeps_the_connection(
    name: str, configure: Configure, client: redis.Redis, form: str
) -> None:
    """The OK of a SET is an answer, and no sign that the connection is out of step."""
    configure(FORMAT=form)
    with lock(name, timeout=20):
        pass
    before = client.info("stats")["total_connections_received"]
    for number in range(5):
        client.set(f"lock:{name}{number}", "1000000000")
        with lock(f"{name}{number}", timeout=20) as held:
            held.ensure_held()
    assert client.info("stats")["total_connections_received"] == before


def test_dead_claimant_is_waited_out(name: str, configure: Configure, client: redis.Redis) -> None:
    """The right to replace a value expires."""
    backend = configure()
    client.set(f"lock:{name}", "1000000000")
    Halted(backend, calls.Acquire(request(name), ""), before="GETSET")
    (claim,) = client.keys(f"lock-claim:*:{name}")
    client.pexpire(claim, 100)
    assert lock(name).acquire(blocking_timeout=10)


@pytest.mark.parametrize("form", PLAIN)
def test_winner_writes_its_time_again_where_a_loser_went_over_it(
    name: str, configure: Configure, client: redis.Redis, form: str
) -> None:
    """The GETSET of another program that lost the race does not shorten our lease."""
    backend = configure(FORMAT=form)
    client.set(f"lock:{name}", "1000000000")
    mine = request(name)
    winner = Halted(backend, calls.Acquire(mine, ""), before="GETSET")
    winner.step()
    client.getset(f"lock:{name}", str(int(time.time()) + 2))
    assert winner.go_on()[0] > 0
    assert float(client.get(f"lock:{name}")) > time.time() + 15
    assert backend.call(calls.Release(name, mine.token)) == 1


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


def test_fence_is_drawn_within_the_hold(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """A holder that lost the lock while it drew its fence gets neither; the next keeps both."""
    backend = configure()
    late = Halted(backend, calls.Acquire(request(name), ""), before="GETSET")
    client.delete(f"lock:{name}")
    with lock(name) as successor:
        value = client.get(f"lock:{name}")
        assert late.go_on()[0] == 0
        assert client.get(f"lock:{name}") == value
        assert backend.holder(name).fence == successor.fence


def test_fences_rise_after_the_data_were_lost(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """Fences begin at the server's clock, so they continue to rise."""
    configure()
    with lock(name) as held:
        first = held.fence
        assert abs(first / 1e6 - time.time()) < 60
    client.flushall()
    with lock(name) as held:
        assert held.fence > first


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


@pytest.mark.parametrize("lost_before", ["INCR", "GETSET"])
def test_data_lost_while_a_fence_is_drawn(
    name: str, configure: Configure, client: redis.Redis, lost_before: str
) -> None:
    """Its caller gets no lock. Later fences rise, and are close to the clock."""
    backend = configure()
    with lock(name) as held:
        first = held.fence
    late = Halted(backend, calls.Acquire(request(name), ""), before=lost_before)
    client.flushall()
    other = Halted(backend, calls.Acquire(request(f"{name}:other"), ""), before="INCR")
    assert late.go_on()[0] == 0
    between = other.go_on()[0]
    with lock(name) as held:
        assert first < between < held.fence
        assert abs(held.fence / 1e6 - time.time()) < 60


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


def test_lost_replies_do_not_move_the_fence(
    name: str, proxied: Callable[..., Proxy], client: redis.Redis
) -> None:
    """Whichever reply is lost while the first fence is drawn, the fence is near the clock."""
    proxy = proxied("record")
    for number in range(3):
        client.delete("lock-fence")
        proxy.lose_replies(1 + number, marker=b"\r\nlock-fence\r\n")
        with lock(name) as held:
            assert abs(held.fence / 1e6 - time.time()) < 60
        for _ in range(1 + number):
            assert proxy.lost.acquire(timeout=5)


@pytest.mark.parametrize("number", ["10000000000000000", "9223372036854775807", "x", "1.5"])
def test_foreign_fence_key(
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


@pytest.mark.parametrize("left", [True, False])
def test_page_is_whole_when_its_place_shifts_while_it_is_looked_for(
    configure: Configure, client: redis.Redis, left: bool
) -> None:
    """Before the page is read, many entries before it leave or enter."""
    backend = configure()
    names = [f"n{number:03}" for number in range(500)]
    client.zadd("lock-index", dict.fromkeys(names, math.inf))
    page = Halted(backend, calls.ReadIndex("inf", b"n299", 50), before="ZRANGE")
    while page.command[2] == page.command[3]:
        page.step()
    if left:
        client.zrem("lock-index", *names[:250])
    else:
        client.zadd("lock-index", {f"m{number:03}": math.inf for number in range(250)})
    read, _, last = page.go_on()
    assert read.decode().split("\n") == names[300:350]
    assert last == b"n349"


# The clock. A script of what the monotonic clock reads stands for a server that answers slowly.


def ask_time(clock: ServerClock, asked_at: float, answered_at: float, server_ms: int) -> bool:
    """Answer one TIME; return whether the clock asks again."""
    steps = clock.look()
    with patch("django_redis_lock.backends.getset.clocks.monotonic", lambda: asked_at):
        next(steps)
    reply = [server_ms // 1000, server_ms % 1000 * 1000]
    with patch("django_redis_lock.backends.getset.clocks.monotonic", lambda: answered_at):
        try:
            steps.send(reply)
        except StopIteration:
            return False
    return True


def test_a_slow_answer_does_not_replace_a_quick_one() -> None:
    """Of two callers that asked at once, the one with the late answer knows the time less well."""
    clock = ServerClock()
    slow = clock.look()
    with patch("django_redis_lock.backends.getset.clocks.monotonic", lambda: 100.0):
        next(slow)
    assert not ask_time(clock, 100.1, 100.102, 1_000_101)
    with patch("django_redis_lock.backends.getset.clocks.monotonic", lambda: 100.3):
        again: Any = slow.send([1000, 200_000])
        assert again.words == ("TIME",)
        slow.close()
        assert clock.latest_ms() - clock.earliest_ms() <= 5


def test_a_slow_answer_is_asked_for_again_but_not_for_ever() -> None:
    """The quickest of three answers counts; once it is old, any answer is better."""
    clock = ServerClock()
    now = iter([0, 10.0, 10.4, 10.4, 10.5, 10.5, 10.8]).__next__
    replies = [(1000, 200_000), (1000, 450_000), (1000, 600_000)]
    steps = clock.look()
    with patch("django_redis_lock.backends.getset.clocks.monotonic", now):
        next(steps)
        asked: list[Any] = [steps.send(reply) for reply in replies[:2]]
        assert [command.words for command in asked] == [("TIME",)] * 2
        with pytest.raises(StopIteration):
            steps.send(replies[2])
    with patch("django_redis_lock.backends.getset.clocks.monotonic", lambda: 10.5):
        assert (clock.earliest_ms(), clock.latest_ms()) == (1_000_450, 1_000_551)
    assert ask_time(clock, 20.0, 20.9, 1_010_500)
    with patch("django_redis_lock.backends.getset.clocks.monotonic", lambda: 20.9):
        assert (clock.earliest_ms(), clock.latest_ms()) == (1_010_500, 1_011_401)


@pytest.mark.parametrize("form", FORMATS)
def test_a_lease_that_may_have_ended_is_released_and_renewed(
    name: str, configure: Configure, client: redis.Redis, form: str
) -> None:
    """If our value is still there, nobody else can have had the lock, however inexact the clock."""
    backend = configure(FORMAT=form)
    mine = request(name, 20)
    assert backend.call(calls.Acquire(mine, ""))[0] > 0
    clock = backend._exchanges._clock
    asked_at, answered_at, read = clock._read
    clock._read = asked_at - 60, answered_at, read  # it may be a minute later
    assert backend.call(calls.Renew([(name, mine.token, 0)])) == [-2]  # no promise of any time
    before = client.get(f"lock:{name}")
    with counted(client) as counts:
        assert backend.call(calls.Release(name, mine.token)) == 1
    assert "del" not in counts, "it could be the next holder's by then"
    assert client.get(f"lock:{name}") == before
    mine = request(f"{name}:renewed", 20)
    clock._read = asked_at, answered_at, read
    assert backend.call(calls.Acquire(mine, ""))[0] > 0
    clock._read = asked_at - 60, answered_at, read
    assert backend.call(calls.Renew([(mine.name, mine.token, 90_000)])) == [90_000]
    clock._read = asked_at, answered_at - 120, read  # and now it is surely over
    assert backend.call(calls.Release(name, mine.token)) == 0


# Replies that are lost.


@pytest.fixture
def proxied(server: EmbeddedServer, configure: Configure) -> Iterator[Callable[..., Proxy]]:
    """Return a function that puts a proxy before the server, for a format."""
    with Proxy(server.port) as proxy:

        def through(form: str) -> Proxy:
            configure(f"redis://127.0.0.1:{proxy.port}/0", FORMAT=form)
            return proxy

        yield through


@pytest.mark.parametrize("form", ["record", "fractions"])
@pytest.mark.parametrize("command", ["SETNX", "ZADD", "INCR", "GETSET"])
def test_lost_reply_does_not_strand_a_lock(
    name: str, proxied: Callable[..., Proxy], client: redis.Redis, form: str, command: str
) -> None:
    """A value that was stored is recognized as ours when the call is sent again."""
    proxy = proxied(form)
    if form == "fractions" and command == "GETSET":
        client.set(f"lock:{name}", "1000000000")  # where it sends one
    loses = form == "record" or command != "INCR"
    proxy.lose_replies(1, marker=f"\r\n{command}\r\n".encode())
    held = lock(name, timeout=20)
    assert held.acquire(blocking=False)
    assert proxy.lost.acquire(blocking=False) is loses
    held.ensure_held()
    held.release()
    assert not client.exists(f"lock:{name}")


@pytest.mark.parametrize("form", FORMATS)
def test_lost_reply_to_a_claim(
    name: str, proxied: Callable[..., Proxy], client: redis.Redis, form: str
) -> None:
    """A caller that already has the right to replace an ended value uses it."""
    proxy = proxied(form)
    client.set(f"lock:{name}", "1000000000")
    proxy.lose_replies(1, marker=b"\r\nSET\r\n")
    with lock(name, blocking_timeout=0) as held:
        held.ensure_held()
    assert proxy.lost.acquire(timeout=1)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("command", ["GETSET", "DEL"])
def test_lost_reply_to_a_renewal_or_a_release_is_no_loss(
    name: str, proxied: Callable[..., Proxy], client: redis.Redis, form: str, command: str
) -> None:
    """A command that was carried out counts, though its reply was lost."""
    proxy = proxied(form)
    with lock(name, timeout=20) as held:
        proxy.lose_replies(1, marker=f"\r\n{command}\r\n".encode())
        held.extend(50)
        held.ensure_held()
    assert proxy.lost.acquire(timeout=1)
    assert not client.exists(f"lock:{name}")


@pytest.mark.parametrize("form", ["seconds", "milliseconds"])
def test_lost_reply_where_values_are_alike(
    name: str, proxied: Callable[..., Proxy], client: redis.Redis, form: str
) -> None:
    """Nobody knows who wrote the value, so nobody has the lock until it ends."""
    proxy = proxied(form)
    proxy.lose_replies(1, marker=b"\r\nSETNX\r\n")
    assert not lock(name, timeout=20).acquire(blocking=False)
    assert proxy.lost.acquire(timeout=1)
    assert client.exists(f"lock:{name}")
    assert not lock(name, timeout=20).acquire(blocking=False)


@pytest.mark.parametrize("form", PLAIN)
def test_equal_values_are_not_taken_for_ours(
    name: str, configure: Configure, client: redis.Redis, form: str
) -> None:
    """A caller that finds exactly the value that it tried to write did not write it."""
    backend = configure(FORMAT=form)
    mine = request(name)
    halted = Halted(backend, calls.Acquire(mine, ""), before="SETNX")
    client.set(f"lock:{name}", halted.command[2])
    assert halted.go_on()[0] == 0
    assert backend.call(calls.Release(name, mine.token)) == 0
    assert client.exists(f"lock:{name}")


def test_lost_reply_to_a_forced_release(
    name: str, proxied: Callable[..., Proxy], client: redis.Redis
) -> None:
    """The second call finds the lock gone, and it counts as released."""
    proxy = proxied("record")
    held = lock(name)
    held.acquire()
    proxy.lose_replies(1, marker=b"\r\nDEL\r\n")
    assert locks["default"].force_release(name, by="ada").token_id == held.token_id
    assert [entry.by for entry in locks["default"].history(name)] == ["ada"]
    with pytest.raises(LockLost):
        held.ensure_held()


def test_forced_release_of_what_is_released_meanwhile(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """If nothing is left to delete, nobody lost the lock, and the audit has no entry."""
    backend = configure()
    mine = request(name)
    backend.call(calls.Acquire(mine, ""))
    shown = backend.holder(name)
    entry = taken("force_released", shown, "ada", "")
    halted = Halted(backend, calls.ForceRelease(name, shown.token_id, entry, 10), before="DEL")
    backend.call(calls.Release(name, mine.token))
    assert halted.go_on() is None
    assert backend.history(name) == []


# Foreign programs.

INSIDE = """
import fcntl, sys, time

def inside(path, expires):
    # Alone here, except for a holder that stays beyond the end of its lease.
    with open(path, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            assert float(file.read() or "inf") < time.time(), "two inside"
            return
        file.truncate()
        file.write(f"{expires:020.6f}")
        file.flush()
        time.sleep(0.001)
        file.seek(0)
        file.truncate()
"""

FOREIGN = """
import redis
port, key, path, sections = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
TIMEOUT = 1
client = redis.Redis(port=port)

def take():
    while True:
        expires = int(time.time()) + TIMEOUT + 1
        if client.setnx(key, expires):
            return expires
        found = client.get(key)
        if found is not None and float(found) < time.time():
            expires = int(time.time()) + TIMEOUT + 1
            found = client.getset(key, expires)
            if found is None or float(found) < time.time():
                return expires
        time.sleep(0.002)

print("ready", flush=True)
sys.stdin.readline()
for _ in range(sections):
    expires = take()
    inside(path, expires)
    if time.time() < expires:
        client.delete(key)
print("done", flush=True)
"""

OURS = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
port, key, path, sections, form = sys.argv[1:]
import django
from django.conf import settings
settings.LOCKS = {"default": {
    "BACKEND": "django_redis_lock.backends.getset.GetSetLockBackend",
    "LOCATION": f"redis://127.0.0.1:{port}/0",
    "OPTIONS": {"FORMAT": form, "KEY": "{name}"},
}}
django.setup()
from django_redis_lock import lock
from django_redis_lock.exceptions import LockLost
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sections)):
    held = lock(key, timeout=1)
    held.acquire()
    inside(path, time.time() + held.remaining)
    try:
        held.release()
    except LockLost:
        pass  # another program that came too late has overwritten our time
print("done", flush=True)
"""


def exclude_each_other(
    server: EmbeddedServer, key: str, path: Path, form: str, *, pairs: int, sections: int, dead: int
) -> None:
    """Let other programs and ours take a lock in turns, while some of the holders die.

    The dead are planted: a time that has passed, stored while nobody holds the lock. One is there
    from the beginning.
    """
    path.touch()
    common = [str(server.port), key, str(path), str(sections)]
    programs = [[INSIDE + FOREIGN, *common], [INSIDE + OURS, *common, form]] * pairs
    running = [
        subprocess.Popen(
            [sys.executable, "-c", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for program in programs
    ]
    client = redis.Redis(port=server.port)
    try:
        for process in running:
            assert process.stdout.readline() == "ready\n"
        client.set(key, int(time.time()) - 10**6)
        for process in running:
            process.stdin.write("\n")
            process.stdin.flush()
        while any(process.poll() is None for process in running):
            dead -= bool(dead and client.setnx(key, int(time.time()) - 1000 * dead))
            time.sleep(0.005)
        for process in running:
            out, told = process.communicate()
            assert (out, process.returncode) == ("done\n", 0), told
    finally:
        client.close()
        for process in running:
            process.kill()
            process.communicate()


def test_foreign_programs_and_ours_exclude_each_other(
    name: str, server: EmbeddedServer, tmp_path: Path
) -> None:
    """There are never two holders at once, though holders die and are replaced."""
    exclude_each_other(server, name, tmp_path / "inside", "seconds", pairs=2, sections=20, dead=3)


def test_foreign_holder_is_waited_out(name: str, configure: Configure, client: redis.Redis) -> None:
    """A holder of another program that died delays us until its lease ends, and no longer."""
    configure(FORMAT="fractions")
    client.set(f"lock:{name}", f"{time.time() + 100:.6f}")
    assert not lock(name).acquire(blocking_timeout=0.05)
    held = lock(name)
    waiting = Background(held.acquire)
    client.set(f"lock:{name}", f"{time.time() + 0.1:.6f}")
    assert waiting.outcome() is True
    assert float(client.get(f"lock:{name}")) > time.time() + 15
    held.release()
    assert not client.exists(f"lock:{name}")


def test_plain_times_can_not_be_passed_on(name: str, configure: Configure) -> None:
    """Without tokens no holder can be named to take over from; the error says what to write."""
    configure(FORMAT="seconds")
    with lock(name) as held:
        with pytest.raises(LockError, match=r"OPTIONS\['FORMAT'\] = 'record'"):
            lock(name).take_over(held.token_id)
        with pytest.raises(LockError, match=r"OPTIONS\['FORMAT'\] = 'record'"):
            held.detach(5)


def test_waiters_of_a_process_need_not_poll_for_each_other(name: str, configure: Configure) -> None:
    """A release wakes a waiter of the same process, however long its interval is."""
    backend = configure(POLL_INTERVAL=LONGEST_INTERVAL)
    backend.hub.interval = 600.0  # longer than may be asked for, and than this test waits
    held, other = lock(name, timeout=900), lock(name)
    held.acquire()
    waiting = Background(other.acquire)
    eventually(lambda: waiters(name) == 1)
    held.release()
    assert waiting.outcome() is True
    other.release()


def test_poll_interval_is_heeded(name: str, configure: Configure, client: redis.Redis) -> None:
    """A waiter polls at the given interval while another program holds the lock."""
    configure(POLL_INTERVAL=0.01)
    client.set(f"lock:{name}", int(time.time()) + 900)
    waiting = Background(lock(name).acquire)
    eventually(lambda: waiters(name) == 1)

    def looks() -> int:
        return client.info("commandstats")["cmdstat_setnx"]["calls"]

    began, before = time.monotonic(), looks()
    eventually(lambda: looks() >= before + 25)
    assert time.monotonic() - began > 25 * 0.01 * 0.5, "it looked more often than it was told to"
    client.delete(f"lock:{name}")
    assert waiting.outcome() is True


def test_poll_interval_is_not_the_default(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """A long interval is kept as well: no waiter looks before it is over."""
    backend = configure(POLL_INTERVAL=5)
    assert backend.hub.interval == 5.0
    assert all(4.0 <= backend.hub.next_look(-1) <= 6.0 for _ in range(100))
    assert configure().hub.interval == 0.25


# Servers that permit little.

ACL = (DOCS / "how-to" / "share-locks-by-getset.md").read_text().split("ACL SETUSER locker ")[1]
ACL = ACL.split("\n")[0]


def exercise(name: str) -> None:
    """Use every operation."""
    backend = locks["default"]
    with lock(name, timeout=20) as held:
        held.extend(5)
        held.ensure_held()
        assert not lock(name).acquire(blocking_timeout=0.02)
        assert [holder.name for holder in backend.holders()] == [name]
        assert backend.holder(name).pid
        assert backend.waiting(name) == []
    lost = lock(name, timeout=20)
    lost.acquire()
    assert backend.force_release(name, by="ключ")
    with pytest.raises(LockLost):
        lost.release()
    assert [entry.event for entry in backend.history(name)] == ["lost", "force_released"]
    assert len(backend.history(limit=1)) == 1

    async def main() -> None:
        async with lock(name, timeout=20) as held:
            await held.aextend(5)
            assert [holder.name async for holder in backend.aholders()] == [name]

    asyncio.run(main())


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "decode_responses"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_protocols_and_decoding(
    name: str, server: EmbeddedServer, settings: Any, protocol: int, decode: bool
) -> None:
    """RESP2 and RESP3, decoded responses or not, by an alias of CACHES."""
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"},
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": server.url(),
            "OPTIONS": {
                "CONNECTION_POOL_KWARGS": {"protocol": protocol, "decode_responses": decode}
            },
        },
    }
    settings.LOCKS = {"default": {"BACKEND": GETSET, "LOCATION": "locks"}}
    exercise(name)


def test_the_documented_rule_is_enough_and_names_what_is_used(
    name: str, server: EmbeddedServer, configure: Configure, client: redis.Redis
) -> None:
    """No scripts, no transactions, no channels; every command names one key."""
    client.execute_command("ACL", "SETUSER", "locker", *ACL.split())
    configure(f"redis://locker:secret@127.0.0.1:{server.port}/0")
    with counted(client) as counts:
        lock("late", timeout=0.03).acquire()
        client.delete("lock-fence")
        with lock("late", blocking_timeout=5):
            pass
        exercise(name)
        for number in range(100):
            with lock(f"{name}:{number}"):
                pass
        client.zadd("lock-index", {f"endless:{number}": math.inf for number in range(20)})
        with patch.object(GetSetLockBackend, "page_size", 1):  # ten names a page
            assert len(list(locks["default"].read_index("endless:*").latest())) == 20
    permitted = {item[1:] for item in ACL.split() if item.startswith("+")}
    used = {command.split("|")[0] for command in counts} - {"client", "hello", "auth", "config"}
    assert used <= permitted
    assert permitted - used <= {"select"}


def test_time_is_forbidden(
    name: str, server: EmbeddedServer, configure: Configure, client: redis.Redis
) -> None:
    """The error says what to write, and with that the local clock is used."""
    client.execute_command("ACL", "SETUSER", "untimed", *ACL.split(), "-time")
    url = f"redis://untimed:secret@127.0.0.1:{server.port}/0"
    configure(url)
    with pytest.raises(LockUnavailable, match=r"OPTIONS\['CLOCK'\] = 'local'"):
        lock(name).acquire()
    configure(url, CLOCK="local")
    exercise(name)


def test_down(name: str, settings: Any) -> None:
    """A server that can't be reached is LockUnavailable."""
    settings.LOCKS = {"default": {"BACKEND": GETSET, "LOCATION": "redis://127.0.0.1:1/0"}}
    with pytest.raises(LockUnavailable) as caught:
        lock(name).acquire()
    assert caught.value.name == name


# For operators.


@pytest.mark.django_db
@pytest.mark.parametrize("form", FORMATS)
def test_command(name: str, configure: Configure, client: redis.Redis, form: str) -> None:
    """The command lists, shows, releases and examines such locks, and shows others by name."""
    configure(FORMAT=form)

    def run(*arguments: str) -> str:
        out = StringIO()
        call_command("locks", *arguments, stdout=out, stderr=out)
        return out.getvalue()

    held = lock(name, timeout=20)
    held.acquire()
    assert name in run("list")
    assert name in run("show", name)
    assert name in run("release", name, "--no-input", "--reason", "test")
    assert not held.owned()
    assert "test" in run("history")
    client.set(f"lock:{name}", int(time.time()) + 100)
    assert "another program" in run("show", name)
    client.set(f"lock:{name}", 5)
    with pytest.raises(CommandError, match="is not held"):
        run("show", name)
    assert "answers" in run("doctor")


def test_doctor_of_a_server_that_is_down(settings: Any) -> None:
    """A server that does not answer fails the check."""
    settings.LOCKS = {"default": {"BACKEND": GETSET, "LOCATION": "redis://127.0.0.1:1/0"}}
    with pytest.raises(CommandError, match="1 of"):
        call_command("locks", "doctor", stdout=StringIO())
