"""Heartbeats on a real server: their cost, and what is done about what is lost, cut or forged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis

from django_redis_lock import Lock, lock, locks
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import waiting
from django_redis_lock.protocol.lease import token_id
from django_redis_lock.protocol.waiting import A_DAY, Heart, WaiterRegistry
from django_redis_lock.support.arguments import WAITING_SCHEMES
from example_project.embedded import EmbeddedServer
from tests.tools import Background, Child, eventually, queued, waiters

pytestmark = pytest.mark.usefixtures("server")
each_scheme = pytest.mark.parametrize("wait", WAITING_SCHEMES)
PAUSE, RESTART = ("pause", "resume"), ("kill", "restart")
GO = threading.Event()
"""Until it is set, who gets a lock keeps it."""


@pytest.fixture(autouse=True)
def _go() -> Iterator[None]:
    GO.clear()
    yield
    GO.set()


def take(name: str, wait: str = "queue", *, tasks: bool = False) -> int:
    """Wait for the lock, and return the fence with which it was held."""
    handle = lock(name, timeout=60, wait=wait)
    assert asyncio.run(handle.aacquire()) if tasks else handle.acquire()
    assert GO.wait(60)
    fence = int(handle.fence or 0)
    handle.release()
    return fence


def line_up(name: str, number: int, *args: Any, **kwargs: Any) -> list[Background]:
    """Let so many wait, one behind the other and behind those that do already."""
    line = []
    for _ in range(number):
        ahead = waiters(name)
        line.append(Background(partial(take, name, *args, **kwargs)))
        eventually(lambda ahead=ahead: waiters(name) == ahead + 1)
    return line


def drain(line: list[Background], after: int | None = None) -> list[int]:
    """Let all have their turns; check that these are in order, and return the fences."""
    GO.set()
    fences = [each.outcome() for each in line]
    assert [after or 0, *fences] == sorted({after or 0, *fences})
    return fences


def held_lock(name: str) -> tuple[Lock, int]:
    held = lock(name, timeout=60)
    held.acquire()
    return held, int(held.fence or 0)


def heart_of(wait: str) -> Heart:
    heart = locks["default"].registry_for(wait).heart
    assert heart is not None
    return heart


def await_beats(wait: str, number: int = 2) -> None:
    """Wait until so many more heartbeats were begun, so that all but the last were answered."""
    before = heart_of(wait)._turn
    eventually(lambda: heart_of(wait)._turn >= before + number)


@pytest.fixture
def taken_in(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages that the registries of this process have taken in."""
    messages: list[bytes] = []
    take_in = WaiterRegistry.take_in

    def record(registry: WaiterRegistry, message: bytes) -> str | None:
        token = take_in(registry, message)
        messages.append(message)
        return token

    monkeypatch.setattr(WaiterRegistry, "take_in", record)
    return messages


@pytest.mark.parametrize(
    ("wait", "names", "each"),
    [("queue", 1, 200), ("blpop", 100, 1), ("poll", 1, 200)],
)
def test_a_heartbeat_is_one_call_for_all_waiters(
    name: str, names: int, each: int, wait: str, client: redis.Redis, monkeypatch: Any
) -> None:
    costs: list[int] = []
    send = Heart._beat

    def measure(heart: Heart, *args: Any) -> None:
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        send(heart, *args)
        costs.append(client.info("commandstats")["cmdstat_evalsha"]["calls"] - before)

    held = [held_lock(f"{name}-{number}")[0] for number in range(names)]
    waiting = [Background(partial(take, one.name, wait)) for one in held for _ in range(each)]
    eventually(lambda: all(waiters(one.name) == each for one in held))
    monkeypatch.setattr(Heart, "_beat", measure)
    await_beats(wait, 3)
    with heart_of(wait)._beating:
        monkeypatch.undo()
    assert set(costs) == {1}
    GO.set()
    for one in held:
        one.release()
    for background in waiting:
        background.outcome()


@pytest.mark.parametrize("lost", ["*", "lock:", "queue", "waiters", "tokens", "seen", "due"])
def test_a_lost_queue_is_restored(name: str, lost: str, client: redis.Redis) -> None:
    """By each process at its next heartbeat. Then who comes later is served later."""
    held, fence = held_lock(name)
    line = line_up(name, 10)
    with queued(name, "blpop", 60) as child:
        line += line_up(name, 10)
        if lost == "*":
            client.flushdb()
            # The first that comes back is given the lock.
            eventually(lambda: len(locks["default"].waiting(name)) == 20)
        else:
            pattern = f"lock:{name}" if lost == "lock:" else f"lock-{lost}*"
            assert client.delete(*client.keys(pattern)) > 0
        newcomer = Background(partial(take, name))
        left = 21 if lost in ("*", "lock:") else 22

        def restored() -> bool:
            keys = client.keys("lock-waiters:*")
            numbers = [client.zcard(key) for key in keys]
            tokens = [client.hlen(key) for key in client.keys("lock-tokens:*")]
            processes = client.zcard(f"lock-queue:{name}"), client.zcard("lock-seen")
            return sum(numbers) == sum(tokens) == left and processes == (len(keys), 2)

        eventually(restored)
        child.say()
        if lost == "due":  # nobody is told that the lease ends
            client.pexpire(f"lock:{name}", 1)
        elif left == 22:
            held.release()
        fences = drain([*line, newcomer], fence)
        childs = int(child.hear().split()[1])
        assert childs < fences[-1]
        if lost != "*":  # else the child may have come back first
            assert fences[9] < childs < fences[10]


@each_scheme
@pytest.mark.parametrize("late", [False, True], ids=["at once", "later"])
def test_waiters_whose_connections_are_cut(
    name: str, wait: str, late: bool, client: redis.Redis
) -> None:
    """All are served, in order, whether or not the connection was replaced before the release."""
    held, fence = held_lock(name)
    line = line_up(name, 50, wait)
    if wait == "queue":
        assert client.client_kill_filter(_type="pubsub") == 1
    elif wait == "blpop":
        popping = [one["id"] for one in client.client_list() if one["cmd"] == "blpop"]
        assert [client.client_kill_filter(_id=each) for each in popping] == [1]
    if late:
        await_beats(wait)
    held.release()
    drain(line, fence)


@each_scheme
def test_forged_grants(name: str, wait: str, client: redis.Redis, taken_in: list[bytes]) -> None:
    """Who reads the queue learns digests, and no tokens: so nobody takes a lock by a message."""
    held, fence = held_lock(name)
    (one,) = line_up(name, 1, wait)
    registry = locks["default"].registry_for(wait)
    (waiter,) = registry.present()
    process, token = registry.waits_in(name), waiter.request.token
    now = round(fence / 1000)
    (entry,) = client.zrange(f"lock-waiters:{process}:{name}", 0, -1)
    assert token not in entry
    for whose, at in [
        ("nobody", fence + 1),
        (entry.split()[0], fence + 1),
        (token_id(token.encode()), 10**19 - 1),
        (locks["default"].holder(name).token_id, fence),
        (token, 1),  # should a token leak, what is invented with it is of no use
        (token, fence),
        (token, (now + A_DAY) * 1000),
    ]:
        message = f"grant {whose} {at} 60000 {now} {name}"
        if wait == "queue":
            assert client.publish(f"lock-grant:{process}", message) == 1
        else:
            client.rpush(f"lock-inbox:{process}", message)
        eventually(lambda message=message: message.encode() in taken_in)
        eventually(lambda: not waiter.notified)
        assert registry.present() == [waiter]
    held.ensure_held()
    held.release()
    eventually(lambda: registry.present() == [])
    assert [locks["default"].holder(name).fence] == drain([one], fence)


@each_scheme
@pytest.mark.parametrize(
    ("outage", "long"),
    [(PAUSE, False), (RESTART, False), (RESTART, True)],
    ids=["paused", "restarted", "gone"],
)
def test_an_outage(
    name: str, wait: str, outage: tuple[str, str], long: bool, settings: Any, monkeypatch: Any
) -> None:
    """Waiters keep their positions in a short one, and raise in a long one."""
    if long:
        monkeypatch.setattr(waiting, "OUTAGE_LIMIT", 0.3)
    with EmbeddedServer(persist=True) as server:
        settings.LOCKS = {"default": {"LOCATION": server.url()}}
        locks.reset()
        held, fence = held_lock(name)
        line = line_up(name, 5, wait)
        before = [one.since for one in locks["default"].waiting(name)]
        getattr(server, outage[0])()
        eventually(lambda: heart_of(wait)._failing)
        for one in line if long else ():
            with pytest.raises(LockUnavailable):
                one.outcome()
        getattr(server, outage[1])()
        if not long:
            eventually(lambda: not heart_of(wait)._failing)
            assert [one.since for one in locks["default"].waiting(name)] == before
            held.release()
            drain(line, fence)
        locks.reset()


@each_scheme
@pytest.mark.parametrize("tasks", [False, True], ids=["threads", "tasks"])
def test_where_no_thread_can_be_started(
    name: str, wait: str, tasks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiters send the heartbeats themselves, so they learn of the end of a lease."""

    def refuse(function: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("django_redis_lock.support.threads.start_thread", refuse)
    held, fence = held_lock(name)
    line = line_up(name, 3, wait, tasks=tasks)
    assert not heart_of(wait).runs
    held.extend(0.3, replace_ttl=True)
    drain(line, fence)


FORKED = """
    name, wait = sys.argv[1:]
    who = "parent"

    def take():
        with lock(name, timeout=60, wait=wait) as held:
            say(who, held.fence)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for each in threads:
        each.start()
    hear()
    if os.fork() == 0:
        who = "child"
        take()
        os._exit(0)
    for each in threads:
        each.join()
    os.wait()
"""


@each_scheme
def test_a_fork_beside_waiters(name: str, wait: str, client: redis.Redis) -> None:
    """The child waits as a process of its own, and is served after those of its parent."""
    held, _ = held_lock(name)
    with Child(FORKED, name, wait) as parent:
        eventually(lambda: waiters(name) == 3)
        parent.say()
        eventually(lambda: waiters(name) == 4)
        for _ in range(2):  # the second heartbeat of each comes when the first was answered
            last = client.zrange("lock-seen", -1, -1, withscores=True)[0][1]
            eventually(lambda last=last: client.zcount("lock-seen", f"({last}", "inf") == 2)
        pids = [one.pid for one in locks["default"].waiting(name)]
        assert pids[:3] == [parent.pid] * 3
        assert pids[3:] != [parent.pid]
        held.release()
        said = [parent.hear().split() for _ in range(4)]
        assert parent.end() == 0
    assert [who for who, _ in said] == ["parent"] * 3 + ["child"]
    assert len({fence for _, fence in said}) == 4


@each_scheme
def test_a_lease_that_ends(name: str, wait: str, taken_in: list[bytes]) -> None:
    """One heartbeat hands the lock off, to the first of all who wait."""
    held, fence = held_lock(name)
    line = line_up(name, 30, wait)
    tokens = [one.request.token for one in locks["default"].registry_for(wait).present()]
    held.extend(0.3, replace_ttl=True)
    eventually(lambda: waiters(name) == 29)
    await_beats(wait)

    def granted() -> list[str]:
        return [one.decode().split()[1] for one in taken_in if one.startswith(b"grant")]

    assert granted() == tokens[:1]
    drain(line, fence)
    assert granted() == tokens
