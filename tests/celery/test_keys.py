"""How a guarded task is defined, and by which key its calls are told apart."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import inspect
import pickle
import re
import types
import uuid
import zoneinfo
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import celery
import pydantic
import pytest
from celery import Celery, Task, shared_task
from celery.contrib.django.task import DjangoTask
from django.contrib.auth.models import Group
from django.db import models
from django.utils.functional import lazystr
from hypothesis import example, given, strategies
from hypothesis import settings as bounded
from kombu.serialization import dumps, loads

from django_redis_lock import lock, locks
from django_redis_lock.celery import single_instance_task
from django_redis_lock.tasks import single_instance_task as of_django
from django_redis_lock.tasks.keys import KeyMaker
from tests.celery.consumer import Consumer, header_of
from tests.tools import Child


class Size(enum.Enum):
    SMALL = "s"


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    SMALL = "s"


class Shop(models.Model):  # noqa: DJ008 - nobody prints it
    """A model; it needs no table here."""

    class Meta:
        app_label = "tests"


class Opaque:
    """An object whose text has its address."""


def key_for(function: Callable[..., Any], *args: Any, unique_on: Any = "all", **kwargs: Any) -> str:
    return KeyMaker(None, unique_on, inspect.signature(function))("task", args, kwargs)


def key_of(value: Any) -> str:
    return key_for(lambda a: None, value)


@pytest.fixture
def app() -> Celery:
    """Return an app of the test's own; the current app stays what it is."""
    return Celery("keys", broker="memory://", set_as_current=False, fixups=[])


# One call, however it is written.


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1,), {}), ((1, 2), {}), ((1,), {"b": 2}), ((), {"c": None, "b": 2, "a": 1})],
)
def test_all_forms_of_a_call_have_one_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def work(a: int, b: int = 2, *, c: Any = None) -> None: ...

    assert key_for(work, *args, **kwargs) == "task:a=1,b=2,c=null"


def test_parameters_of_every_kind() -> None:
    """Positional-only, keyword-only, ``*args`` and ``**kwargs`` count, each under its name."""

    def work(a: int, /, b: int, *more: int, c: int, d: int = 4, **others: int) -> None: ...

    key = 'task:a=1,b=2,more=[3],c=5,d=4,others={"y":7,"z":6}'
    assert key_for(work, 1, 2, 3, c=5, z=6, y=7) == key
    assert key_for(work, 1, b=2, c=5) == "task:a=1,b=2,more=[],c=5,d=4,others={}"
    assert key_for(work, 1, 2, c=5, z=6, unique_on=["a", "z"]) == "task:a=1,z=6"
    assert key_for(work, 9, 2, c=5, unique_on=["b", "c"]) == "task:b=2,c=5"
    with pytest.raises(TypeError):
        key_for(work, b=2, c=5)
    named = KeyMaker(None, None, inspect.signature(work)).named((1, 2, 3), {"c": 5, "z": 6})
    assert named == {"a": 1, "b": 2, "more": [3], "c": 5, "d": 4, "z": 6}


def test_arguments_are_not_confused() -> None:
    """The same values under other names, or cut in another place, are another key."""

    def work(a: Any = None, b: Any = None, **others: Any) -> None: ...

    calls: list[dict[str, Any]] = [{"a": 1}, {"b": 1}, {"c": 1}, {"a": 1, "b": 2}]
    calls += [{"a": a} for a in ("1,b=2", [1, 2], [[1], 2], {"b": 1}, '{"b":1}')]
    assert len({key_for(work, **call) for call in calls}) == len(calls)


def test_template_reads_defaults_and_attributes(app: Celery, name: str) -> None:
    """However the arguments are passed; a lease that is given by position is fixed."""
    seen = []

    @app.task(name=name)
    @single_instance_task(600, key="k:{a}:{b}:{c.real}:{d}", using="locmem")
    def work(a: int, b: str = "two", *, c: int = 3, **others: Any) -> None:
        (holder,) = locks["locmem"].holders()
        assert holder.ttl is not None
        assert 590 < holder.ttl <= 600
        seen.append((holder.name, holder.auto_renew))

    work.apply(args=(1,), kwargs={"d": 4}).get()
    work.apply(kwargs={"a": 1, "d": 4}).get()
    assert seen == [("k:1:two:3:4", False)] * 2


def test_template_writes_what_it_finds_in_one_order() -> None:
    """A set in an argument like one that is it; the rest is as in ``str.format``."""
    make = KeyMaker("{{k}}:{a.b}:{c:03}", None, inspect.signature(lambda a, c: None))
    found = types.SimpleNamespace(b={f"item {number}" for number in range(100)})
    assert make("task", (found, 7), {}) == f"{{k}}:{sorted(found.b)}:007"
    key = enum.Enum("Keys", {"K": "{{k}}:{c:03}"}, type=str).K
    assert KeyMaker(key, None, inspect.signature(lambda c: None))("task", (7,), {}) == "{k}:007"


def test_callable_must_return_text(app: Celery, name: str) -> None:
    @app.task(name=name)
    @single_instance_task(key=lambda shop_id: shop_id, using="locmem")
    def work(shop_id: int) -> None: ...

    with pytest.raises(TypeError, match="7"):
        work.apply(args=(7,)).get()


# Values, and what has no form of its own.

WHEN = datetime.datetime(2026, 1, 31, 12, 30, tzinfo=datetime.UTC)
NUMBER = uuid.UUID("12345678123456781234567812345678")
VALUES: list[tuple[Any, str]] = [
    (NUMBER, '"12345678-1234-5678-1234-567812345678"'),
    (decimal.Decimal("1.50"), '"1.50"'),
    (datetime.date(2026, 1, 31), '"2026-01-31"'),
    (WHEN, '"2026-01-31T12:30:00+00:00"'),
    (datetime.time(12, 30), '"12:30:00"'),
    (datetime.timedelta(days=1, seconds=2), '"1 day, 0:00:02"'),
    (Size.SMALL, '"s"'),
    (Level.HIGH, "3"),
    (Shop(pk=7), '{"tests.Shop":7}'),
    (b"\x00\xff", '{"bytes":"AP8="}'),
    ((1, 2), "[1,2]"),
    ([1, (2, [3])], "[1,[2,[3]]]"),
    ({"b": {"d": 1, "c": 2}, "a": {3, 1, 2}}, '{"a":[1,2,3],"b":{"c":2,"d":1}}'),
    (frozenset("hello world"), '[" ","d","e","h","l","o","r","w"]'),
    (collections.OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
    ("ä\n", '"\\u00e4\\n"'),
    (None, "null"),
    (True, "true"),
    (1, "1"),
    (1.0, "1.0"),
    ("1", '"1"'),
    ("None", '"None"'),
    (-0.5, "-0.5"),
]


@pytest.mark.parametrize(("value", "text"), VALUES, ids=[text for _, text in VALUES])
def test_each_kind_of_value_has_one_text(value: Any, text: str) -> None:
    """What may be an argument has a form that is written down here, and so stays."""
    assert key_of(value) == f"task:a={text}"


MANY = {f"item {number}" for number in range(100)}
DEEP = {"sets": [MANY, {Group(pk=number) for number in range(9)}], "dict": dict.fromkeys(MANY, 1)}
ARGUMENTS = [*(value for value, _ in VALUES if not isinstance(value, Shop)), MANY, DEEP]


def keys_of(arguments: list[Any]) -> list[str]:
    """Return the keys of calls with one argument, by ``unique_on`` and by a template."""
    signature = inspect.signature(lambda a: None)
    makers = [KeyMaker(None, "all", signature), KeyMaker("{a}", None, signature)]
    return [make("task", (argument,), {}) for make in makers for argument in arguments]


ELSEWHERE = """
    import pickle
    from tests.celery.test_keys import ARGUMENTS, keys_of
    say(keys_of(ARGUMENTS))
    say(keys_of(pickle.loads(bytes.fromhex(hear()))))
"""


def test_keys_are_the_same_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process with other hashes, which sends the calls or is sent them."""
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    with Child(ELSEWHERE) as child:
        child.say(pickle.dumps(ARGUMENTS).hex())
        assert [child.hear(), child.hear()] == [str(keys_of(ARGUMENTS))] * 2


def test_long_keys_become_digests() -> None:
    """A key of many arguments stays a short name, and tells calls apart as before."""
    long, other = "x" * 300, "x" * 299 + "y"
    assert key_of("x" * 200) == f'task:a="{"x" * 200}"'
    assert len(key_of(long)) == len("task:") + 32
    assert key_of(long).startswith("task:")
    assert key_of(long) == key_of("x" * 300) != key_of(other)
    assert len(key_of("\x00" * 300)) < 100


@pytest.mark.parametrize(
    "value",
    [
        Opaque(),
        [Opaque()],
        {"deep": [(1, {"er": Opaque()})]},
        {Opaque()},
        {Opaque(): 1},
        1j,
        Shop(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_without_a_form_are_refused(value: Any) -> None:
    """What differs from process to process is refused, with the name of the argument."""

    def work(fine: int, wrong: Any) -> None: ...

    error = "Argument 'wrong' of task task can't be part of its key"
    with pytest.raises(TypeError, match=error):
        key_for(work, 1, value)
    assert key_for(work, 1, value, unique_on=["fine"]) == "task:fine=1"
    for template in ("k:{wrong}", "k:{fine}:{wrong!r}"):
        make = KeyMaker(template, None, inspect.signature(work))
        assert make("task", (1, "at home"), {}).startswith("k:")
        if "Opaque" in repr(value):  # whose text has an address
            with pytest.raises(TypeError, match=error):
                make("task", (1, value), {})


# Every kind of task.


def function(
    app: Celery, guard: Any, name: str, *, above: bool = False, shared: bool = False, **options: Any
) -> Any:
    """Return a task of a function, guarded below or above Celery's decorator."""

    def plain(a: int, b: int = 2) -> list[str]:
        return held()

    def bound(task: Task, a: int, b: int = 2) -> list[str]:
        assert task.name == name
        return held()

    body = bound if options.get("bind") else plain
    make = shared_task(name=name, **options) if shared else app.task(name=name, **options)
    task = guard(make(body)) if above else make(guard(body))
    return app.tasks[name] if shared else task


def class_decorated(app: Celery, guard: Any, name: str) -> Any:
    return app.register_task(guard(type("Work", (Task,), {"name": name, "run": run}))())


def run_decorated(app: Celery, guard: Any, name: str) -> Any:
    """Return a task of a class whose ``run`` is decorated in the class body."""
    return app.register_task(type("Work", (Task,), {"name": name, "run": guard(run)})())


def subclassed(app: Celery, guard: Any, name: str) -> Any:
    """Return a task of a subclass of a guarded class, with a signature of its own."""
    members = {"name": f"{name}-parent", "run": lambda self, b, a: None}
    parent = guard(type("Parent", (Task,), members))
    return app.register_task(type("Work", (parent,), {"name": name, "run": run})())


def instance_decorated(app: Celery, guard: Any, name: str) -> Any:
    """Return a task that was decorated when it was a task already."""
    function(app, lambda body: body, name)
    app.finalize()
    return guard(app.tasks[name])


def run(self: Task, a: int, b: int = 2) -> list[str]:
    return held()


class Base(DjangoTask):
    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


def held() -> list[str]:
    return [holder.name for holder in locks["locmem"].holders()]


KINDS = {
    "below": function,
    "above": partial(function, above=True),
    "bound below": partial(function, bind=True),
    "bound above": partial(function, bind=True, above=True),
    "shared below": partial(function, shared=True),
    "shared above": partial(function, shared=True, bind=True, above=True),
    "base": partial(function, base=Base),
    "class": class_decorated,
    "run": run_decorated,
    "instance": instance_decorated,
    "subclass": subclassed,
}
each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@each_kind
def test_every_kind_of_task_is_guarded(app: Celery, name: str, make: Any) -> None:
    """Whatever it is made of and in whichever order, a task is guarded, and self is in no key."""
    task = make(app, single_instance_task(unique_on="all", using="locmem"), name)
    expected = [f"{name}:a=1,b=2"]
    assert task.apply((1,)).get() == expected
    assert task.apply(kwargs={"a": 1, "b": 2}).get() == expected
    assert task(1) == expected
    with lock(expected[0], using="locmem"):
        assert task.apply((1,)).get()["skipped"] is True
        assert task(a=1)["skipped"] is True
        assert task.apply((2,)).get() == [f"{name}:a=2,b=2", expected[0]]
    with pytest.raises(TypeError, match="'a'"):
        task.apply().get()
    assert held() == []


@each_kind
def test_every_kind_of_task_is_guarded_when_sent(app: Celery, name: str, make: Any) -> None:
    """In scope ``queue_and_run`` the sending takes the lock, under the same key."""
    guard = single_instance_task(unique_on="all", using="locmem", scope="queue_and_run")
    task = make(app, guard, name)
    first = task.delay(1)
    assert held() == [f"{name}:a=1,b=2"]
    assert task.s(a=1, b=2).apply_async().id == first.id
    with pytest.raises(TypeError, match="'a'"):
        task.delay()
    assert len(held()) == 1


def test_turns_are_of_the_form_of_a_key(app: Celery, name: str) -> None:
    """As a word of plain ASCII."""
    guard = single_instance_task(turns="{a}", on_conflict={"run": "park"}, using="locmem")
    task = app.tasks[function(app, guard, name, bind=True).name]
    turn = partial(task.single_instance_guard.turn, task)
    assert turn(("é: \ud800",), {}) == turn((), {"a": "é: \ud800"}) == "=%C3%A9%3A%20%ED%A0%80"
    first, other, again = (turn(("é" * 300 + end,), {}) for end in "aba")
    assert first == again != other
    assert (first[:10], len(first)) == ("=%C3%A9%C3", 250)
    with pytest.raises(TypeError, match=r"part of its turns: a object .* or set turns= to"):
        turn((object(),), {})


def test_function_that_never_became_a_task_is_refused() -> None:
    """A decorated function that no Celery decorator sees is a TypeError, not an unguarded run."""

    @single_instance_task
    def forgotten() -> None:
        raise AssertionError

    with pytest.raises(TypeError, match=r"forgotten is decorated .* but not a Celery task"):
        forgotten()


@pytest.mark.parametrize("make", [make for make in KINDS.values() if make is not subclassed])
def test_double_decoration_is_refused(app: Celery, name: str, make: Any) -> None:
    def twice(target: Any) -> Any:
        return single_instance_task(key="b")(single_instance_task(key="a")(target))

    with pytest.raises(TypeError, match="already"):
        make(app, twice, name).name  # noqa: B018 - a task of an app may be made at first use


# Mistakes.

MISTAKES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"scope": "all"}, ValueError, "scope='all'"),
    ({"key": 7}, TypeError, "key=7"),
    ({"key": "a:{nope}"}, ValueError, "key='a:{nope}' names 'nope'"),
    ({"key": "a:{"}, ValueError, "key='a:{'"),
    ({"key": ""}, ValueError, "key='' is not a valid template: A lock's name must not be empty"),
    ({"key": "%s_import"}, ValueError, "key='%s_import' has '%s'"),
    ({"unique_on": "shop_id"}, ValueError, "unique_on='shop_id'"),
    ({"unique_on": ["nope"]}, ValueError, r"unique_on=['nope'] names 'nope'"),
    ({"unique_on": [1]}, TypeError, "unique_on=[1]"),
    ({"unique_on": "all", "key": "k"}, ValueError, "key conflicts with unique_on"),
    ({"on_conflict": "panic"}, ValueError, "on_conflict['run']='panic' is unknown"),
    ({"on_conflict": {"queue": "wait"}}, ValueError, "on_conflict['queue']='wait' is unknown"),
    ({"on_conflict": {"sent": "skip"}}, ValueError, "on_conflict has no key 'sent'"),
    (
        {"on_conflict": "supersede", "scope": "queue_and_run"},
        ValueError,
        "on_conflict='supersede' requires scope='queue'",
    ),
    ({"countdown": 5}, ValueError, "countdown=5 requires on_conflict='retry'"),
    ({"max_retries": 0, "on_conflict": "wait"}, ValueError, "max_retries=0 requires"),
    ({"queue_timeout": 60}, ValueError, "queue_timeout=60 requires scope='queue'"),
    ({"on_conflict": {"queue": "raise"}}, ValueError, "has a policy for sending, which requires"),
    ({"on_conflict": "wait", "blocking_timeout": -1}, ValueError, "-1"),
    ({"timeout": "30"}, TypeError, "'30'"),
    ({"countdown": float("inf")}, ValueError, "countdown=inf"),
    ({"at_least_for": -1}, ValueError, "at_least_for=-1"),
    ({"queue_timeout": 0}, ValueError, "queue_timeout=0"),
    ({"supersede_for": 60, "scope": "queue"}, ValueError, "supersede_for=60 requires"),
    ({"turns": "{nope}", "on_conflict": "park"}, ValueError, "turns='{nope}' names 'nope'"),
    ({"turns": "a"}, ValueError, "turns='a' requires on_conflict='park': omit it."),
    ({"turns": "a", "scope": "queue"}, ValueError, "where only one message of a key waits:"),
    ({"on_unavailable": "ignore"}, ValueError, "on_unavailable='ignore'"),
    ({"concurrency": 0}, ValueError, "concurrency=0"),
    ({"concurrency": 1_000_001}, ValueError, "concurrency=1000001"),
]


@pytest.mark.parametrize(("options", "error", "words"), MISTAKES, ids=lambda value: str(value)[:45])
def test_mistakes_are_found_when_the_task_is_defined(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Each option's mistakes raise at import, with the option or the value that is wrong."""
    with pytest.raises(error) as caught:

        @single_instance_task(**options)
        def work(shop_id: int) -> None: ...

    assert words in str(caught.value)
    assert next(iter(options)) in str(caught.value) or len(options) > 1


@pytest.mark.parametrize("guard", [single_instance_task, of_django])
@pytest.mark.parametrize("given", [(Word.SMALL,), ("a", "b"), (60, "a"), (print, 60), (["a"],)])
def test_options_need_their_names(guard: Any, given: tuple[Any, ...]) -> None:
    shown = ", ".join(map(repr, given))
    with pytest.raises(TypeError, match=re.escape(f"got {shown} by position")):
        guard(*given)


@pytest.mark.parametrize("target", [object(), 7, "task", int, type("Plain", (), {})])
def test_what_is_no_task_is_refused(target: Any) -> None:
    with pytest.raises(TypeError, match="must decorate a function or Celery task"):
        single_instance_task(key="a")(target)


# The form of arguments in keys.


class Point(NamedTuple):
    x: Any
    y: Any


class Priced:
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
SENT = strategies.recursive(
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
@given(SENT, SENT, SENT)
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
    return single_instance_task.current().name


@pytest.mark.parametrize(
    "guard",
    [{"key": "k:{ids}:{options[since]}"}, {"unique_on": "all"}, {"unique_on": ["ids"]}],
    ids=repr,
)
def test_a_body_changes_no_key(consumer: Consumer, guard: dict[str, Any]) -> None:
    """Defaults are as they were when the task was defined."""

    def work(ids: list[int] = [], options: dict[str, Any] = {"since": {1}}) -> str:  # noqa: B006
        ids.append(1)
        options["since"].add(len(ids))
        return lock_name()

    task = consumer.task(work, **{"key": None, **guard})
    names = [task(), task.apply().get(), task([])]
    assert len(set(names)) == 1


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
        body.__annotations__ |= {"order": Order, "more": Order | None}  # Celery 5.5 reads no text
        task: Any = guarded(made(body)) if above else made(guarded(body))
        message = consumer.send(task, {"id": 7})
        name = header_of(message).lock
        tags = ["paid", "gift", "new"]
        assert name == consumer.deliver(message) == task(Order(id=7)) == task(order={"id": 7})
        assert name == task.apply(({"id": 7, "size": "s", "tags": tags},)).get()
        assert name == task({"id": 7}, more={"id": 8})  # by name to a callable as well
        assert name != task({"id": 8})
        assert ("['gift', 'new', 'paid']" in name) == ("key" in guard and type(guard["key"]) is str)
