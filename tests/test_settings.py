"""LOCKS: aliases, defaults, mistakes, and the system checks that find them."""

from __future__ import annotations

import ast
import asyncio
import re
from typing import Any

import pytest
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_redis_lock import lock, lock_many, locks, views
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.checks import check_deployed, check_uses
from django_redis_lock.exceptions import InvalidLockBackend, LockNotAcquired
from django_redis_lock.tasks import single_instance_task
from tests.tools import ROOT, Background, findings

LOCMEM = "django_redis_lock.backends.locmem.LocMemLockBackend"
REDIS = "django_redis_lock.backends.redis.RedisLockBackend"
REDIS_CLUSTER = "django_redis_lock.backends.cluster.RedisClusterLockBackend"
DUMMY = "django_redis_lock.backends.dummy.DummyLockBackend"
REDLOCK = "django_redis_lock.backends.redlock.RedlockLockBackend"
GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
DJANGO_REDIS = "django_redis.cache.RedisCache"
URL = "redis://127.0.0.1:6379"


def ids() -> list[str]:
    return [item.id for item in findings()]


def test_backends_are_shared_and_listed() -> None:
    """An alias names one backend in the whole process; the handler lists the aliases."""
    assert locks["default"] is locks["default"]
    assert isinstance(locks["default"], RedisLockBackend)
    assert list(locks) == ["default", "url", "locmem", "dummy"]
    assert [backend.alias for backend in locks.all()] == list(locks)


def test_changed_settings_take_effect(settings: Any) -> None:
    """After ``setting_changed`` there are new backends, for existing handles, too."""
    handle = lock("a")
    settings.LOCKS = {"default": {"BACKEND": LOCMEM, "TIMEOUT": 7}}
    assert isinstance(handle.backend, LocMemLockBackend)
    assert handle.timeout == 7
    before = locks["default"]
    settings.CACHES = {**settings.CACHES}  # of which LOCATION may name one
    assert locks["default"] is not before


def test_wait_of_an_alias(settings: Any, name: str) -> None:
    """A call that does not say how long to wait waits as long as its alias says."""
    settings.LOCKS = {"default": {"BACKEND": LOCMEM, "BLOCKING_TIMEOUT": 0.02}}
    held = lock(name)
    assert Background(held.acquire).outcome()
    for handle in (lock(name), lock_many([name]), lock(name, blocking_timeout=0.02)):
        assert handle.blocking_timeout == 0.02
        assert handle.acquire() is False
        assert asyncio.run(handle.aacquire()) is False
        with pytest.raises(LockNotAcquired, match=r"within 0\.02 s"), handle:
            pass
    assert lock(name, blocking=False).acquire() is False
    assert lock(name, blocking_timeout=None).blocking_timeout is None


@pytest.mark.parametrize(
    ("configured", "check", "words"),
    [
        ({"BACKEND": "no.such.Backend"}, "E002", "no.such.Backend"),
        ({"BACKEND": "django.http.HttpResponse"}, "E002", "not a subclass of BaseLockBackend"),
        ({"BACKEND": LOCMEM, "TIMOUT": 3}, "E002", "TIMOUT"),
        ({"BACKEND": LOCMEM, "OPTIONS": {"WAIT": "queue"}}, "E002", "Settings: none"),
        ({"OPTIONS": {"WIAT": "queue"}}, "E002", "WIAT"),
        ({"BACKEND": GETSET, "LOCATION": ["redis://a"]}, "E002", "is a list"),
        ({"BACKEND": REDIS_CLUSTER, "LOCATION": "redis://u:p@a"}, "E002", "not 'redis://***@a'"),
        ({"LOCATION": ["locks"]}, "E002", "use an alias without a list"),
        ({"LOCATION": []}, "E002", "is an empty list"),
        ({"LOCATION": [7]}, "E002", "has 7, which does not begin with"),
        ({"LOCATION": ["unix:///run/a.sock"]}, "E002", "begin with redis:// or rediss://"),
        ({"LOCATION": ["redis://a/1"]}, "E002", "names a database"),
        ({"LOCATION": ["redis://a:port"]}, "E002", "can't be used by redis-py"),
        ({"LOCATION": ["redis://a", "rediss://b"]}, "E002", "has different schemes"),
        ({"LOCATION": ["redis://u:p@a", "redis://b"]}, "E002", "users, passwords or options"),
        ({"LOCATION": ["redis://a"], "KEY_PREFIX": "{shop}"}, "E002", "remove the braces"),
        ({"LOCATION": ["redis://a"], "OPTIONS": {"WAIT": "poll"}}, "E002", "not 'poll'"),
        *(
            ({"LOCATION": URL, "OPTIONS": {"REPLICAS": number}}, "E002", "an int of 0 or more")
            for number in (-1, True, 1.0, "1", None)
        ),
        *(
            ({"LOCATION": URL, "OPTIONS": {"REPLICAS": 1, "REPLICA_TIMEOUT": timeout}}, "E002", "s")
            for timeout in (0, True, "1", float("nan"), float("inf"), None)
        ),
        ({"LOCATION": URL, "OPTIONS": {"REPLICA_TIMEOUT": 1}}, "E002", "which requires REPLICAS"),
        ({"OPTIONS": {"WAIT": "sleep"}}, "E002", "'queue'"),
        ({"BACKEND": LOCMEM, "TIMEOUT": 0}, "E002", "0.001"),
        ({"BACKEND": LOCMEM, "BLOCKING_TIMEOUT": -1}, "E002", "BLOCKING_TIMEOUT=-1 is too small"),
        ({"BACKEND": LOCMEM, "KEY_PREFIX": 'my"locks'}, "E002", "double quotes"),
        ({"OPTIONS": "x"}, "E002", "dict"),
        ({"LOCATION": "nope"}, "E004", "'nope'"),
        ({"LOCATION": "default"}, "E005", "neither django-redis nor"),
        ({"LOCATION": "http://localhost"}, "E004", "http://"),
        ({"LOCATION": 7}, "E002", "7"),
        ("locmem", "E002", "dict"),
        ({"BACKEND": LOCMEM, "OPERATORS": {"WARN": 5}}, "E002", "WARN_AFTER"),
        ({"BACKEND": LOCMEM, "OPERATORS": {"WARN_AFTER": {"a*": "1h"}}}, "E002", "'1h'"),
        ({"BACKEND": LOCMEM, "OPERATORS": {"GROUPS": {"a*": ""}}}, "E002", "'a*': ''"),
        ({"BACKEND": LOCMEM, "OPERATORS": {"AUDIT_ENTRIES": 0}}, "E002", "from 1 to"),
        ({"BACKEND": LOCMEM, "OPERATORS": {"REASON_REQUIRED": 1}}, "E002", "True or False"),
        ({"BACKEND": LOCMEM, "OPERATORS": {"RELEASE_PERMISSION": "x"}}, "E002", "permission"),
        ({"BACKEND": LOCMEM, "OPERATORS": {"TASK_LINKS": {"A": "ftp://x"}}}, "E002", "'ftp://x'"),
        ({"BACKEND": LOCMEM, "OPERATORS": {"TASK_LINKS": {"A": "/{id}"}}}, "E002", "{task_id}"),
        ({"BACKEND": LOCMEM, "OPERATORS": {"TASK_LINKS": {"A": "/{task_id.x}"}}}, "E002", "id.x"),
    ],
)
def test_mistakes_are_found_by_check_and_by_use(
    settings: Any, configured: Any, check: str, words: str
) -> None:
    settings.LOCKS = {"default": configured}
    found = findings()
    assert [item.id for item in found] == [f"django_redis_lock.{check}"]
    assert words in found[0].msg
    with pytest.raises(InvalidLockBackend):
        lock("a").acquire(blocking=False)


def test_the_first_pattern_that_matches_a_name_counts(settings: Any) -> None:
    """``WARN_AFTER`` may be one threshold for all; the group of other names is "other"."""
    patterns = {"product:*": 10, "*": 3600}
    groups = {"product:*:[ab]": "shelf", "product:*": "product", "import.*": "import"}
    entry = {"BACKEND": LOCMEM, "OPERATORS": {"WARN_AFTER": patterns, "GROUPS": groups}}
    other = {"BACKEND": LOCMEM, "OPERATORS": {"WARN_AFTER": 5}}
    settings.LOCKS = {"default": entry, "other": other, "none": {"BACKEND": LOCMEM}}
    operators = [locks[alias].operators for alias in ("default", "other", "none")]
    assert [operators[0].threshold(name) for name in ("product:1", "report")] == [10, 3600]
    assert [each.threshold("report") for each in operators[1:]] == [5, None]
    names = ["product:1", "product:1:a", "import.7", "import-7", "a product:1", "product:\n"]
    found = [operators[0].group(name) for name in names]
    assert found == ["product", "shelf", "import", "other", "other", "product"]
    assert operators[2].group("product:1") == "other"


@pytest.mark.parametrize(
    ("configured", "told"),
    [({"other": {"BACKEND": LOCMEM}}, "'other'"), ({}, r'none\. Set LOCKS = \{"default"')],
)
def test_no_default_alias(settings: Any, configured: Any, told: str) -> None:
    """The hint is an entry that can be pasted; the use of a lock says what there is."""
    settings.LOCKS = configured
    with pytest.raises(
        ImproperlyConfigured, match=f"no alias 'default'. Configured aliases: {told}"
    ):
        lock("a").acquire()
    (found,) = findings()
    assert found.id == "django_redis_lock.E003"
    settings.LOCKS = ast.literal_eval(re.search(r"LOCKS = (.*\}\})", found.hint)[1])
    assert findings() == []


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        ({"BACKEND": LOCMEM}, r"LOCKS has BACKEND on its first level.* into LOCKS\['default'\]"),
        ({"OPTIONS": {}, "LOCATION": "redis://u:p@a"}, "LOCKS has OPTIONS on its first level"),
        (["default"], "LOCKS must be a dict of aliases"),
    ],
)
def test_settings_without_an_alias(settings: Any, flat: Any, words: str) -> None:
    settings.LOCKS = flat
    (found,) = findings()
    assert found.id == "django_redis_lock.E001"
    assert re.search(words, found.msg)
    with pytest.raises(InvalidLockBackend, match=words):
        lock("a").acquire()


@pytest.mark.parametrize("path", ["redis", "datetime.date", 7])
def test_an_unknown_backend_is_told_the_known_ones(settings: Any, path: Any) -> None:
    """They are those of the reference."""
    settings.LOCKS = {"default": {"BACKEND": path}}
    (found,) = findings()
    told = found.msg.partition("Use one of ")[2].rstrip(".").split(", ")
    assert all(import_string(each) for each in told)
    page = (ROOT / "docs/reference/backends.md").read_text()
    assert {*told} == {*re.findall(r"django_redis_lock\.backends\.(?!base)\w+\.\w+Backend", page)}


@pytest.mark.parametrize(("timeout", "warned"), [(86_400, False), (90_000, True), (None, False)])
def test_a_lease_of_days(settings: Any, timeout: float | None, warned: bool) -> None:
    settings.LOCKS = {"default": {"BACKEND": LOCMEM, "TIMEOUT": timeout}}
    assert ids() == ["django_redis_lock.W007"] * warned


@pytest.mark.parametrize("path", [REDLOCK, GETSET, REDIS])
@pytest.mark.parametrize("arguments", [{"shared": True}, {"limit": 3}, {"max_waiters": 0}, {}])
def test_views_and_tasks_name_aliases_that_can(
    settings: Any, path: str, arguments: dict[str, Any]
) -> None:
    several = [f"redis://127.0.0.1:{port}/1" for port in (1, 2, 3)]
    location = several if path == REDLOCK else several[0]
    other = {"BACKEND": path, "LOCATION": location}
    settings.LOCKS = {"default": {"BACKEND": LOCMEM}, "other": other}
    for using in ("other", "nowhere"):

        @views.locked("a", using=using, **arguments)
        def rendered(request: Any) -> None: ...

        @single_instance_task(using=using, concurrency=arguments.get("limit", 1))
        def work() -> None: ...

    cannot = path in (REDLOCK, GETSET)
    expected = {
        "E013 Task work has using='nowhere'": True,
        "E013 The view rendered has using='nowhere'": True,
        "E011 Task work uses shared": cannot and "limit" in arguments,
        "E011 The view rendered uses shared": cannot and bool(arguments),
    }
    told = [f"{item.id[-4:]} {re.sub('[a-z_.]+<locals>.', '', item.msg)}" for item in check_uses()]
    found = {text: any(one.startswith(text) for one in told) for text in expected}
    assert (found, len(told)) == (expected, sum(expected.values()))


@pytest.mark.parametrize(
    ("path", "words"),
    [(LOCMEM, "only callers in the same process"), (DUMMY, "excludes no callers")],
)
def test_deployment_without_a_server(settings: Any, path: str, words: str) -> None:
    """It is a warning of ``check --deploy`` alone; invalid entries are left to the other check."""
    settings.LOCKS = {
        "default": {"BACKEND": REDIS, "LOCATION": "redis://127.0.0.1/1"},
        "near": {"BACKEND": path},
        "wrong": {"BACKEND": "nowhere"},
    }
    (found,) = check_deployed()
    assert found.id == "django_redis_lock.W008"
    assert "LOCKS['near']" in found.msg
    assert words in found.msg
    assert [item.id for item in findings()] == ["django_redis_lock.E002"]


def test_no_locks_and_no_django_redis(settings: Any) -> None:
    """Without LOCKS and with an unsuitable default cache, a check says what to write."""
    del settings.LOCKS
    (message,) = findings()
    assert message.id == "django_redis_lock.E005"
    assert "CACHES = {" in message.hint
    assert "LOCKS = {" in message.hint


@pytest.mark.parametrize(
    ("caches", "location", "shared"),
    [
        ({"default": URL + "/0", "locks": URL + "/1"}, "locks", False),
        ({"default": URL + "/1", "locks": "redis://localhost/1"}, "locks", True),
        ({"default": URL + "/1"}, URL + "/1", True),
        ({"default": "unix:///run/a.sock?db=1"}, "unix:///run/a.sock?db=1", True),
    ],
)
def test_sharing_a_database_with_a_cache(
    settings: Any, caches: dict[str, str], location: str, shared: bool
) -> None:
    settings.CACHES = {
        alias: {"BACKEND": DJANGO_REDIS, "LOCATION": url} for alias, url in caches.items()
    }
    settings.LOCKS = {"default": {"LOCATION": location}}
    found = findings()
    assert [item.id for item in found] == (["django_redis_lock.W001"] if shared else [])
    assert all(isinstance(item, CheckWarning) for item in found)
