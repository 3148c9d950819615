"""The index of held locks, read in pages of text; what other programs put there is passed over."""

from __future__ import annotations

import tracemalloc
from operator import itemgetter

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.backends.index import Index, read_page, write_page
from tests.admin_tools import hold_as
from tests.tools import counted


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
    """However it is read, each line is one member, and what can be no name is none."""
    ends = [str(number).encode() for number in range(len(members))]
    page = write_page(zip(members, ends, strict=True))
    assert read_page(page) == (names, [end.decode() for end in ends])


def test_a_lock_on_two_pages_counts_on_the_later_one() -> None:
    """It was renewed while the pages were turned."""
    index = Index("*")
    index.add((["a", "b"], ["1", "2"]), 2)
    assert (index.more, index.start, index.offset) == (True, "2", 1)
    index.add((["c", "a"], ["2", "inf"]), 2)
    index.add(([], []), 2)
    assert not index.more
    assert list(index.latest()) == [("a", float("inf")), ("c", 2.0), ("b", 2.0)]


def test_very_many_names_take_little_memory() -> None:
    """They are gathered as texts, and of those on several pages the later place counts."""
    names = [f"product:{number:06d}" for number in range(20_000)]
    names[1000::50] = names[0::50][:-20]  # renewed, a page later
    tracemalloc.start()
    index = Index("*")
    for first in range(0, len(names), 1000):
        page = list(names[first : first + 1000])
        index.add((page, [str(first + number) for number in range(len(page))]), 1000)
    found = sum(1 for _ in index.latest())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == len(set(names))
    assert peak < 60 * len(names)
    for first in range(0, len(names), 1000):
        index.keep(names[first : first + 1000], range(first, first + 1000))
    expected = {name: float(end) for end, name in enumerate(names)}
    assert list(index.latest()) == sorted(expected.items(), key=itemgetter(1), reverse=True)


def test_the_ends_of_leases_come_from_the_index_alone(client: redis.Redis) -> None:
    """No lock is read for them, and what is no name is left out."""
    hold_as(client, "endless", ttl=None)
    hold_as(client, "brief", ttl=20)
    with lock("long", timeout=60):
        client.zadd("lock-index", {"a\nb": 9e15, "\x07": 9e15})
        client.zadd("lock-index", {"past": 1})
        with counted(client) as commands:
            found = dict(locks["default"].read_index().latest())
        assert "get" not in commands
        assert list(found) == ["endless", "long", "brief"]
        assert found["endless"] == float("inf")
        holder = locks["default"].holder("long")
        assert holder is not None
        assert holder.expires_at is not None
        assert found["long"] == pytest.approx(holder.expires_at.timestamp() * 1000, abs=5)
        assert [name for name, _ in locks["default"].read_index("*i*").latest()] == ["brief"]
        held = [one.name for one in locks["default"].holders_of(["long", "nobody", "brief"])]
        assert held == ["long", "brief"]
        with pytest.raises(ValueError, match="control characters"):
            list(locks["default"].holders_of(["a\nb"]))
