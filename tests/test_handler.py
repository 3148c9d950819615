"""``locks`` makes each backend at first use, and has one of each alias."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from django_redis_lock import lock, lock_many, locks, semaphore
from django_redis_lock.exceptions import LockError
from django_redis_lock.primitives.held import register
from example_project.embedded import EmbeddedServer
from tests.tools import ROOT, Background, eventually, waiters

LOCMEM = "django_redis_lock.backends.locmem.LocMemLockBackend"
OWN_BACKEND = """
import builtins
from django_redis_lock import locks
from django_redis_lock.backends.locmem import LocMemLockBackend

vars(builtins).get("own_backend_pauses", lambda: None)()
name = locks["other"].alias

class OwnBackend(LocMemLockBackend):
    pass
"""


@pytest.fixture
def own_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A backend whose module uses ``locks`` while it is imported."""
    (tmp_path / "own_backend.py").write_text(OWN_BACKEND)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_backend.OwnBackend"
    sys.modules.pop("own_backend", None)


def test_a_backend_may_use_locks_as_it_is_imported(settings: Any, own_backend: str) -> None:
    """Its module asks for another backend while ``locks`` imports it."""
    settings.LOCKS = {"default": {"BACKEND": own_backend}, "other": {"BACKEND": LOCMEM}}
    assert Background(lambda: locks["default"]).outcome().alias == "default"
    assert sys.modules["own_backend"].name == "other"


def test_threads_that_ask_at_first_get_one_backend(settings: Any) -> None:
    settings.LOCKS = {"default": {"BACKEND": LOCMEM}}
    ready = threading.Barrier(20)

    def ask() -> object:
        ready.wait(20)
        return locks["default"]

    asking = [Background(ask) for _ in range(20)]
    assert len({id(one.outcome()) for one in asking}) == 1


def test_a_thread_that_waits_for_itself_by_another_alias(
    settings: Any, server: EmbeddedServer, name: str
) -> None:
    """Two aliases of one database have the same locks; one of another database has others."""
    settings.LOCKS = {
        "default": {"LOCATION": server.url()},
        "same": {"LOCATION": server.url(), "OPTIONS": {"WAIT": "poll"}},
        "other": {"LOCATION": server.url(1)},
    }
    other = lock(name, using="other")
    assert Background(other.acquire).outcome()

    def release() -> None:
        eventually(lambda: waiters(name, "other") == 1)
        other.release()

    with lock(name) as held:
        with pytest.raises(LockError, match="this thread, which would wait for itself for ever"):
            lock(name, using="same").acquire()
        releasing = Background(release)
        assert lock(name, using="other").acquire()
        releasing.outcome()
        held.ensure_held()


PLAIN = """
import sys
import django
from django.conf import settings

cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": sys.argv[1]}
settings.configure(INSTALLED_APPS=["django_redis_lock"], CACHES={"default": cache})
django.setup()
from django_redis_lock import lock

with lock(sys.argv[2]):
    others = ("locmem", "dummy", "redlock", "getset")
    print([name for name in others if f"django_redis_lock.backends.{name}" in sys.modules])
"""


def test_backends_that_are_not_used_are_not_imported(name: str, server: EmbeddedServer) -> None:
    """A site with the defaults imports the redis backend alone."""
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, server.url(), name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_each_permit_that_a_thread_holds_is_known(name: str, server: EmbeddedServer) -> None:
    with semaphore(name, 2) as first, semaphore(name, 2) as second:
        holds = [holder.token_id for holder in locks["default"].holders(name)]
        known = [register.of_hold(hold) for hold in holds]
        assert {lease and lease.fence for lease in known} == {first.fence, second.fence}


def test_a_reader_may_write_under_the_same_name_of_another_alias(
    name: str, server: EmbeddedServer
) -> None:
    """What it shares is another lock: it waits for that one as any caller does."""
    two = {alias: {"LOCATION": server.url(), "KEY_PREFIX": alias} for alias in ("default", "other")}
    with override_settings(LOCKS=two), lock(name, shared=True), lock(name, using="other"):
        with pytest.raises(LockError, match="downgrade"):
            lock(name, blocking_timeout=20).acquire()
        assert not lock(name, using="other").acquire(blocking_timeout=0.01)


@pytest.mark.parametrize(
    "make", [lock, partial(semaphore, limit=2), lambda name: lock_many([name])]
)
def test_a_handle_has_no_truth(make: Any) -> None:
    with pytest.raises(TypeError, match="To acquire lock 'x', use it in a with statement"):
        assert make("x")
