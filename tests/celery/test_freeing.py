"""The release of locks for those who can't, in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.celery import freeing, private
from django_redis_lock.celery.key_locks import FAMILY
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import began_at, current_process
from example_project.embedded import EmbeddedServer
from tests.celery.consumer import lines
from tests.tools import eventually
from tests.tools.admin import hold_as

WAIT = 20


@pytest.fixture(autouse=True)
def _finished() -> Iterator[None]:
    """What a test has begun ends with it."""
    yield
    freeing.finish(WAIT)


def take(name: str) -> Holder:
    lock(name).acquire()
    holder = locks["default"].holder(name)
    assert holder is not None
    return holder


def is_free(name: str) -> Callable[[], bool]:
    return lambda: locks["default"].holder(name) is None


def test_lock_is_released_for_its_holder(
    server: EmbeddedServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And for nobody who holds it by then."""
    holder = take(name)
    freeing.free("default", name, holder.token_id)
    eventually(is_free(name))
    eventually(lambda: lines(caplog))
    assert lines(caplog) == [f"Released lock {name!r}, as its holder is gone: {holder}"]
    (entry,) = locks["default"].history(name)
    assert entry.reason == "its process or message is gone"
    take(name)
    freeing.free("default", name, holder.token_id)
    freeing.finish(WAIT)
    assert not is_free(name)()


def test_locks_of_the_dead_are_released(server: EmbeddedServer) -> None:
    """Of tasks of any worker whose process on this host is proved to be gone, and no others."""
    gone, cut_off = [subprocess.Popen([sys.executable, "-c", ""]) for _ in range(2)]
    assert gone.wait() == cut_off.wait() == 0
    ours, me = {"worker": FAMILY}, os.getpid()
    killed: dict[str, Any] = {"pid": cut_off.pid, "marks": {}}
    here: dict[str, Any] = {
        "host": current_process().host,
        "pid": gone.pid,
        "pid_space": current_process().pid_space,
        "marks": {"worker": "earlier"},
    }
    dead: dict[str, dict[str, Any]] = {
        "a-process-of-another-worker": {},
        "one-of-this-worker,-of-an-older-version": {"marks": ours, "pid_space": ""},
        "one-whose-id-is-anothers-now": {"pid": me, "pid_began": began_at(me) - 1},
        "one-that-has-rested": {"marks": {**ours, "at_least_for": "20.0"}, "held_for": 30},
        "a-killed-tasks": {**killed, "held_for": 8},
        "a-killed-tasks,-renewed": {**killed, "held_for": 30, "auto_renew": True},
    }
    rest = {"marks": {**ours, "at_least_for": "50.0"}, "held_for": 30, "metadata": {}}
    resting: dict[str, dict[str, Any]] = {
        "one-that-has-to-rest": rest,
        "a-permit-that-has-to-rest": {**rest, "limit": 2},
    }
    left: dict[str, dict[str, Any]] = {
        "one-that-lives": {"pid": me, "pid_began": began_at(me)},
        "one-that-may-live": {"pid": me},
        "another-hosts": {"host": "elsewhere"},
        "another-containers": {"pid_space": "0123abcd"},
        "of-an-older-version": {"pid_space": None},
        "a-messages": {"marks": {"worker": "earlier", "state": "queued"}},
        "no-tasks": {"marks": {}},
        "an-earlier-tasks": {**killed, "held_for": 12},
        "a-detached-one-of-a-killed-task": {**killed, "marks": {"state": "detached"}},
        "anothers-with-the-id-of-a-killed-child": {**killed, "pid_space": "0123abcd"},
    }
    with redis.Redis.from_url(server.url()) as client:
        for name, changes in (dead | resting | left).items():
            hold_as(client, name, **{**here, **changes})
    (attempted,) = freeing.free_dead(["default"], {cut_off.pid: time.monotonic() - 10})
    assert attempted.wait(WAIT)
    freeing.finish(WAIT)
    holders = {holder.name: holder for holder in locks["default"].holders()}
    assert set(holders) == {*left, *resting}
    for name in resting:
        assert holders[name].marks == {**rest["marks"], "state": "resting"}
        assert 15 < holders[name].ttl <= 20


def test_aliases_do_not_wait_for_each_other(
    server: EmbeddedServer, name: str, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """That of a silent server is tried again, told of once, and once more as the worker ends."""
    settings.LOCKS = {**settings.LOCKS, "down": {"LOCATION": "redis://127.0.0.1:1/0"}}
    for _ in range(2):
        freeing.free("down", name, "0" * 16)
    eventually(lambda: lines(caplog))
    freeing.free("default", name, take(name).token_id)
    eventually(is_free(name))
    freeing.finish(WAIT)
    told = [text for text in lines(caplog) if "; retrying: " in text]
    assert len(told) == 1
    assert not [each for each in threading.enumerate() if "-free-" in each.name]


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
