"""A guarded task and its conflicts, by each serializer and result backend."""

from __future__ import annotations

import itertools

import pytest

from django_redis_lock.celery import TaskAlreadyRunning
from tests.apps.celery.brokers import BACKENDS, SERIALIZERS
from tests.brokers.site import Site, value
from tests.tools import eventually
from tests.tools.celery_worker import free, go, started

VARIANTS = [f"{serializer}-{kind}" for serializer, kind in itertools.product(SERIALIZERS, BACKENDS)]
variants = pytest.mark.parametrize("variant", VARIANTS)


def stores(variant: str) -> bool:
    return not variant.endswith("-none")


def duplicate(site: Site, name: str) -> tuple[str, str]:
    """Send a task twice; return what it is about and the id of the second one, once that ended."""
    what, task = site.name(), site.task(name)
    task.delay(what)
    started(site.client, what)
    second = task.delay(what)
    eventually(lambda: len(site.worker.lines(f"[{second.id}] ")) >= 3, "the end of the duplicate")
    go(site.client, what)
    free(f"{name}:{what}")
    assert site.ran(what) == ["1"]
    return what, second.id


def errors_of(site: Site, task_id: str) -> list[str]:
    """Return what the worker's log says of a task as an error."""
    lines = site.worker.lines(f"[{task_id}]")
    return [line for line in lines if "ERROR" in line or "CRITICAL" in line]


@variants
def test_a_skipped_duplicate_is_a_plain_dict(site: Site, variant: str) -> None:
    """Whatever the serializer, the result is a dict of plain values."""
    what, task_id = duplicate(site, f"skip-{variant}")
    assert errors_of(site, task_id) == []
    if stores(variant):
        task = site.task(f"skip-{variant}")
        skipped = value(task.AsyncResult(task_id))
        assert type(skipped) is dict
        assert (skipped["skipped"], skipped["key"]) == (True, f"skip-{variant}:{what}")
        assert skipped["holder"]["task_name"] == task.name


@variants
def test_a_refused_duplicate_is_the_same_exception(site: Site, variant: str) -> None:
    """The exception comes back with its class and attributes; no log tells of a failure."""
    what, task_id = duplicate(site, f"raise-{variant}")
    if stores(variant):
        task = site.task(f"raise-{variant}")
        with pytest.raises(TaskAlreadyRunning) as caught:
            value(task.AsyncResult(task_id))
        assert caught.value.name == f"raise-{variant}:{what}"
        assert caught.value.holder is not None
        assert caught.value.holder["task_name"] == task.name
    assert errors_of(site, task_id) == []
