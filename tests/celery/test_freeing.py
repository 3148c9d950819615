"""The release of locks for those who can't, in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.celery import freeing
from django_redis_lock.celery.places import FAMILY
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import began_at, current_process
from example_project.embedded import EmbeddedServer
from tests.tools import eventually
from tests.tools.admin import hold_as

WAIT = 20


@pytest.fixture(autouse=True)
def _finished() -> Iterator[None]:
    """What a test has begun ends with it."""
    yield
    freeing.finish(WAIT)


@pytest.fixture
def freer() -> freeing._Freer:
    return freeing._Freer("default")


class Work:
    """Notes when it is done, and fails as often as it is told to."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.attempts = 0
        self.threads: list[threading.Thread] = []
        self.attempted = threading.Event()
        self.done = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, backend: Any) -> None:
        assert backend is locks["default"]
        self.attempts += 1
        self.threads.append(threading.current_thread())
        self.attempted.set()
        self.go_on.wait(WAIT)
        if self.errors:
            raise self.errors.pop(0)
        self.done.set()


def under_way() -> tuple[freeing._Freer, Work]:
    """Begin work for the default alias that goes on until the test lets it."""
    freeing._freers["default"] = freer = freeing._Freer("default")
    work = Work()
    work.go_on.clear()
    freer.add(work)
    assert work.attempted.wait(WAIT)
    return freer, work


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [item.getMessage() for item in caplog.records if item.name == freeing.logger.name]


def take(name: str) -> Holder:
    """Take a lock for good; return its holder."""
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
    eventually(lambda: texts(caplog))
    assert texts(caplog) == [f"Lock {name!r} was released for {holder}, which is gone"]
    (entry,) = locks["default"].history(name)
    assert entry.reason == "the process or message that it was held for is gone"
    take(name)
    freeing.free("default", name, holder.token_id)
    freeing.finish(WAIT)
    assert not is_free(name)()


def test_locks_of_the_dead_are_released(server: EmbeddedServer) -> None:
    """Of tasks of any worker whose process on this host is proved to be gone, and no others."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ours, me = {"worker": FAMILY}, os.getpid()
    here: dict[str, Any] = {
        "host": current_process().host,
        "pid": gone.pid,
        "pid_space": current_process().pid_space,
        "metadata": {"worker": "earlier"},
    }
    dead: dict[str, dict[str, Any]] = {
        "a-process-of-another-worker": {},
        "one-of-this-worker,-of-an-older-version": {"metadata": ours, "pid_space": ""},
        "one-whose-id-is-anothers-now": {"pid": me, "pid_began": began_at(me) - 1},
    }
    left: dict[str, dict[str, Any]] = {
        "one-that-lives": {"pid": me, "pid_began": began_at(me)},
        "one-that-may-live": {"pid": me},
        "another-hosts": {"host": "elsewhere"},
        "another-containers": {"pid_space": "0123abcd"},
        "of-an-older-version": {"pid_space": None},
        "a-messages": {"metadata": {"worker": "earlier", "state": "queued"}},
        "no-tasks": {"metadata": {}},
    }
    with redis.Redis.from_url(server.url()) as client:
        for name, changes in (dead | left).items():
            hold_as(client, name, **{**here, **changes})
    assert freeing.free_dead("default").wait(WAIT)
    freeing.finish(WAIT)
    assert {holder.name for holder in locks["default"].holders()} == set(left)


def test_aliases_do_not_wait_for_each_other(server: EmbeddedServer, settings: Any) -> None:
    """Each has a thread, that ends with its work and is not waited for at exit."""
    settings.LOCKS = {**settings.LOCKS, "other": settings.LOCKS["default"]}
    freer, work = under_way()
    (thread,) = work.threads
    assert thread.name == "django-redis-lock-free-default"
    assert thread.daemon
    freeing.free("other", "nobody's", "0" * 16)
    other = freeing._freers["other"]
    eventually(lambda: other._thread is None)
    work.go_on.set()
    eventually(lambda: freer._thread is None)
    assert work.attempts == 1


@pytest.mark.usefixtures("server")
def test_work_waits_for_the_server(
    freer: freeing._Freer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its order; the log tells of it once."""
    monkeypatch.setattr(freeing, "RETRY_EVERY", 0.001)
    first, second = Work(LockUnavailable("no"), LockUnavailable("still no")), Work()
    first.go_on.clear()
    freer.add(first)
    freer.add(second)
    first.go_on.set()
    assert second.done.wait(WAIT)
    assert first.done.is_set()
    assert (first.attempts, second.attempts) == (3, 1)
    assert texts(caplog) == ["Locks of LOCKS['default'] can't be released yet: no"]


@pytest.mark.usefixtures("server")
def test_work_that_fails_is_left(freer: freeing._Freer, caplog: pytest.LogCaptureFixture) -> None:
    """What another program wrote does not stop the others."""
    first, second = Work(ValueError("what is that")), Work()
    freer.add(first)
    freer.add(second)
    assert second.done.wait(WAIT)
    assert first.attempts == 1
    assert texts(caplog) == ["A lock of LOCKS['default'] can't be released: what is that"]


@pytest.mark.usefixtures("server")
def test_end_makes_one_further_attempt(
    freer: freeing._Freer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once; the rest is dropped then."""
    monkeypatch.setattr(freeing, "RETRY_EVERY", 3600)
    first, second = Work(*[LockUnavailable("no")] * 5), Work()
    freer.add(first)
    freer.add(second)
    assert first.attempted.wait(WAIT)
    freer.end()
    freer.join(monotonic() + WAIT)
    assert freer._thread is None
    assert first.attempts <= 2
    assert second.attempts == 0
