"""Names of locks, which the cache that LOCATION names can make."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from django_redis_lock import lock, lock_many, locks, semaphore
from django_redis_lock.checks import check_locks
from django_redis_lock.exceptions import LockLost
from django_redis_lock.tasks import single_instance_task as of_django
from django_redis_lock.views import locked
from example_project.embedded import EmbeddedServer
from tests.tools import findings
from tests.tools.console import command

BACKENDS = "django_redis_lock.backends"
DJANGOS = "django.core.cache.backends.redis.RedisCache"
DEFAULT = "django.core.cache.backends.base.default_key_func"
TENANT = ["acme"]
X = Enum("Names", {"X": "x"}, type=str).X


def of_tenant(key: str, key_prefix: str, version: int) -> str:
    return f"{TENANT[-1]}/{key_prefix}/{version}/{key}"


def configure(settings: Any, url: str, cache: dict[str, Any], **entry: Any) -> None:
    kind = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
    settings.CACHES = {**settings.CACHES, "locks": {**kind, **cache}}
    settings.LOCKS = {"default": {"LOCATION": "locks", **entry}}


def name_of_view() -> Any:
    view = locked("x")(lambda request: HttpResponse(request.lock.name))
    return view(RequestFactory().post("/")).content.decode()


@of_django(key="x")
def names() -> list[str]:
    return sorted(one.name for one in locks["default"].holders())


@pytest.mark.parametrize(
    ("cache", "entry", "expected"),
    [
        ({}, {}, "x"),
        ({"KEY_PREFIX": "p", "VERSION": 1, "KEY_FUNCTION": DEFAULT}, {}, "x"),
        ({"KEY_PREFIX": "p", "VERSION": 2}, {}, ":2:x"),
        ({"KEY_PREFIX": "p", "KEY_FUNCTION": of_tenant}, {}, "acme/p/1/x"),
        ({"KEY_FUNCTION": f"{__name__}.of_tenant", "BACKEND": DJANGOS}, {}, "acme//1/x"),
        ({"VERSION": 2}, {"BACKEND": f"{BACKENDS}.getset.GetSetLockBackend"}, ":2:x"),
        ({"VERSION": 2}, {"BACKEND": f"{BACKENDS}.locmem.LocMemLockBackend"}, "x"),
    ],
)
def test_names_are_made_as_the_cache_makes_keys(
    server: EmbeddedServer, settings: Any, cache: Any, entry: Any, expected: str
) -> None:
    """For all handles, with a note of the checks; but not for the guards of tasks."""
    configure(settings, server.url(), cache, **entry)
    assert names() == ["x"]
    handles = [lock(X), semaphore("x", 2), lock_many(["x"])["x"]]
    assert {expected} == {name_of_view(), *(one.name for one in handles)}
    with pytest.raises(LockLost), lock("x"):
        assert names.__wrapped__() == [expected]
        assert command("release", expected, interactive=False).code == 0
    assert ("django_redis_lock.I001" in {one.id for one in findings()}) == (expected != "x")


def test_each_tenant_has_its_own_locks(
    server: EmbeddedServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of when the handle is made, or when a decorated function is called."""
    configure(settings, server.url(), {"KEY_FUNCTION": of_tenant})
    mine, of_both, held_now = lock("x"), lock_many(["x", "a"]), names.__wrapped__
    decorated = [lock("x")(held_now), lock_many(["x"])(held_now)]
    monkeypatch.setattr(f"{__name__}.TENANT", ["zeta"])
    with mine, lock("x", blocking=False):
        assert held_now() == ["acme//1/x", "zeta//1/x"]
    assert [function() for function in decorated] == [["zeta//1/x"]] * 2
    with of_both as held:
        assert held["x"] is held["acme//1/x"]
        assert held_now() == ["acme//1/a", "acme//1/x"]


def test_functions_that_make_no_names(
    server: EmbeddedServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes from the handle, or from the check for one that can't be imported, or yet."""
    configure(settings, server.url(), {"KEY_FUNCTION": print})
    with pytest.raises(TypeError):
        lock("x")
    configure(settings, server.url(), {"KEY_FUNCTION": f"{__name__}.later"})
    assert lock("x").name == "x"
    assert [item.id for item in check_locks()] == ["django_redis_lock.E009"]
    monkeypatch.setattr(f"{__name__}.later", of_tenant, raising=False)
    assert lock("x").name == "acme//1/x"


def test_names_that_are_one_on_the_server(server: EmbeddedServer, settings: Any) -> None:
    """A group has one lock for them, which each of the names finds."""
    configure(settings, server.url(), {"KEY_FUNCTION": lambda key, *_: key.lower()})
    with lock_many(["A", "a"]) as held:
        assert held["A"] is held["a"]
        assert not lock("A", blocking=False).acquire()
    with pytest.raises(ValueError, match="twice, in different ways"):
        lock_many(["A"], shared=["a"])
