"""The watch over the children of a worker, which lists the held locks only after a death."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from django_redis_lock.celery import freeing, private


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
