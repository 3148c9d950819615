"""A task whose options change while old workers run and old messages wait."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from celery.exceptions import Retry

from django_redis_lock import locks
from django_redis_lock.celery.key_locks import TaskLock
from tests.apps.celery.app import QUEUE_AND_RUN, SCOPES
from tests.celery.consumer import Consumer, body, id_of, key_locks
from tests.tools.docs import DOCS, table

PAGE = DOCS / "explanation/how-tasks-are-guarded.md"
ROWS = [
    (before, after, re.findall(r"\*\*(.+?)\*\*", reservation)[0], int(most))
    for before, after, reservation, most in table(PAGE, "Deploys")
]
"""Those of the page: the number before and after, what becomes of the lock of a waiting message,
and how many run at most while old and new workers do."""

pytestmark = [
    pytest.mark.usefixtures("server"),
    pytest.mark.parametrize("using", ["locmem", "default"]),
]


def deploy(consumer: Consumer, number: str, **guard: Any) -> Any:
    name = f"{consumer.app.main}.{body.__name__}"
    if name in consumer.app.tasks:
        consumer.app.tasks.unregister(name)
    return consumer.task(body, concurrency=int(number), **guard)


def renamed() -> str:
    return "ran"


OTHER = {"locmem": "default", "default": "locmem"}


@pytest.mark.parametrize(
    ("old", "new", "change"), [*product(SCOPES, SCOPES, ["nothing", "key", "name", "alias"])]
)
def test_message_of_another_scope_key_or_alias_runs_once(
    consumer: Consumer, old: str, new: str, change: str, using: str
) -> None:
    """Beside no other, and leaves nothing locked."""
    before: dict[str, Any] = {"scope": old, "using": using, "on_conflict": {"run": "wait"}}
    before |= {"key": None} if change == "name" else {}
    after = before | {"scope": new}
    after |= {"key": {"key": "new"}, "alias": {"using": OTHER[using]}}.get(change, {})
    first = consumer.send(deploy(consumer, "1", **before))
    task = deploy(consumer, "1", **after)
    if change == "name":  # for the messages that are on their way
        consumer.app.tasks[task.name] = task = consumer.task(renamed, **after)
    second = task.delay()
    results = [consumer.deliver(first), *consumer.serve()]
    ended = [each for each in results if not isinstance(each, Retry)]
    assert ended == ["ran"] * len({id_of(first), second.id})
    assert not [*locks["locmem"].holders(), *locks["default"].holders()]


def take(task: Any, task_id: str) -> TaskLock | None:
    call = key_locks(task, task_id)
    lock = call.handle(call.name, 60)
    lock.sharing = call.sharing
    return lock if lock.acquire(blocking=False) else None


@pytest.mark.parametrize("redelivered", [False, True])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(("before", "after", "reservation", "_"), ROWS)
def test_waiting_message_runs_once_and_leaves_nothing(
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    after: str,
    reservation: str,
    _: int,
    scope: str,
    redelivered: bool,
    using: str,
) -> None:
    """Its lock stays with it if it has the name of the new one, in whatever form it was taken."""
    task = deploy(consumer, before, scope=scope, using=using)
    message = consumer.send(task)
    deploy(consumer, after, scope=scope, using=using)
    taken, acquire = [], TaskLock.acquire

    def note(self: TaskLock, **how: Any) -> bool:
        acquired = acquire(self, **how)
        taken.extend([self.name] * acquired)
        return acquired

    monkeypatch.setattr(TaskLock, "acquire", note)
    assert consumer.deliver(message, redelivered=redelivered) == "ran"
    stays = scope == QUEUE_AND_RUN and reservation == "stays with it"
    assert taken == ([] if stays else [consumer.app.main])
    assert consumer.message() is None
    assert not list(locks[using].holders(f"{consumer.app.main}*"))


@pytest.mark.parametrize(("before", "after", "reservation", "_"), ROWS)
def test_place_of_a_message_that_has_ended_is_taken_over(
    consumer: Consumer, before: str, after: str, reservation: str, _: int, using: str
) -> None:
    """By the next call, in whatever form it was taken."""
    task = deploy(consumer, before, scope=QUEUE_AND_RUN, using=using)
    for _each in range(int(before)):
        task.backend.store_result(id_of(consumer.send(task)), None, "REVOKED")
    task = deploy(consumer, after, scope=QUEUE_AND_RUN, using=using)
    assert consumer.deliver(consumer.send(task)) == "ran"


@pytest.mark.parametrize(("before", "after", "_", "most"), ROWS)
def test_so_many_run_at_most(
    consumer: Consumer, before: str, after: str, _: str, most: int, using: str
) -> None:
    """While workers of both run, whichever begin first."""

    def at_once(*numbers: str) -> int:
        taken = []
        for number in numbers:
            task = deploy(consumer, number, using=using)
            taken += [take(task, f"{number} {each}") for each in range(4)]
        held = [lock for lock in taken if lock is not None]
        for lock in held:
            lock.release()
        return len(held)

    assert max(at_once(before, after), at_once(after, before)) == most
