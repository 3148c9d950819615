"""The locks that belong to a key: each name stands for one thing."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from django_redis_lock import lock, locks
from django_redis_lock.celery.guard import GUARD
from django_redis_lock.celery.options import make_options
from django_redis_lock.celery.places import Places
from django_redis_lock.support.arguments import check_name
from tests.celery.consumer import Consumer, body, id_of

TASKS = ("shop.tasks.sync", "queued", "~", "~~", "a~~1", "t" * 512, "t" * 513, "a\nb")


def names_of(key: str) -> dict[Any, str]:
    """Return the names of all locks of a key, by what they stand for."""
    several = Places(make_options({"concurrency": 2}), key, None, None).names
    (run,) = Places(make_options(), key, None, None).names
    places = {
        task: Places(make_options(), key, SimpleNamespace(name=task), None).waiting
        for task in TASKS
    }
    return {**places, **dict(enumerate(several)), "run": run}


def test_no_key_gives_the_name_that_stands_for_something_else() -> None:
    """Whatever keys and tasks are called, also after the locks of other keys."""
    keys = {"a", "a~", "a~~", "~~~", "a~~run", "a~~1", "a~~queued:queued", "a:queued", "a#1"}
    keys |= {"k" * 250, "k" * 511, "k" * 512, "k" * 511 + "l", "k" * 510 + "~~"}
    keys |= {name for key in sorted(keys) for name in names_of(key).values()}
    found = defaultdict(set)
    for key in keys:
        for what, name in names_of(key).items():
            found[check_name(name)].add((key, what))
    assert [what for what in found.values() if len(what) > 1] == []
    assert Places(make_options(), "import:7", None, None).names == ["import:7"]


@pytest.mark.parametrize("policy", ["skip", "supersede"])
def test_key_that_is_called_like_a_place_is_a_key_like_any_other(
    consumer: Consumer, policy: str
) -> None:
    """Neither the run nor the message of one key is in the way of those of the other."""
    name = consumer.app.main
    task = consumer.task(body, key="{args[0]}", scope="queue", on_conflict=policy)
    options = getattr(task, GUARD).options
    place = Places(options, name, task, None).waiting
    for like in (f"{name}:queued", place, f"{place}~~run"):
        running = Places(options, like, task, "runs").take(60)
        assert running is not None
        first, second = consumer.send(task, name), consumer.send(task, like)
        assert id_of(first) != id_of(second)
        assert consumer.deliver(first) == "ran"
        running.release()
        assert consumer.deliver(second) == "ran"
    with lock(place, 60, using="locmem"):
        assert consumer.deliver(consumer.send(task, place)) == "ran"
    assert not list(locks["locmem"].holders(f"{name}*"))


@pytest.mark.parametrize("key", ["", "k" * 513, "a\0b"])
def test_key_that_is_no_name_is_refused_when_it_is_sent(consumer: Consumer, key: str) -> None:
    """Not by the worker, which would lose the message."""
    task = consumer.task(body, key="{args[0]}", scope="queue")
    with pytest.raises(ValueError, match="A lock's name"):
        task.delay(key)
    assert consumer.message() is None


@pytest.mark.parametrize(
    ("scope", "policy"), [("queue", "skip"), ("queue", "supersede"), ("queue_and_run", "skip")]
)
def test_each_task_of_a_key_has_a_place_of_its_own(
    consumer: Consumer, scope: str, policy: str
) -> None:
    """A call is no duplicate of another task's message, and the runs follow each other."""

    def other() -> str:
        return "other"

    one, two = (
        consumer.task(each, scope=scope, on_conflict={"queue": policy}) for each in (other, body)
    )
    first, second = consumer.send(one), consumer.send(two)
    assert id_of(first) != id_of(second)
    if policy == "skip":
        assert (one.delay().id, two.delay().id) == (id_of(first), id_of(second))
        assert consumer.message() is None
    assert consumer.deliver(first) == "other"
    assert consumer.deliver(second) == "ran"
    assert not list(locks["locmem"].holders(f"{consumer.app.main}*"))
