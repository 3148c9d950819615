"""KEY_PREFIX: entries of LOCKS whose keys could be mistaken for each other's are refused."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis
from django.core import checks
from django.test import override_settings

from django_redis_lock import lock, locks
from django_redis_lock.backends.prefixes import WORDS
from django_redis_lock.exceptions import InvalidLockBackend
from example_project.embedded import EmbeddedServer
from tests.settings import server_url
from tests.tools import Background, eventually, findings, waiters

REDIS = "django_redis_lock.backends.redis.RedisLockBackend"
GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
REDLOCK = "django_redis_lock.backends.redlock.RedlockLockBackend"
NODES = ["redis://10.0.0.1:7000", "redis://10.0.0.2:7000"]
THREE = [f"redis://10.0.0.{number}:6379/1" for number in (1, 2, 3)]
URL = "redis://10.0.0.1:6379/1"
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    **{
        alias: {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, **more}
        for alias, url, more in (
            ("one", URL, {}),
            ("same", URL, {"TIMEOUT": 5}),
            ("local", "redis://localhost:6379/1", {}),
            ("sentinel", "redis://master/1", {}),
        )
    },
}


def mistakes() -> list[Any]:
    """Return the errors that the system checks find in LOCKS."""
    return [item for item in findings() if item.is_serious(checks.ERROR)]


def pair(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return LOCKS with two entries, the first with the default prefix."""
    return {"default": one, "other": other}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"LOCATION": URL}, {"LOCATION": URL, "KEY_PREFIX": "lock:shop"}),
        ({"LOCATION": URL}, {"LOCATION": URL, "KEY_PREFIX": "lock:"}),
        ({"LOCATION": URL, "KEY_PREFIX": "a:b"}, {"LOCATION": URL, "KEY_PREFIX": "a"}),
        *(
            ({"LOCATION": URL}, {"LOCATION": URL, "KEY_PREFIX": f"lock-{word}{more}"})
            for word in WORDS
            for more in ("", ":x")
        ),
        ({"LOCATION": "one"}, {"LOCATION": URL, "KEY_PREFIX": "lock:x"}),
        ({"LOCATION": "one"}, {"LOCATION": "same", "KEY_PREFIX": "lock:x"}),
        ({"LOCATION": "local"}, {"LOCATION": "redis://[::1]/1", "KEY_PREFIX": "lock:x"}),
        ({"LOCATION": "local"}, {"LOCATION": "redis://u:p@LOCALHOST/1", "KEY_PREFIX": "lock:x"}),
        ({"LOCATION": "sentinel"}, {"LOCATION": "sentinel", "KEY_PREFIX": "lock:x"}),
        (
            {"LOCATION": "unix:///run/a.sock?db=1"},
            {"LOCATION": "unix:///run/a.sock?db=1", "KEY_PREFIX": "lock:x"},
        ),
        ({"LOCATION": NODES}, {"LOCATION": NODES[1:], "KEY_PREFIX": "lock:x"}),
        (
            {"BACKEND": REDLOCK, "LOCATION": THREE},
            {"LOCATION": THREE[2], "KEY_PREFIX": "lock-server"},
        ),
        ({"LOCATION": URL}, {"BACKEND": GETSET, "LOCATION": URL, "KEY_PREFIX": "lock:x"}),
        (
            {"LOCATION": URL},
            {
                "BACKEND": GETSET,
                "LOCATION": URL,
                "KEY_PREFIX": "x",
                "OPTIONS": {"KEY": "lo{name}"},
            },
        ),
    ],
)
def test_prefixes_that_can_make_one_key_are_refused(
    settings: Any, one: dict[str, Any], other: dict[str, Any]
) -> None:
    """The checks report one error, and both entries are refused at first use."""
    settings.CACHES, settings.LOCKS = CACHES, pair(one, other)
    (found,) = mistakes()
    assert found.id == "django_redis_lock.E006"
    assert "LOCKS['default']" in found.msg
    assert "LOCKS['other']" in found.msg
    for alias in ("default", "other"):
        with pytest.raises(InvalidLockBackend, match=r"can write the same keys.*KEY_PREFIX"):
            _ = locks[alias]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"LOCATION": URL}, {"LOCATION": URL, "TIMEOUT": 5}),
        ({"LOCATION": URL}, {"LOCATION": URL, "KEY_PREFIX": "shop:lock"}),
        ({"LOCATION": URL}, {"LOCATION": URL, "KEY_PREFIX": "lock2"}),
        ({"LOCATION": URL}, {"LOCATION": URL, "KEY_PREFIX": "lock-shop"}),
        ({"LOCATION": URL}, {"LOCATION": URL, "KEY_PREFIX": "lock-queues"}),
        ({"LOCATION": URL}, {"LOCATION": "redis://10.0.0.1:6379/2", "KEY_PREFIX": "lock:x"}),
        ({"LOCATION": URL}, {"LOCATION": "redis://10.0.0.1:6380/1", "KEY_PREFIX": "lock:x"}),
        ({"LOCATION": "one"}, {"LOCATION": "local", "KEY_PREFIX": "lock:x"}),
        (
            {"LOCATION": "unix:///run/a.sock?db=1"},
            {"LOCATION": "unix:///run/b.sock?db=1", "KEY_PREFIX": "lock:x"},
        ),
        (
            {"LOCATION": URL},
            {"BACKEND": GETSET, "LOCATION": URL, "KEY_PREFIX": "x", "OPTIONS": {"KEY": "{name}"}},
        ),
    ],
)
def test_prefixes_that_keep_apart_are_fine(
    settings: Any, one: dict[str, Any], other: dict[str, Any]
) -> None:
    """Entries with one prefix share their locks; others don't write the same keys."""
    settings.CACHES, settings.LOCKS = CACHES, pair(one, other)
    assert mistakes() == []
    assert len(locks.all()) == 2


def test_an_entry_is_not_refused_for_the_mistakes_of_others(settings: Any) -> None:
    """A mistake in another entry does not matter."""
    settings.LOCKS = pair({"LOCATION": URL}, {"LOCATION": URL, "TIMEOUT": 0})
    assert locks["default"].timeout == 30


def test_the_keys_on_the_server_are_those_that_are_compared(
    server: EmbeddedServer, name: str, client: redis.Redis
) -> None:
    """Each key that is written begins with the prefix and what is known to follow it."""
    seen: set[str] = set()
    entries = {
        "default": {"LOCATION": server_url(), "OPTIONS": {"POLL_INTERVAL": 0.02}},
        "getset": {"BACKEND": GETSET, "LOCATION": server_url()},
    }
    done = threading.Event()

    def look() -> None:
        with redis.Redis.from_url(server_url(), decode_responses=True) as own:
            while not done.is_set():
                seen.update(own.keys("*"))

    with override_settings(LOCKS=entries):
        looking = Background(look)
        for wait in ("queue", "blpop", "poll"):
            lock(name, timeout=20).acquire()
            waiting = Background(lock(name, timeout=20, wait=wait).acquire)
            eventually(lambda: waiters(name) == 1)
            eventually(lambda: f"lock-queue:{name}" in seen)
            locks["default"].force_release(name)
            assert waiting.outcome() is True
            locks["default"].force_release(name)
        with lock(f"{name}-2", timeout=20, using="getset"):
            eventually(lambda: f"lock:{name}-2" in seen)
        done.set()
        looking.outcome()
    heads = ("lock:", *(f"lock-{word}" for word in WORDS))
    assert [key for key in seen if not key.startswith(heads)] == []
    assert {key.partition(":")[0] for key in seen} >= {"lock", "lock-queue", "lock-index"}


CLIENTS = "django_redis.client"


class ForeignClient:
    """A client of django-redis by somebody else, of which nothing is known."""

    def __init__(self, server: Any, params: Any, backend: Any) -> None: ...

    def close(self, **kwargs: Any) -> None: ...


@pytest.mark.parametrize(
    ("client_class", "fine"),
    [
        (f"{CLIENTS}.DefaultClient", True),
        (f"{CLIENTS}.HerdClient", True),
        (f"{CLIENTS}.SentinelClient", True),
        (f"{CLIENTS}.ShardClient", False),
        (f"{__name__}.ForeignClient", False),
    ],
)
def test_a_client_that_spreads_its_keys_is_refused(
    settings: Any, client_class: str, fine: bool
) -> None:
    """An alias whose keys are on several servers is named, with its client and the way out."""
    options: dict[str, Any] = {"CLIENT_CLASS": client_class}
    if client_class.endswith("SentinelClient"):
        options["CONNECTION_FACTORY"] = "django_redis.pool.SentinelConnectionFactory"
        options["SENTINELS"] = [("sentinel.example", 26379)]
    settings.CACHES = {**CACHES, "one": {**CACHES["one"], "OPTIONS": options}}
    settings.LOCKS = {"default": {"LOCATION": "one"}}
    found = mistakes()
    assert [item.id for item in found] == ([] if fine else ["django_redis_lock.E007"])
    if not fine:
        assert "LOCKS['default']['LOCATION'] is 'one', an alias" in found[0].msg
        assert repr(client_class) in found[0].msg
        with pytest.raises(InvalidLockBackend, match="DefaultClient"):
            lock("a").acquire(blocking=False)
