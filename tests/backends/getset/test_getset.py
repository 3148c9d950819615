"""What the SETNX and GETSET backend stores, and servers that permit little."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any
from unittest.mock import patch

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.backends.getset import (
    FORMATS,
    GetSetLockBackend,
    ServerClock,
    Stamp,
    Values,
    read_stamp,
)
from django_redis_lock.exceptions import (
    InvalidLockBackend,
    LockError,
    LockLost,
)
from django_redis_lock.protocol import calls
from example_project.embedded import EmbeddedServer
from tests.backends.getset.conftest import Configure
from tests.backends.getset.test_crossing import request
from tests.tools import counted
from tests.tools.docs import DOCS

pytestmark = pytest.mark.usefixtures("no_workers")


def test_whole_seconds_are_those_of_the_documentation_of_setnx(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    configure(FORMAT="seconds")
    before = int(client.time()[0])
    with lock(name, timeout=30):
        value = client.get(f"lock:{name}")
    assert value.isdecimal()
    assert before + 31 <= int(value) <= int(client.time()[0]) + 40


@pytest.mark.parametrize("lease", [0.5, 30, 86400 * 400])
def test_seconds_are_read_as_they_were_written(lease: float) -> None:
    """The value is never before the end of the lease, and at most a second after it."""
    values = Values("seconds")
    end_ms = time.time_ns() // 1_000_000 + int(lease * 1000)
    read = read_stamp(values.write(Stamp(b"", end_ms)).value)
    assert end_ms <= read.end_ms <= end_ms + 1000
    endless = {values.write(Stamp(b"", math.inf)).value for _ in range(3)}
    assert len(endless) == 3
    assert all(read_stamp(value).end_ms == math.inf for value in endless)


@pytest.mark.parametrize(
    ("value", "end_ms"),
    [
        (b"1700000000", 1_700_000_000_000),
        (b" 1700000000\n", 1_700_000_000_000),
        (b"1700000000.25", 1_700_000_000_250),
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
    """Seconds are read, with a fraction or not; a value that is no time never ends."""
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
    configure(FORMAT="seconds", KEY="lock.{name}")
    with lock(name):
        assert client.get(f"lock.{name}").isdecimal()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"FORMAT": "iso"}, "'FORMAT'] is 'iso'; it can be 'record' or 'seconds'"),
        ({"KEY": "lock.foo"}, r"'KEY'] is 'lock.foo'; .* such as 'lock.{name}'"),
        ({"WAIT": "queue"}, "no setting 'WAIT'"),
        ({"POLL_INTERVAL": 0}, r"'POLL_INTERVAL'\] is 0; give seconds between 0.001 and 10"),
        ({"POLL_INTERVAL": "1"}, r"'POLL_INTERVAL'\] is '1'; give seconds"),
    ],
)
def test_senseless_options(configure: Configure, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidLockBackend, match=words):
        configure(**options)


def test_a_slow_answer_is_asked_for_again_but_not_for_ever() -> None:
    """One that came quickly is kept for a while; the last of three slow ones has to do."""
    clock = ServerClock()
    now = 10.0

    def ask(*took: float) -> int:
        """Answer each TIME after so many seconds; return how often it was asked for."""
        nonlocal now
        steps, asked = clock.read(), 0
        with patch("django_redis_lock.backends.getset.monotonic", lambda: now):
            try:
                next(steps)
                while True:
                    now += took[asked]
                    asked += 1
                    steps.send((1000, int(took[asked - 1] * 1e6)))
            except StopIteration:
                return asked

    assert ask(0.4, 0.01) == 2
    with patch("django_redis_lock.backends.getset.monotonic", lambda: now):
        assert (clock.earliest_ms(), clock.latest_ms()) == (1_000_010, 1_000_021)
    now += ServerClock.KEPT / 2
    assert ask() == 0
    now += ServerClock.KEPT
    assert ask(0.1, 0.2, 0.3, 0.01) == 3


@pytest.mark.parametrize("form", FORMATS)
def test_a_lease_that_may_have_ended_is_released_and_renewed(
    name: str, configure: Configure, client: redis.Redis, form: str
) -> None:
    """If our value is still there, nobody else can have had the lock, however inexact the clock."""
    backend = configure(FORMAT=form)
    mine = request(name, 20)
    assert backend.call(calls.Acquire(mine, ""))[0] > 0
    clock = backend.servers._clock
    clock.SLOW = math.inf
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


ACL = (DOCS / "how-to" / "server-layouts.md").read_text().split("ACL SETUSER locker ")[1]
ACL = ACL.split("\n")[0]


def exercise(name: str) -> None:
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
    assert [entry.event for entry in backend.history(name)] == ["force_released"]
    assert len(backend.history(limit=1)) == 1

    async def main() -> None:
        async with lock(name, timeout=20) as held:
            await held.aextend(5)
            assert [holder.name async for holder in backend.aholders()] == [name]

    asyncio.run(main())


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
            assert len(locks["default"].read_index("endless:*")) == 20
    permitted = {item[1:] for item in ACL.split() if item.startswith("+")}
    used = {command.split("|")[0] for command in counts} - {"client", "hello", "auth", "config"}
    assert used <= permitted
    assert permitted - used <= {"select"}
