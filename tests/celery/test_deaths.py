"""The watch over the children of a worker, which lists the held locks only after a death."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace
from typing import Any

import billiard
import pytest

from django_redis_lock.celery import freeing, private
from django_redis_lock.celery.private import children_of, cut_off_since, jobs_of, was_recycled
from tests.tools import eventually


def children(pool: Any) -> list[Any]:
    return [*children_of(SimpleNamespace(_pool=pool)).values()]


def test_recycled_child_is_told_from_a_killed_one() -> None:
    pool = billiard.Pool(1, maxtasksperchild=1, lost_worker_timeout=0.1)  # which its end waits for
    try:
        (first,) = children(pool)
        pool.apply(os.getpid)
        eventually(lambda: first.exitcode is not None)
        assert was_recycled(first)
        assert cut_off_since(first, 1.0, None) is None
        (second,) = eventually(lambda: [one for one in children(pool) if one.pid != first.pid])
        eventually(lambda: second.pid)
        assert not was_recycled(second)
        began = time.monotonic()
        pool.apply_async(time.sleep, (60,))
        job = eventually(lambda: jobs_of(SimpleNamespace(_pool=pool)).get(second.pid))
        os.kill(second.pid, signal.SIGKILL)
        eventually(lambda: second.exitcode is not None)
        assert not was_recycled(second)
        assert cut_off_since(second, 1.0, None) == 1.0
        assert began <= cut_off_since(second, 1.0, job) <= time.monotonic()
    finally:
        pool.terminate()
        pool.join()


def test_a_pool_that_has_stopped_has_no_children_and_no_jobs() -> None:
    """The watch ends later, and would log an error otherwise."""
    freeing.ChildWatch(SimpleNamespace(_pool=None), ["default"]).poll()


@pytest.mark.parametrize(
    ("after", "listings", "killed"),
    [
        ([1, 2], (0, 0), {}),
        ([2], (2, 0), {1: 5.0}),
        ([2, 3], (2, 0), {1: 5.0}),
        ([1, 2, 3], (2, 2), {}),
    ],
    ids=["none", "not replaced", "replaced", "born and died unseen"],
)
@pytest.mark.parametrize("recycled", [False, True])
def test_only_a_death_costs_listings(
    monkeypatch: pytest.MonkeyPatch,
    after: list[int],
    listings: tuple[int, int],
    killed: dict[int, float],
    recycled: bool,
) -> None:
    """There are two, as the server may have been asked for a lock just before the death."""
    asked: list[Any] = []
    alive = [1, 2]
    monkeypatch.setattr(private, "children_of", lambda pool: dict.fromkeys(alive))
    monkeypatch.setattr(freeing, "state_of", lambda pid: "S")
    monkeypatch.setattr(freeing, "began_at", lambda pid: 1)
    monkeypatch.setattr(private, "was_recycled", lambda child: recycled)
    monkeypatch.setattr(private, "jobs_of", lambda pool: {})
    monkeypatch.setattr(private, "cut_off_since", lambda *known: None if recycled else 5.0)
    monkeypatch.setattr(freeing, "free_dead", lambda *given: asked.append(given))
    watch = freeing.ChildWatch(None, ["default"])
    for _ in range(2):
        watch.poll()
    asked.clear()
    alive = after
    for _ in range(3):
        watch.poll()
    assert asked == [(["default"], killed)] * listings[recycled]
