"""How the guard gets between Celery, the classes of tasks and their bases."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from celery import Task

from django_redis_lock import lock
from django_redis_lock.celery import TaskAlreadyRunning, single_instance_task
from tests.celery.consumer import Consumer, body, header_of, id_of, is_free


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
