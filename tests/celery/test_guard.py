"""How the guard gets between Celery, the classes of tasks and their bases."""

from __future__ import annotations

import ast
import gc
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from celery import Celery, Task, shared_task
from celery.app.trace import build_tracer
from celery_once import QueueOnce
from celery_singleton import Singleton

from django_redis_lock import lock
from django_redis_lock.celery import TaskAlreadyRunning, private, single_instance_task
from django_redis_lock.celery.guard import GUARD
from tests.apps.celery.app import app as tests_app
from tests.celery.consumer import Consumer, body, header_of, id_of, is_free
from tests.tools import ROOT, Child, syntax_tree


class PutOff(Task):
    """Sends its tasks when it is told to, as at the end of a transaction."""

    abstract = True
    later: ClassVar[list[Any]] = []

    def apply_async(self, *args: Any, **options: Any) -> Any:
        self.later.append(lambda: super(PutOff, self).apply_async(*args, **options))


class PutOffTwice(PutOff):
    """Overrides the sending once more."""

    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        super().apply_async(*args, **{**options, "headers": {"twice": True}})


@pytest.fixture(autouse=True)
def _nothing_put_off() -> None:
    PutOff.later.clear()


@pytest.mark.parametrize("base", [PutOff, PutOffTwice])
def test_place_is_taken_when_the_message_is_sent(consumer: Consumer, base: type[Task]) -> None:
    """Beneath the overrides of the base classes, which stay as they are."""
    before = dict(vars(base))
    task = consumer.task(body, {"base": base}, scope="queue_and_run")
    assert task.apply_async() is None
    assert is_free(task)
    assert consumer.message() is None
    (send,) = PutOff.later
    result = send()
    message = consumer.message()
    assert id_of(message) == result.id
    assert message.headers.get("twice", False) is (base is PutOffTwice)
    assert header_of(message).lock == consumer.app.main
    assert consumer.deliver(message) == "ran"
    assert dict(vars(base)) == before


KINDS = """
from celery.app.base import Celery
from celery.app.task import Task
from celery.worker.request import Request
kinds = (Celery, Task, Request)
before = [dict(vars(kind)) for kind in kinds]
"""
IMPORTING = """
    import django_redis_lock.celery
    found = [dict(vars(kind)) for kind in kinds]
    say([name for old, new in zip(before, found) for name in {*old, *new}
         if old.get(name) is not new.get(name)])
"""


def test_an_import_patches_nothing_of_celery() -> None:
    with Child(IMPORTING, before=KINDS) as child:
        assert child.hear() == "[]"


def test_options_by_position(consumer: Consumer) -> None:
    task = consumer.task(body, scope="queue")
    with consumer.app.connection_for_write() as connection:
        result = task.apply_async((), {}, "own", consumer.app.amqp.Producer(connection))
    assert result.id == id_of(consumer.message()) == "own"


# What the annotations of an app do to a task, after or before it is guarded.


def around(method: Any) -> Any:
    """Let a method leave a mark, and do what it does."""

    def marking(self: Any, *args: Any, **kwargs: Any) -> Any:
        type(self).marks.append("mark")
        return method(self, *args, **kwargs)

    return marking


def around_run(method: Any) -> Any:
    """Replace a call by one that runs the task itself."""
    return around(lambda self, *args, **kwargs: self.run(*args, **kwargs))


CALLS = {
    "around": {"@__call__": around},
    "around another": {"@__call__": around_run},
    "in place": {"__call__": around_run(None)},
    "by the base class": {"__call__": around(Task.__call__)},
    "around the run": {"@run": around},
    "in place of the run": {"run": around(lambda self, number: "ran")},
}
SENDINGS = {
    "around": {"@apply_async": around},
    "in place": {"apply_async": around(Task.apply_async)},
}
FORMS: dict[str, Any] = {
    "a name": lambda name, members: {name: members},
    "each": lambda name, members: {"*": members},
    "both": lambda name, members: {name: members, "*": {"rate_limit": None}},
    "an object": lambda name, members: [SimpleNamespace(annotate=lambda task: members)],
}
WHERE = ("below", "above", "above, made", "class", "base class")


@pytest.fixture
def annotated(consumer: Consumer) -> Callable[..., Any]:
    """Makes guarded tasks of an app with annotations."""

    def annotated(where: str, members: Any, form: str = "each", **guard: Any) -> Any:
        app, name = consumer.app, f"{consumer.app.main}.work"
        members = {"marks": [], "throws": (KeyError,), **members}
        app.conf.task_annotations = FORMS[form](name, members)
        decorate = single_instance_task(
            **{"using": "locmem", "key": app.main, "on_conflict": {"run": "raise"}, **guard}
        )

        def work(self: Task, number: int) -> str:
            return "ran"

        if "class" in where:
            own = type("Own", (Task,), {"name": name, "run": work})
            guarded = decorate(own)
            return app.register_task(
                (guarded if where == "class" else type("Derived", (guarded,), {"name": name}))()
            )
        options = {"name": name, "bind": True, "shared": False}
        if where == "below":
            return app.task(**options)(decorate(work))
        return decorate(app.task(lazy=where == "above", **options)(work))

    return annotated


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", WHERE)
def test_annotations_of_calls_apply_and_leave_the_guard_whole(
    consumer: Consumer, annotated: Any, where: str, form: str, how: str
) -> None:
    """Whatever replaces the call of a task, it is made with the lock held or not at all."""
    task = annotated(where, CALLS[how], form)
    for call in (
        lambda: task(1),
        lambda: task.apply((1,)).get(),
        lambda: consumer.deliver(consumer.send(task, 1)),
    ):
        task.marks.clear()
        assert call() == "ran"
        assert task.marks == ["mark"]
        with lock(consumer.app.main, using="locmem"):
            try:
                refused = call()
            except TaskAlreadyRunning as error:
                refused = error
        assert isinstance(refused, TaskAlreadyRunning)
        assert task.marks == ["mark"]
    assert task.throws == (KeyError, TaskAlreadyRunning)


@pytest.mark.parametrize("how", SENDINGS)
@pytest.mark.parametrize("where", WHERE[:-1])
def test_annotations_of_sending_apply_and_leave_the_guard_whole(
    consumer: Consumer, annotated: Any, where: str, how: str
) -> None:
    """Whatever replaces the sending of a task, one message waits at a time."""
    task = annotated(where, SENDINGS[how], scope="queue")
    sent = [task.delay(1).id for _ in range(3)]
    assert len(set(sent)) == 1
    assert "mark" in task.marks
    assert consumer.deliver(consumer.message()) == "ran"
    assert consumer.message() is None


def test_annotations_may_not_change_how_workers_run_a_task(annotated: Any) -> None:
    """As no base class may."""
    with pytest.raises(TypeError, match="a Strategy of its own"):
        assert annotated("below", {"Strategy": "own.strategy:default"}).name


async def coroutine(self: Any = None) -> None:
    """Have nothing to do."""


def generator(self: Any = None) -> Any:
    """Yield nothing."""
    yield


@pytest.mark.parametrize("how", ["function", "class"])
@pytest.mark.parametrize("work", [coroutine, generator])
def test_what_runs_after_its_call_is_refused(how: str, work: Any) -> None:
    """As soon as it is known."""
    guard = single_instance_task(using="locmem")
    with pytest.raises(TypeError, match="coroutine or generator function, whose body runs after"):
        guard(work if how == "function" else type("Work", (Task,), {"run": work}))


class Direct(Task):
    """A base class that knows of no app."""

    abstract = True


@pytest.fixture
def make_app() -> Iterator[Callable[..., Celery]]:
    """Make apps that leave the current one as it is."""
    made: list[Celery] = []

    def make(**options: Any) -> Celery:
        made.append(Celery("own", broker="memory://", set_as_current=False, **options))
        return made[-1]

    yield make
    for app in made:
        app.close()
    made.clear()
    gc.collect()  # or shared tasks would be made for them once more
    tests_app.set_current()


def bound(self: Task, number: int) -> list[Any]:
    """Return the task's name and what it is given."""
    return [self.name, number]


def is_guarded(task: Any) -> bool:
    """Whether a task has its guard, before anybody has called it."""
    return hasattr(task, GUARD)


@pytest.mark.parametrize("final", [False, True], ids=["early", "final"])
@pytest.mark.parametrize("base", [None, Direct, "abstract"])
@pytest.mark.parametrize("bind", [False, True])
def test_a_task_of_a_marked_function_is_guarded(
    make_app: Any, name: str, final: bool, base: Any, bind: bool
) -> None:
    """Whether or not its app is final, and whatever its base; also where it never gets final."""
    app = make_app()
    if final:
        app.finalize()
    if base == "abstract":
        base = type("Base", (app.Task,), {"abstract": True})
    options = {"base": base} if base else {}
    marked = single_instance_task(using="locmem")(bound if bind else body)
    task = app.task(name=name, shared=False, bind=bind, **options)(marked)
    assert task.name == name
    assert app.finalized is final
    assert is_guarded(task)


def test_a_shared_task_is_guarded_in_every_app(make_app: Any, name: str) -> None:
    """In those that are final, in those that are not yet, and in those that come."""
    final, early = make_app(), make_app()
    final.finalize()

    def work() -> None: ...

    shared_task(name=f"{name}-below")(single_instance_task(using="locmem")(body))
    single_instance_task(using="locmem")(shared_task(name=f"{name}-above")(work))
    for app in (final, early, make_app()):
        for where in ("below", "above"):
            assert is_guarded(app.tasks[f"{name}-{where}"])


class Unwatched:
    """A task that Celery makes without asking for annotations: its base class had an app before."""

    def __init__(self, app: Celery, name: str, function: Any, **options: Any) -> None:
        base = type("Base", (Task,), {"abstract": True})
        base.bind(app)
        app.finalize()
        guard = single_instance_task(using="locmem")
        self.task = app.task(name=name, shared=False, base=base, **options)(guard(function))


@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize("how", ["apply", "direct"])
def test_a_task_that_nobody_tells_of_is_guarded_at_its_first_run(
    make_app: Any, name: str, caplog: pytest.LogCaptureFixture, bind: bool, how: str
) -> None:
    """That run is guarded already, and a warning names the way out."""
    task = Unwatched(make_app(), name, bound if bind else body, bind=bind).task
    args = (7,) if bind else ()
    assert not is_guarded(task)

    def run() -> Any:
        return task(*args) if how == "direct" else task.apply(args).get()

    with caplog.at_level(logging.WARNING), lock(name, using="locmem"):
        assert run()["skipped"]
        assert run()["skipped"]
    assert run() == ([name, 7] if bind else "ran")
    (line,) = [record.message for record in caplog.records if name in record.message]
    assert "put @single_instance_task above Celery's decorator (W005)" in line


def test_a_worker_that_has_traced_such_a_task_goes_through_the_guard(
    make_app: Any, name: str
) -> None:
    """A worker decides before the first run how to call it, and leaves out ``__call__``."""
    from celery.app.trace import build_tracer

    app = make_app()
    task = Unwatched(app, name, body).task
    trace = build_tracer(name, task, app=app, eager=True, propagate=True)
    with lock(name, using="locmem"):
        for number in range(2):
            request = {"id": f"{name}-{number}", "is_eager": True}
            assert trace(request["id"], (), {}, request).retval["skipped"]
    assert trace("3", (), {}, {"id": "3", "is_eager": True}).retval == "ran"


class Batches(Task):
    """Has messages handled its own way, as celery-batches does."""

    abstract = True

    def Strategy(self, *args: Any) -> Any:
        """Return what handles a message."""


class Traced(Task):
    """Brings the function by which workers run it."""

    abstract = True

    def __trace__(self, *args: Any) -> Any: ...


REFUSED = {
    Batches: r"has a Strategy of its own.*lock\(\) in a with statement",
    Traced: r"has a __trace__ of its own.*lock\(\) in a with statement",
    type("Own", (QueueOnce,), {"abstract": True}): "has a guard .* celery_once.tasks.QueueOnce, ",
    Singleton: "has a guard of its own, from celery_singleton.*Remove one of the two",
}


@pytest.mark.parametrize("base", REFUSED)
@pytest.mark.parametrize("where", ["below", "above", "class", "option", "app"])
def test_a_base_class_that_runs_or_guards_its_own_way_is_refused(
    make_app: Any, name: str, base: type[Task], where: str
) -> None:
    """Where the task is made, and at each use; its workers would never come by the guard."""
    app = make_app()
    guard = single_instance_task(using="locmem")
    ways = {"Strategy", "__trace__"} & set(vars(base)) if where == "option" else ()
    options: dict[str, Any] = {way: vars(base)[way] for way in ways} or {"base": base}
    text = f"Task {name} {REFUSED[base]}"
    with pytest.raises(TypeError, match=text):
        if where == "class":
            guard(type("Work", (base,), {"name": name, "run": bound}))
        elif where == "above":
            assert guard(app.task(name=name, shared=False, **options)(body)).name
        else:
            app.finalize()
            if where == "app":
                app.Task = options.pop("base")
            assert app.task(name=name, shared=False, **options)(guard(body)).name
    for task in [app.tasks[name]] if name in app.tasks else []:
        for use in (task.delay, task):
            with pytest.raises(TypeError, match=text):
                use()


PRIVATE_MODULES = ("celery._state", "celery.local", "celery.app.annotations", "billiard")


def test_all_of_it_stands_in_one_module() -> None:
    """No other module of the guard imports it."""
    for path in (ROOT / "django_redis_lock").rglob("*.py"):
        if path.name == "private.py":
            continue
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PRIVATE_MODULES):
                pytest.fail(f"{path} imports from {node.module}")


def test_a_call_in_a_worker_is_known(own_app: Celery) -> None:
    """However deep; eager and direct calls count for what they are called in."""

    @own_app.task
    def inner() -> bool:
        return private.in_worker()

    @own_app.task
    def outer() -> list[bool]:
        return [inner(), inner.apply().get()]

    assert (outer(), outer.apply().get()) == ([False, False], [False, False])
    tracer = build_tracer("outer", outer, app=own_app)
    traced = tracer("id", (), {}, {"id": "id", "delivery_info": {}})
    assert traced.retval == [True, True]
    assert not private.in_worker()
