"""The index of held locks is read in pages; what other programs put there is skipped."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.backends.operations import Operations, read_name
from django_redis_lock.protocol.calls import Steps, write_page
from example_project.embedded import EmbeddedServer
from tests.protocol.steps import ended
from tests.tools import counted
from tests.tools.admin import hold_as


def read_index(servers: int = 1, page_size: int = 1) -> Steps[dict[str, float]]:
    """Read the indexes of a backend; a page of names is ten times as long, at least two."""
    backend = SimpleNamespace(indexes=servers, page_size=page_size)
    return Operations(backend).read_index("*")


@pytest.mark.parametrize(
    ("members", "names"),
    [
        ([], []),
        ([b"a", "Ключ 1".encode(), b"x y"], ["a", "Ключ 1", "x y"]),
        ([b"a", b"b\nc", b"d"], ["a", None, "d"]),
        ([b"a", b"\x07", b""], ["a", None, None]),
        ([b"\xff", b"b"], [None, "b"]),
        ([b"a" * 513, b"a" * 512], [None, "a" * 512]),
        ([b"\xc2\xa0", b"b"], ["\xa0", "b"]),  # not printable to Python, and no control character
    ],
)
def test_a_page_is_read_as_it_was_written(members: list[bytes], names: list[str | None]) -> None:
    """Each member of a page is a name, or is left out if it can't be one."""
    ends = [str(number).encode() for number in range(len(members))]
    steps = read_index()
    next(steps)
    found = {name: float(end) for end, name in enumerate(names) if name is not None}
    assert ended(steps, write_page(zip(members, ends, strict=True))) == found


def test_a_lock_on_two_pages_counts_on_the_later_one() -> None:
    """A lock that was renewed between two pages is listed once."""
    steps: Any = read_index(page_size=0)
    next(steps)
    pages = [
        ([(b"a", b"1"), (b"b", b"2")], ("2", b"")),
        ([(b"b", b"2"), (b"c", b"2")], ("2", b"c")),
        ([(b"d", b"2"), (b"a", b"inf")], ("inf", b"")),
    ]
    for entries, begins in pages:
        following = steps.send(write_page(entries))
        assert (following.start, following.after) == begins
    found = ended(steps, write_page([]))
    assert list(found.items()) == [("a", math.inf), ("d", 2), ("c", 2), ("b", 2)]


def test_the_latest_end_that_a_server_knows_counts() -> None:
    """One server may have missed a renewal, and another may not answer."""
    steps = read_index(servers=3)
    next(steps)
    pages = [write_page([(b"a", b"5")]), write_page([(b"a", b"3")]), None]
    assert ended(steps, pages) == {"a": 5}


def test_the_ends_of_leases_come_from_the_index_alone(client: redis.Redis) -> None:
    """Names are listed without reading the locks; invalid members are left out."""
    hold_as(client, "endless", ttl=None)
    hold_as(client, "brief", ttl=20)
    with lock("long", timeout=60):
        client.zadd("lock-index", {"a\nb": 9e15, "\x07": 9e15})
        client.zadd("lock-index", {"past": 1})
        with counted(client) as commands:
            found = locks["default"].read_index()
        assert "get" not in commands
        assert list(found) == ["endless", "long", "brief"]
        assert found["endless"] == float("inf")
        holder = locks["default"].holder("long")
        assert holder is not None
        assert holder.expires_at is not None
        assert found["long"] == pytest.approx(holder.expires_at.timestamp() * 1000, abs=5)
        assert list(locks["default"].read_index("*i*")) == ["brief"]


def test_queues_are_read_in_pages_without_those_of_held_locks(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(locks["default"]), "page_size", 1)  # ten names a page
    queues = {f"queue:{number}": 9e15 + number // 20 for number in range(50)}
    client.zadd("lock-due", {**queues, "a\nb": math.inf})
    client.zadd("lock-index", {"queue:3": math.inf, "queue:4": 9e15, "queue:5": 1})
    found = locks["default"].read_index(queues=True)
    assert found.keys() == queues.keys() - {"queue:3", "queue:4"}


@pytest.mark.parametrize(
    ("backend", "query"),
    [("redis.RedisLock", ""), ("getset.GetSetLock", ""), ("getset.GetSetLock", "?protocol=3")],
)
def test_what_leaves_between_two_pages_hides_nothing(
    backend: str, query: str, server: EmbeddedServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All names are read, though many share a lease end and others arrive meanwhile."""
    path = f"django_redis_lock.backends.{backend}Backend"
    settings.LOCKS = {"default": {"BACKEND": path, "LOCATION": server.url() + query}}
    monkeypatch.setattr(type(locks["default"]), "page_size", 1)  # ten names a page
    chosen = random.Random(6)
    parts = [b"a", b"Z", b"~", "é".encode(), b"\xff", b"\n"]

    def entries(number: int) -> dict[bytes, float]:
        members = [b"".join(chosen.choices(parts, k=chosen.randint(0, 5))) for _ in range(number)]
        return {member: chosen.choice([9e15, 9e15 + 2, math.inf]) for member in members}

    def read_then_change(call: Any) -> Any:
        page = carry_out(call)
        others = sorted(set(client.zrange("lock-index", 0, -1)) - held.keys())
        client.zrem("lock-index", *chosen.sample(others, len(others) // 4))
        client.zadd("lock-index", entries(20) | held)
        return page

    carry_out = locks["default"].call
    monkeypatch.setattr(locks["default"], "call", read_then_change)
    with redis.Redis.from_url(server.url()) as client:
        for _ in range(5):
            held = entries(100)
            client.delete("lock-index")
            client.zadd("lock-index", entries(200) | held)
            found = locks["default"].read_index()
            for member, end in held.items():
                if b"\n" not in member and (name := read_name(member)) is not None:
                    assert found.get(name) == end
