"""Locks without scripts: what happens between a read and its write, and beside scripts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redis_lock import lock, locks, transacting
from django_redis_lock.exceptions import LockLost, LockUnavailable
from django_redis_lock.line import Write
from example_project.embedded import EmbeddedServer
from tests.settings import REDIS, server_url
from tests.tools import Background, counted, eventually, waiters

WAIT = {"default": "queue", "bare": "poll"}


def entry(url: str, wait: str) -> dict[str, Any]:
    """Return an entry of LOCKS."""
    return {"BACKEND": REDIS, "LOCATION": url, "OPTIONS": {"WAIT": wait, "POLL_INTERVAL": 0.02}}


@pytest.fixture(autouse=True)
def _aliases(server: EmbeddedServer) -> Iterator[None]:
    """``bare`` is without scripts, and ``default`` with them, on the same keys."""
    with override_settings(LOCKS={key: entry(server_url(), wait) for key, wait in WAIT.items()}):
        yield


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that has something done just before the next writes are sent."""
    deeds: list[Callable[[], object]] = []
    advance = transacting.Course.next

    def next_(self: Any, replies: Any) -> Any:
        commands = advance(self, replies)
        if deeds and isinstance(self._step, Write) and commands:
            deeds.pop()()
        return commands

    def do(deed: Callable[[], object], times: int = 1) -> None:
        deeds.extend([deed] * times)

    monkeypatch.setattr(transacting.Course, "next", next_)
    return do


def test_no_script_is_run(name: str, client: redis.Redis) -> None:
    """Everything that a backend can do works in plain commands and transactions."""
    with counted(client) as counts:
        with lock(name, using="bare", timeout=20, metadata={"shop": "7"}) as held:
            held.extend(5)
            held.ensure_held()
            assert lock(name, using="bare").acquire(blocking_timeout=0.05) is False
            assert [item.name for item in locks["bare"].holders()] == [name]
        asyncio.run(take(name, "bare"))
    assert not {"eval", "evalsha", "subscribe", "publish"} & counts.keys()
    assert counts["exec"] > 0


async def take(name: str, using: str) -> None:
    """Take a lock and release it."""
    async with lock(name, timeout=20, using=using):
        pass


def test_both_ways_give_fences_that_rise(name: str, client: redis.Redis) -> None:
    """Who takes the lock with a script and who without exclude each other; fences go on rising."""
    client.set("lock-fence", 2**52)  # so that the clock has no part in it
    fences = []
    for using in ("default", "bare") * 10:
        with lock(name, timeout=20, using=using) as held:
            for other in ("default", "bare"):
                assert not lock(name, using=other).acquire(blocking=False)
            fences.append(held.fence)
    assert fences == list(range(2**52 + 1, 2**52 + 21))


def test_taken_between_read_and_write(name: str, between: Callable[..., None]) -> None:
    """A lock that another takes in the middle of an acquisition is not overwritten."""
    other = lock(name, timeout=20)
    between(other.acquire)
    assert lock(name, timeout=20, using="bare").acquire(blocking=False) is False
    other.ensure_held()


def test_taken_by_a_foreign_program_between_read_and_write(
    name: str, between: Callable[..., None], client: redis.Redis
) -> None:
    """What another program sets in the middle of an acquisition is not overwritten either."""
    between(lambda: client.set(f"lock:{name}", "foreign", nx=True, px=60_000))
    assert lock(name, timeout=20, using="bare").acquire(blocking=False) is False
    assert client.get(f"lock:{name}") == "foreign"


def test_changed_hands_between_read_and_write(name: str, between: Callable[..., None]) -> None:
    """A release that is overtaken by a loss leaves the successor alone, and tells of the loss."""
    held = lock(name, timeout=20, using="bare")
    held.acquire()
    successor = lock(name, timeout=20)

    def lose() -> None:
        locks["default"].force_release(name)
        successor.acquire()

    between(lose)
    with pytest.raises(LockLost):
        held.release()
    successor.ensure_held()


@pytest.mark.parametrize("operation", ["extend", "reacquire"])
def test_lost_between_read_and_write(
    name: str, operation: str, between: Callable[..., None], client: redis.Redis
) -> None:
    """A lock that is lost in the middle of a renewal is not brought back."""
    held = lock(name, timeout=20, using="bare")
    held.acquire()
    between(lambda: locks["default"].force_release(name))
    with pytest.raises(LockLost):
        held.extend(5) if operation == "extend" else held.reacquire()
    assert not client.exists(f"lock:{name}")


def test_fence_given_between_read_and_write(
    name: str, between: Callable[..., None], client: redis.Redis
) -> None:
    """A fence that another lock is given in the middle is not given again, nor taken back."""
    client.set("lock-fence", 2**52)
    other = lock(f"{name}-other", timeout=20)
    between(other.acquire)
    with lock(name, timeout=20, using="bare") as held:
        assert held.fence > other.fence
        assert int(client.get("lock-fence")) == held.fence


def test_fence_given_between_read_and_hand_over(name: str, between: Callable[..., None]) -> None:
    """The same holds of a fence that is given with a lock that is handed over."""
    held = lock(name, timeout=20, using="bare")
    held.acquire()
    waiter, other = lock(name, timeout=20), lock(f"{name}-other", timeout=20)
    waiting = Background(waiter.acquire)
    eventually(lambda: waiters(name) == 1)
    redis.Redis.from_url(server_url()).set("lock-fence", 2**52)
    between(other.acquire)
    held.release()
    assert waiting.outcome() is True
    assert waiter.fence > other.fence


def test_joined_between_read_and_write(
    name: str, between: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who joins the line while the holder releases is handed the lock."""
    monkeypatch.setattr("django_redis_lock.waiting.LOOK_EVERY", 1000)  # no help from there
    held = lock(name, timeout=300, using="bare")
    held.acquire()
    line: list[Background] = []

    def join() -> None:
        line.append(Background(lock(name, timeout=20).acquire))
        eventually(lambda: waiters(name) == 1)

    between(join)
    held.release()
    assert line[0].outcome() is True


def test_connections_closed_between_read_and_write(
    name: str, between: Callable[..., None], client: redis.Redis
) -> None:
    """A connection that is lost in the middle takes its watch with it, so nothing is written."""
    other = lock(name, timeout=20)

    def close() -> None:
        other.acquire()
        locks["bare"].pool.disconnect()

    between(close)
    assert lock(name, timeout=20, using="bare").acquire(blocking=False) is False
    other.ensure_held()


def test_who_is_never_left_alone_is_told(
    name: str, between: Callable[..., None], monkeypatch: pytest.MonkeyPatch, client: redis.Redis
) -> None:
    """An operation that is overtaken again and again ends in an error that says so."""
    monkeypatch.setattr(transacting, "TRIES", 3)
    monkeypatch.setattr("django_redis_lock.protocol.RETRY_PAUSES", ())
    counter = itertools.count()
    between(lambda: client.set("lock-fence", next(counter)), times=8)
    with pytest.raises(LockUnavailable, match="others changed what was read 3 times"):
        lock(name, using="bare").acquire(blocking=False)
    with pytest.raises(LockUnavailable, match="others changed what was read 3 times"):
        asyncio.run(take(name, "bare"))


def test_cancelled_in_a_transaction(name: str) -> None:
    """A task that is cancelled at any point leaves the lock free and the connection in step."""

    async def main() -> None:
        for pauses in range(12):
            task = asyncio.create_task(take(name, "bare"))
            for _ in range(pauses):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with lock(name, timeout=20, using="bare", blocking_timeout=10) as held:
                await held.aensure_held()

    asyncio.run(main())


def test_both_ways_hand_over_to_every_kind_of_waiter(name: str) -> None:
    """A release without scripts serves those who subscribe, pop and look, in their order."""
    held = lock(name, timeout=20, using="bare")
    held.acquire()
    line = []
    for number, (wait, using) in enumerate(
        [("queue", "default"), ("blpop", "bare"), ("poll", "default"), (None, "bare")] * 2
    ):
        waiter = lock(name, timeout=20, wait=wait, using=using)
        line.append((waiter, Background(waiter.acquire)))
        eventually(lambda number=number: waiters(name) == number + 1)
    for waiter, waiting in line:
        locks["bare"].force_release(name)
        assert waiting.outcome() is True
        assert 10 < waiter.remaining <= 20  # and not for the time to claim it in alone
        waiter.ensure_held()
    locks["bare"].force_release(name)


def test_dead_waiters_are_passed_over(name: str, client: redis.Redis) -> None:
    """Nobody is handed the lock who has no subscriber, no sign of life, or no sense."""
    held = lock(name, timeout=20, using="bare")
    held.acquire()
    for entry_ in ("gone a 1000 {}", "@list:gone b 1000 {}", "nonsense"):
        client.rpush(f"lock-queue:{name}", entry_)
    waiter = lock(name, timeout=20)
    waiting = Background(waiter.acquire)
    eventually(lambda: waiters(name) == 4)
    held.release()
    assert waiting.outcome() is True
    assert waiters(name) == 0
    client.rpush(f"lock-queue:{name}", "gone a 1000 {}")
    locks["bare"].force_release(name)
    assert not client.exists(f"lock:{name}", f"lock-queue:{name}")


@pytest.mark.parametrize("wait", ["queue", "blpop"])
@pytest.mark.parametrize("using", WAIT)
def test_waiter_that_may_not_be_told(
    name: str, using: str, wait: str, client: redis.Redis, settings: Any
) -> None:
    """Whose grant could not be sent holds the lock unclaimed, and finds that at its next look."""
    keys = ("~lock:*", "~lock-queue:*", "~lock-index", "~lock-fence", "~lock-audit")
    client.acl_setuser(
        "mute", enabled=True, passwords=["+secret"], keys=[], categories=["+@all"], reset=True
    )
    client.execute_command("ACL", "SETUSER", "mute", *keys, "-publish")
    mute = entry(server_url().replace("//", "//mute:secret@"), WAIT[using])
    waiter = lock(name, timeout=60, wait=wait)
    with override_settings(LOCKS={**settings.LOCKS, "mute": mute}):
        held = lock(name, timeout=60, using="mute")
        held.acquire()
        waiting = Background(waiter.acquire)
        eventually(lambda: waiters(name) == 1)
        held.release()
        assert 0 < locks["default"].holder(name).ttl <= 16
        hub = locks["default"].hub_for(wait)
        if wait == "queue":  # news make it look, which else it does within 15 s
            client.publish(hub.channel, f"look {name}")
        else:
            client.rpush(hub.list_key, f"look {name}")
        assert waiting.outcome() is True
        assert 16 < locks["default"].holder(name).ttl <= 60
        waiter.release()
        assert not client.exists(f"lock:{name}")
    client.acl_deluser("mute")
