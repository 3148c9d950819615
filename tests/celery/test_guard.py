"""How the guard gets between Celery, the classes of tasks and their bases."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from celery import Task

from django_redis_lock import locks
from django_redis_lock.celery import single_instance_task
from django_redis_lock.celery.running import current_lock
from tests.celery.consumer import Consumer, body, id_of, is_free, slip_of


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


class Mixin:
    """Is no task, and sends none."""


class PutOffWithMixin(Mixin, PutOff):
    abstract = True


class PutOffItself(PutOff):
    """Overrides the sending itself, and has its own way to be called."""

    called = False

    def apply_async(self, *args: Any, **options: Any) -> Any:
        super().apply_async(*args, **{**options, "headers": {"twice": True}})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.called = True
        return super().__call__(*args, **kwargs)

    def run(self) -> list[str]:
        lock = current_lock()
        assert lock is not None
        return [lock.name]


@pytest.fixture(autouse=True)
def _nothing_put_off() -> None:
    PutOff.later.clear()


@pytest.mark.parametrize("base", [PutOff, PutOffTwice, PutOffWithMixin])
def test_place_is_taken_when_the_message_is_sent(consumer: Consumer, base: type[Task]) -> None:
    """Beneath the overrides of the base classes, which stay as they are."""
    before = dict(vars(base))
    task = consumer.task(body, {"base": base}, scope="queue_and_run")
    other = consumer.task(print, {"base": base}, scope="queue_and_run", key="other")
    assert task.apply_async() is None
    assert is_free(task)
    assert consumer.message() is None
    (send,) = PutOff.later
    result = send()
    message = consumer.message()
    assert id_of(message) == result.id
    assert message.headers.get("twice", False) is (base is PutOffTwice)
    assert slip_of(message).lock == consumer.app.main
    assert consumer.deliver(message) == "ran"
    assert dict(vars(base)) == before
    inserted = [
        cls
        for each in (task, other)
        for cls in each.__class__.__mro__
        if cls.__name__ == "GuardedTask"
    ]
    assert len(set(inserted)) == 2
    assert all(vars(cls)["abstract"] for cls in inserted)


def test_class_with_methods_of_its_own(consumer: Consumer) -> None:
    """They are called as before, inside of the guard of calls and above that of sending."""
    calls: list[Any] = []

    def call(self: Any) -> Any:
        calls.append(current_lock())
        return super(own, self).__call__()

    own = type("Own", (PutOffItself,), {"__call__": call})
    guard = single_instance_task(using="locmem", key=consumer.app.main, scope="queue")
    task = consumer.app.register_task(guard(own)())
    task.apply_async()
    assert is_free(task)
    PutOff.later.pop()()
    message = consumer.message()
    assert message.headers["twice"]
    assert slip_of(message).lock == f"{consumer.app.main}~~queued:{task.name}"
    assert consumer.deliver(message) == [consumer.app.main]
    assert task.called
    (lock,) = calls
    assert lock.name == consumer.app.main


def test_task_has_its_lock(consumer: Consumer) -> None:
    def work(self: Any) -> list[Any]:
        return [self.lock.name, self.lock.fence]

    task = consumer.task(work, {"bind": True})
    name, fence = consumer.deliver(consumer.send(task))
    assert name == consumer.app.main
    assert fence > 0
    assert task.lock is None
    assert task.__class__.lock.__doc__ == current_lock.__doc__


def test_attribute_with_the_name_of_the_lock_stays(consumer: Consumer) -> None:
    base = type("Base", (Task,), {"abstract": True, "lock": "its own"})
    assert consumer.task(body, {"base": base}).lock == "its own"


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


def test_bases_of_the_same_name_elsewhere_are_no_other_guards(consumer: Consumer) -> None:
    """Only those of celery-once and celery-singleton are."""
    base = type("Singleton", (Task,), {"abstract": True, "__module__": "celery_singleton_like.a"})
    assert consumer.task(body, {"base": base}) is not None
    other = type("QueueOnce", (Task,), {"abstract": True, "__module__": "celery_once.tasks.own"})
    with pytest.raises(TypeError, match=r"base class celery_once\.QueueOnce, which guards it"):
        consumer.task(body, {"base": other, "lazy": False})
    assert not list(locks["locmem"].holders())
