"""The arguments of a call: by name, and in the form that is the same at both ends of a message."""

from __future__ import annotations

import datetime
import inspect
import zoneinfo
from typing import Any, NamedTuple

import celery
import pydantic
import pytest
from django.utils.functional import lazystr
from hypothesis import example, given, strategies
from hypothesis import settings as bounded
from kombu.serialization import dumps, loads

from django_redis_lock.celery import single_instance_task
from django_redis_lock.tasks.keys import KeyMaker
from tests.celery.consumer import Consumer, header_of
from tests.celery.test_keys import Level, Size, Word

# The form of arguments in keys.


class Point(NamedTuple):
    """A tuple with names."""

    x: Any
    y: Any


class Priced:
    """An object that says what JSON makes of it."""

    def __json__(self) -> dict[str, Any]:
        return {"price": 3}


OFFSETS = strategies.integers(-12 * 60, 14 * 60).map(
    lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes))
)
ZONES = strategies.sampled_from(["Europe/Berlin", "UTC", "Asia/Kolkata"]).map(zoneinfo.ZoneInfo)
RECENT = datetime.datetime(1980, 1, 1)
HASHABLE = strategies.one_of(
    strategies.none()
    | strategies.booleans()
    | strategies.integers(-(2**63), 2**63 - 1)
    | strategies.floats(),
    strategies.text()
    | strategies.binary()
    | strategies.uuids()
    | strategies.decimals(allow_nan=False),
    strategies.dates() | strategies.times() | strategies.timedeltas(),
    strategies.datetimes(min_value=RECENT, timezones=strategies.none() | OFFSETS | ZONES),
    strategies.sampled_from([*Size, *Level, *Word]),
)
VALUES = strategies.recursive(
    HASHABLE | strategies.sampled_from([lazystr("later"), Priced(), bytearray(b"\x00\xff")]),
    lambda inner: strategies.one_of(
        strategies.lists(inner, max_size=3),
        strategies.lists(inner, max_size=3).map(tuple),
        strategies.builds(Point, inner, inner),
        strategies.sets(HASHABLE, max_size=3) | strategies.frozensets(HASHABLE, max_size=3),
        strategies.dictionaries(HASHABLE, inner, max_size=3),
    ),
    max_leaves=8,
)
"""What a caller may give, of which each serializer takes some."""

KEYS: list[dict[str, Any]] = [
    {"key": "k:{a}:{b}:{others}"},
    {"key": "k:{a!r}:{b!r}"},
    {"unique_on": "all"},
    {"unique_on": ["c", "a"]},
    {"key": lambda a, *b, **others: f"{a!r}, {b!r}, {others!r}"},
]


def read_by_worker(serializer: str, message: Any) -> Any:
    """Return what a worker gets of the arguments in a message; ``None`` for what can't be sent."""
    try:
        kind, encoding, text = dumps(message, serializer)
        return loads(text, kind, encoding, accept=[kind])
    except Exception:  # of any serializer
        return None


@bounded(max_examples=30, deadline=None)
@given(VALUES, VALUES, VALUES)
@example({"b": 1, "a": ((1, 2), {3})}, {2: {None: 1}}, Point(Word.SMALL, Level.HIGH))
def test_both_ends_make_one_key(a: Any, b: Any, c: Any) -> None:
    """Whatever serializer takes the arguments, and whatever it makes of them."""

    def work(a: Any, *b: Any, **others: Any) -> None: ...

    args, kwargs = (a, b), {"d": b, "c": c}
    made = [
        KeyMaker(given.get("key"), given.get("unique_on"), inspect.signature(work))
        for given in KEYS
    ]
    for serializer in ("json", "pickle", "yaml", "msgpack"):
        read = read_by_worker(serializer, (args, kwargs))
        if read is None:
            continue
        for make in made:
            assert make("task", tuple(read[0]), read[1]) == make("task", args, kwargs)


def lock_name() -> str:
    """Return the key of the current run."""
    return single_instance_task.current().name


if celery.VERSION >= (5, 5):

    class Order(pydantic.BaseModel):
        """What a task is given as a model, and its messages have as a dict."""

        id: int
        size: Size = Size.SMALL
        tags: frozenset[str] = frozenset({"new", "gift", "paid"})

    ORDER_KEYS: list[dict[str, Any]] = [
        {"key": "order:{order.id}:{order.size}:{order.tags}"},
        {"unique_on": ["order"], "concurrency": lambda order, more: len(order.tags)},
        {"key": lambda order, *, more=None: f"order:{order.id}:{order.size.value}"},
    ]

    @pytest.mark.parametrize("bind", [False, True], ids=["function", "bound"])
    @pytest.mark.parametrize("above", [False, True], ids=["below", "above"])
    @pytest.mark.parametrize("guard", ORDER_KEYS, ids=["template", "unique_on", "callable"])
    def test_keys_are_made_of_models(
        consumer: Consumer, guard: dict[str, Any], above: bool, bind: bool
    ) -> None:
        """With ``pydantic=True`` a dict, a model, and one without its defaults are one argument."""

        def bound(self: Any, order: Order, more: Order | None = None) -> str:
            assert type(order) is Order
            return lock_name()

        def function(order: Order, more: Order | None = None) -> str:
            assert type(order) is Order
            return lock_name()

        guarded = single_instance_task(using="locmem", scope="queue_and_run", **guard)
        made = consumer.app.task(name=consumer.app.main, shared=False, pydantic=True, bind=bind)
        body = bound if bind else function
        task: Any = guarded(made(body)) if above else made(guarded(body))
        message = consumer.send(task, {"id": 7})
        name = header_of(message).lock
        tags = ["paid", "gift", "new"]
        assert name == consumer.deliver(message) == task(Order(id=7)) == task(order={"id": 7})
        assert name == task.apply(({"id": 7, "size": "s", "tags": tags},)).get()
        assert name == task({"id": 7}, more={"id": 8})  # by name to a callable as well
        assert name != task({"id": 8})
        assert ("['gift', 'new', 'paid']" in name) == ("key" in guard and type(guard["key"]) is str)
