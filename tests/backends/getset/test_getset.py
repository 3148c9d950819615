"""What the SETNX and GETSET backend stores, and what may happen between two of its commands."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any
from uuid import uuid4

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.backends.getset import end_of, write_value
from django_redis_lock.backends.settings import LONGEST_INTERVAL
from django_redis_lock.exceptions import InvalidLockBackend, LockError, LockLost
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.lease import Request
from example_project.embedded import EmbeddedServer
from tests.backends.getset.conftest import Configure
from tests.tools import Background, counted, eventually
from tests.tools.docs import DOCS
from tests.tools.proxy import Proxy

pytestmark = pytest.mark.usefixtures("no_workers")


def request(name: str, seconds: float = 20) -> Request:
    return Request(name, f"{time.monotonic_ns():032x}", seconds, "{}")


class Halted:
    """A call of one process, halted before it sends a command."""

    def __init__(self, backend: Any, call: calls.Call, before: str) -> None:
        self._client = redis.Redis.from_url(backend.location.url)
        self._steps = backend.servers.carry_out(call)
        call.sending()
        self.command = self._steps.send(None).words
        while self.command[0] != before:
            self.step()

    def step(self) -> None:
        with self._client.client() as connection:
            connection.response_callbacks = {}
            self.command = self._steps.send(connection.execute_command(*self.command)).words

    def go_on(self) -> Any:
        try:
            while True:
                self.step()
        except StopIteration as stop:
            self._client.close()
            return stop.value


@pytest.mark.parametrize("lease", [0.5, 30, 86400 * 400])
def test_values_are_those_of_the_documentation_of_setnx(lease: float) -> None:
    """Whole seconds, never before the end of the lease, and at most a second after it."""
    end_ms = time.time_ns() // 1_000_000 + int(lease * 1000)
    value = write_value(end_ms)
    assert value.isdigit()
    assert end_ms < end_of(value) <= end_ms + 1000
    endless = {write_value(math.inf) for _ in range(3)}
    assert len(endless) == 3
    assert {end_of(value) for value in endless} == {math.inf}


@pytest.mark.parametrize(
    ("value", "end_ms"),
    [
        (b"1700000000", 1_700_000_000_000),
        (b" 1700000000\n", 1_700_000_000_000),
        (b"1700000000.25", 1_700_000_000_250),
        (b"0", 0),
        (b"253402300799", 253_402_300_799_000),
        (b"253402300800", math.inf),
        (b"", math.inf),
        (b"-1", math.inf),
        (b"1e9", math.inf),
        ("١٢".encode(), math.inf),
        (b"\xff\x00", math.inf),
    ],
)
def test_times_of_other_programs(value: bytes, end_ms: float) -> None:
    """Seconds are read, with a fraction or not; a value that is no time never ends."""
    assert end_of(value) == end_ms


def test_what_is_no_time_is_held_until_it_is_deleted(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """An unreadable value of another program excludes us; it can be shown and released by force."""
    backend = configure()
    client.set(f"lock:{name}", "another's 17")
    assert not lock(name).acquire(blocking_timeout=0.05)
    holder = backend.holder(name)
    assert (holder.ttl, holder.fence, holder.host, holder.waiters) == (None,) * 4
    assert backend.force_release(name, "0" * 16) is None
    assert backend.force_release(name) == holder
    assert lock(name).acquire(blocking=False)
    client.delete(f"lock:{name}")
    client.rpush(f"lock:{name}", "no string")
    assert backend.holder(name) is None
    with pytest.raises(LockError, match="another program"):
        lock(name).acquire(blocking=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"FORMAT": "seconds"}, "no setting 'FORMAT'"),
        ({"KEY": "lock.foo"}, r"'KEY'] is 'lock.foo': .* such as 'lock.{name}'"),
        ({"KEY": "{name}{name}"}, "contains {name} once"),
        ({"POLL_INTERVAL": 0}, r"'POLL_INTERVAL'\] is 0: it must be seconds from 0.001 to 10"),
    ],
)
def test_senseless_options(configure: Configure, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidLockBackend, match=words):
        configure(**options)


def test_locks_can_not_be_passed_on(name: str, configure: Configure) -> None:
    """No holder can be named to take over from, and a lock that can't be detached stays held."""
    backend = configure()
    with lock(name) as held:
        for attempt in (lambda: lock(name).take_over(held.token_id), lambda: held.detach(5)):
            with pytest.raises(InvalidLockBackend, match=r"can't be passed on.*GetSetLockBackend"):
                attempt()
        held.ensure_held()
        assert [*backend.read_index()] == [name]
    assert backend.read_index() == {}


def test_holds_that_ended_are_forgotten(
    name: str, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redis_lock.backends.getset.MOST_WRITTEN", 3)
    backend = configure()

    def acquire() -> None:
        assert backend.call(calls.Acquire(request(f"{name}:{uuid4()}", 0.001), ""))[0] > 0

    for _ in range(20):
        acquire()
    eventually(lambda: acquire() or len(backend.servers._written) <= 4)
    eventually(lambda: not list(backend.holders()))
    assert backend.read_index() == {}


def test_holder_of_another_program_is_waited_out(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """A holder of another program that died delays us until its lease ends, and no longer."""
    configure(KEY="lock.{name}")
    key = f"lock.{name}"
    client.set(key, f"{time.time() + 30:.6f}")
    with counted(client) as counts:
        assert not lock(name).acquire(blocking_timeout=0.05)
    assert "getset" not in counts  # which would put another time there for a moment
    held = lock(name)
    waiting = Background(held.acquire)
    client.set(key, f"{time.time() + 0.1:.6f}")
    assert waiting.outcome() is True
    assert float(client.get(key)) > time.time() + 15
    held.release()
    assert not client.exists(key)


def test_waiters_of_a_process_need_not_poll_for_each_other(name: str, configure: Configure) -> None:
    """A release wakes a waiter of the same process, however long its interval is."""
    backend = configure(POLL_INTERVAL=LONGEST_INTERVAL)
    registry = backend.registry_for("")
    registry.interval = 600.0  # longer than may be asked for, or this test waits
    held, other = lock(name, timeout=900), lock(name)
    held.acquire()
    waiting = Background(other.acquire)
    eventually(lambda: [one for one in registry.present() if one.turn_at < math.inf])  # it asked
    held.release()
    assert waiting.outcome() is True
    other.release()


# Commands of two processes that cross.


def test_who_comes_too_late_puts_the_time_of_the_winner_back(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    backend = configure()
    client.set(f"lock:{name}", "1000000000")
    late = Halted(backend, calls.Acquire(request(name), ""), before="GETSET")
    winner = str(int(time.time()) + 61)
    assert client.getset(f"lock:{name}", winner) == "1000000000"
    fence, ttl_ms, _, kind = late.go_on()
    assert (fence, kind) == (0, 3)
    assert 50_000 < ttl_ms <= 80_000
    assert client.get(f"lock:{name}") == winner


@pytest.mark.parametrize("deleted", [False, True])
def test_winner_writes_its_time_again_where_a_loser_went_over_it(
    name: str, configure: Configure, client: redis.Redis, deleted: bool
) -> None:
    """The GETSET of another program that lost the race does not shorten our lease."""
    backend = configure()
    client.set(f"lock:{name}", "1000000000")
    mine = request(name)
    winner = Halted(backend, calls.Acquire(mine, ""), before="GETSET")
    winner.step()
    client.getset(f"lock:{name}", str(int(time.time()) + 2))
    if deleted:
        winner.step()
        client.delete(f"lock:{name}")
        assert winner.go_on()[0] == 0
        assert not client.exists(f"lock:{name}")
        return
    assert winner.go_on()[0] > 0
    assert float(client.get(f"lock:{name}")) > time.time() + 15
    assert backend.call(calls.Release(name, mine.token)) == 1


def test_equal_values_are_not_taken_for_ours(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """A caller that finds exactly the value that it tried to write did not write it."""
    backend = configure()
    mine = request(name)
    halted = Halted(backend, calls.Acquire(mine, ""), before="SETNX")
    client.set(f"lock:{name}", halted.command[2])
    assert halted.go_on()[0] == 0
    assert backend.call(calls.Release(name, mine.token)) == 0
    assert client.exists(f"lock:{name}")


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
    mine = request(f"{name}:slow")
    backend.call(calls.Acquire(mine, ""))
    release = calls.Release(mine.name, mine.token)
    late = Halted(backend, release, before="GET")
    release.sent_at -= 19.99  # the answer to GET took that long
    assert late.go_on() == 1
    assert client.exists(f"lock:{mine.name}")


def test_late_renewal_leaves_the_successor_alone(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """A renewal that arrives late neither takes the lock back nor brings it back."""
    backend = configure()
    mine = request(name)
    assert backend.call(calls.Acquire(mine, ""))[0] > 0
    late = Halted(backend, calls.Renew([(name, mine.token, 20_000)]), before="GETSET")
    client.delete(f"lock:{name}")
    with lock(name, timeout=77) as successor:
        value = client.get(f"lock:{name}")
        assert late.go_on() == [-2]
        assert client.get(f"lock:{name}") == value
        successor.ensure_held()
    assert backend.call(calls.Acquire(mine, ""))[0] > 0
    late = Halted(backend, calls.Renew([(name, mine.token, 20_000)]), before="GETSET")
    client.delete(f"lock:{name}")
    assert late.go_on() == [-2]
    assert not client.exists(f"lock:{name}")


def test_renewal_at_least_leaves_a_longer_lease(name: str, configure: Configure) -> None:
    backend = configure()
    mine = request(name)
    backend.call(calls.Acquire(mine, ""))

    def renew(lease_ms: int) -> int:
        return int(backend.call(calls.Renew([(name, mine.token, lease_ms)], at_least=True))[0])

    assert 15_000 < renew(5_000) <= 20_000
    assert renew(30_000) == 30_000
    backend.call(calls.Renew([(name, mine.token, -1)]))
    assert renew(30_000) == -1


def test_forced_release_of_what_is_released_meanwhile(name: str, configure: Configure) -> None:
    """A lock that is gone already has no loser."""
    backend = configure()
    mine = request(name)
    backend.call(calls.Acquire(mine, ""))
    forced = calls.ForceRelease(name, backend.holder(name).token_id, {}, 10)
    halted = Halted(backend, forced, before="DEL")
    backend.call(calls.Release(name, mine.token))
    assert halted.go_on() is None
    assert backend.history(name) == []


# Replies that are lost.


@pytest.mark.parametrize("command", ["GETSET", "DEL"])
def test_lost_reply_to_a_renewal_or_a_release_is_no_loss(
    name: str, server: EmbeddedServer, configure: Configure, client: redis.Redis, command: str
) -> None:
    """A command that was carried out counts, though its reply was lost."""
    with Proxy(server.port) as proxy:
        configure(f"redis://127.0.0.1:{proxy.port}/0")
        with lock(name, timeout=20) as held:
            proxy.lose_replies(1, marker=f"\r\n{command}\r\n".encode())
            held.extend(50)
            held.ensure_held()
        assert proxy.lost.acquire(timeout=1)
        assert not client.exists(f"lock:{name}")


def test_lost_reply_to_a_forced_release(
    name: str, server: EmbeddedServer, configure: Configure
) -> None:
    """The second call finds the lock gone, and it counts as released."""
    with Proxy(server.port) as proxy:
        backend = configure(f"redis://127.0.0.1:{proxy.port}/0")
        held = lock(name)
        held.acquire()
        proxy.lose_replies(1, marker=b"\r\nDEL\r\n")
        assert backend.force_release(name, by="ada").name == name
        with pytest.raises(LockLost):
            held.ensure_held()


# What a server has to permit.

ACL = (DOCS / "how-to" / "server-layouts.md").read_text().split("ACL SETUSER locker ")[1]
ACL = ACL.split("\n")[0]


def test_the_documented_rule_is_enough_and_names_what_is_used(
    name: str, server: EmbeddedServer, configure: Configure, client: redis.Redis
) -> None:
    """No scripts, no transactions, no channels; every command names one key."""
    client.execute_command("ACL", "SETUSER", "locker", *ACL.split())
    configure(f"redis://locker:secret@127.0.0.1:{server.port}/0")
    with counted(client) as counts:
        client.set("lock:late", "1000000000")
        with lock("late"):
            assert not lock("late").acquire(blocking_timeout=0.02)
            assert [holder.name for holder in locks["default"].holders()] == ["late"]
        lost = lock("late")
        lost.acquire()
        assert locks["default"].force_release("late")
        assert locks["default"].read_index() == {}
        with pytest.raises(LockLost):
            lost.release()

        async def use_many() -> None:
            for number in range(100):
                async with lock(f"{name}:{number}") as held:
                    await held.aextend(5)

        asyncio.run(use_many())
    permitted = {item[1:] for item in ACL.split() if item.startswith("+")}
    used = {command.split("|")[0] for command in counts} - {"client", "hello", "auth", "config"}
    assert used <= permitted
    assert permitted - used <= {"select"}
