"""KEY_PREFIX: entries of LOCKS whose keys could be mistaken for each other's are refused."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import checks

from django_redis_lock import lock, locks, semaphore
from django_redis_lock.backends.prefixes import KEY_WORDS
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.transport.packing import Packing
from tests.tools import findings

REDIS = "django_redis_lock.backends.redis.RedisLockBackend"
GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
REDLOCK = "django_redis_lock.backends.redlock.RedlockLockBackend"
NODES = ["redis://10.0.0.1:7000", "redis://10.0.0.2:7000"]
THREE = [f"redis://10.0.0.{number}:6379/1" for number in (1, 2, 3)]
URL = "redis://10.0.0.1:6379/1"
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    **{
        alias: {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
        for alias, url in (("one", URL), ("sentinel", "redis://master/1"))
    },
}


def mistakes() -> list[Any]:
    """Return the errors that the system checks find in LOCKS."""
    return [item for item in findings() if item.is_serious(checks.ERROR)]


AT_URL = {"LOCATION": URL}
GETSET_THERE = {"BACKEND": GETSET, "LOCATION": URL}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (AT_URL, {**AT_URL, "KEY_PREFIX": "lock:shop"}),
        ({**AT_URL, "KEY_PREFIX": "a:b"}, {**AT_URL, "KEY_PREFIX": "a"}),
        (AT_URL, {**AT_URL, "KEY_PREFIX": "lock-queue"}),
        (AT_URL, {**AT_URL, "KEY_PREFIX": "lock-due:x"}),
        ({"LOCATION": "one"}, {**AT_URL, "KEY_PREFIX": "lock:x"}),
        ({"LOCATION": "sentinel"}, {"LOCATION": "sentinel", "KEY_PREFIX": "lock:x"}),
        ({"LOCATION": NODES}, {"LOCATION": NODES[1:], "KEY_PREFIX": "lock:x"}),
        ({"LOCATION": "redis://[::1]"}, {"LOCATION": "redis://127.0.0.1", "KEY_PREFIX": "lock:x"}),
        (
            {"BACKEND": REDLOCK, "LOCATION": THREE},
            {"LOCATION": THREE[2], "KEY_PREFIX": "lock-server"},
        ),
        (AT_URL, {**GETSET_THERE, "KEY_PREFIX": "lock:x"}),
        (AT_URL, {**GETSET_THERE, "KEY_PREFIX": "x", "OPTIONS": {"KEY": "lo{name}"}}),
    ],
)
def test_prefixes_that_can_make_one_key_are_refused(
    settings: Any, one: dict[str, Any], other: dict[str, Any]
) -> None:
    """The checks report one error, and both entries are refused at first use."""
    settings.CACHES, settings.LOCKS = CACHES, {"default": one, "other": other}
    (found,) = mistakes()
    assert found.id == "django_redis_lock.E006"
    for alias in ("default", "other"):
        assert f"LOCKS[{alias!r}]" in found.msg
        with pytest.raises(InvalidLockBackend, match=r"can write the same keys.*KEY_PREFIX"):
            _ = locks[alias]


@pytest.mark.parametrize(
    "other",
    [
        {**AT_URL, "TIMEOUT": 5},
        {**AT_URL, "KEY_PREFIX": "shop:lock"},
        {**AT_URL, "KEY_PREFIX": "lock-queued"},
        {"LOCATION": "redis://10.0.0.1:6379/2", "KEY_PREFIX": "lock:x"},
        {**GETSET_THERE, "KEY_PREFIX": "x", "OPTIONS": {"KEY": "{name}"}},
    ],
)
def test_prefixes_that_keep_apart_are_fine(settings: Any, other: dict[str, Any]) -> None:
    """Entries with one prefix share their locks; others don't write the same keys."""
    settings.CACHES, settings.LOCKS = CACHES, {"default": AT_URL, "other": other}
    assert mistakes() == []
    assert len(locks.all()) == 2


def test_a_limit_is_shown_whatever_the_prefix(settings: Any, server: Any, name: str) -> None:
    settings.LOCKS = {"default": {"LOCATION": server.url(), "KEY_PREFIX": "замок"}}
    with semaphore(name, 3):
        locks["default"].set_limit(name, 2)
        assert locks["default"].holder(name).limit == 2


def test_the_check_knows_each_key() -> None:
    keys = [value for value in vars(Packing("lock")).values() if isinstance(value, str)]
    words = {key.removeprefix("lock").strip("-:").partition(":")[0] for key in keys} - {""}
    assert {"queue", "permits", "limits", "parked", "due"} <= words <= set(KEY_WORDS)


def test_a_client_that_spreads_its_keys_is_refused(settings: Any) -> None:
    """An alias whose keys are on several servers is named, with its client and the way out."""
    shards = "django_redis.client.ShardClient"
    settings.CACHES = {**CACHES, "one": {**CACHES["one"], "OPTIONS": {"CLIENT_CLASS": shards}}}
    settings.LOCKS = {"default": {"LOCATION": "one"}}
    (found,) = mistakes()
    assert found.id == "django_redis_lock.E007"
    assert (
        "LOCKS['default']['LOCATION'] is 'one', an alias of CACHES whose CLIENT_CLASS" in found.msg
    )
    assert repr(shards) in found.msg
    with pytest.raises(InvalidLockBackend, match="DefaultClient"):
        lock("a").acquire(blocking=False)
