"""A LOCATION that is written wrongly: an error that says what to write, wherever it is met."""

from __future__ import annotations

from typing import Any

import pytest

from django_redis_lock import lock, locks
from django_redis_lock.checks import check_locks
from django_redis_lock.exceptions import InvalidLockBackend

REDLOCK = "django_redis_lock.backends.redlock.RedlockLockBackend"
GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
DJANGO_REDIS = "django_redis.cache.RedisCache"
DJANGO = "django.core.cache.backends.redis.RedisCache"
OTHERS = ["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"]
LOCMEM = "django_redis_lock.backends.locmem.LocMemLockBackend"
SECRET = "hunter-Zwei"

WRONG_URLS = [
    ("redis://localhost:99999999", "can't be used by redis-py: Port out of range"),
    (f"redis://:{SECRET}/0", "can't be used by redis-py: Port could not be cast"),
    (f"redis://:{SECRET}/x@localhost:6379/1", "can't be used by redis-py: Port could not be cast"),
    (f"redis://ada:1/{SECRET}@localhost:6379/1", "urllib.parse.quote"),
    (f"redis://:1#{SECRET}@localhost", "urllib.parse.quote"),
    (f"redis://:1?{SECRET}@localhost", "urllib.parse.quote"),
    (f"redis://:{SECRET}@[::1", "can't be used by redis-py: Invalid IPv6 URL"),
    (f"redis://:{SECRET}@localhost/one", "the database as a number"),
    (f"redis://:{SECRET}@localhost?socket_timeout=abc", "Invalid value for 'socket_timeout'"),
    (f"redis://:{SECRET}@localhost?nonsense=1", "unexpected keyword argument 'nonsense'"),
    (f"redis://:{SECRET}@localhost?protocol=7", "can't be used by redis-py"),
    (f"rediss://:{SECRET}@localhost?ssl_cert_reqs=maybe", "can't be used by redis-py"),
    ("unix://run/valkey.sock", "a socket as unix:"),
    (f"unix://?password={SECRET}", "a socket as unix:"),
]
NOT_EVEN_URLS: list[tuple[Any, str]] = [
    (f"redis//:{SECRET}@localhost", "is not an alias of CACHES"),
    (f"http://:{SECRET}@localhost", "is not an alias of CACHES"),
    ({"HOST": "localhost", "PASSWORD": SECRET}, "must be an alias"),
    (f"redis://:{SECRET}@localhost".encode(), "must be an alias"),
]
GOOD_URLS = [
    "redis://",
    "redis://localhost",
    "redis:///3",
    "redis://app@localhost:6379/1",
    "redis://app:a%2Fb%23@localhost:6379/1/?client_name=shop&decode_responses=True",
    "redis://:@localhost?db=3&socket_timeout=2.5&socket_connect_timeout=1&max_connections=20",
    "redis://[::1]:6379/0?health_check_interval=0&protocol=3&socket_keepalive=no",
    "rediss://localhost?ssl_cert_reqs=none&ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=False",
    "unix:///run/a@b/valkey.sock?db=1&password=x",
    "unix://app:secret@/run/valkey.sock",
]


def configure(settings: Any, kind: str, url: Any) -> None:
    """Make a URL a part of the entry ``default`` of LOCKS, beside one that works."""
    entry: dict[str, Any] = {"LOCATION": url}
    match kind:
        case "cluster":
            entry["LOCATION"] = [*OTHERS, url]
        case "redlock":
            entry = {"BACKEND": REDLOCK, "LOCATION": [*OTHERS, url]}
        case "getset":
            entry["BACKEND"] = GETSET
        case "django-redis" | "Django":
            cache = {"BACKEND": DJANGO if kind == "Django" else DJANGO_REDIS, "LOCATION": url}
            settings.CACHES = {**settings.CACHES, "wrong": cache}
            entry = {"LOCATION": "wrong"}
    settings.LOCKS = {"default": entry, "locmem": {"BACKEND": LOCMEM}}


@pytest.mark.parametrize(
    "kind", ["redis", "getset", "cluster", "redlock", "django-redis", "Django"]
)
def test_it_is_an_error_of_the_checks_and_of_the_first_use(settings: Any, kind: str) -> None:
    """The checks say what is wrong and what to write; nothing tells the password."""
    not_even_urls = NOT_EVEN_URLS if kind in ("redis", "getset") else []
    of_cache = kind in ("django-redis", "Django")
    for url, words in [*WRONG_URLS, *not_even_urls]:
        configure(settings, kind, url)
        (found,) = check_locks()
        number = "4" if "alias of" in words and isinstance(url, str) else "9" if of_cache else "2"
        assert found.id == f"django_redis_lock.E00{number}", url
        with pytest.raises(InvalidLockBackend) as caught:
            lock("a").acquire(blocking=False)
        for text in (found.msg, str(caught.value)):
            assert "LOCKS['default']" in text
            assert SECRET not in text
            if kind == "cluster" and url.startswith("unix:"):
                continue  # there are other reasons to refuse it
            assert words in text or (of_cache and f"{kind} can't make a connection" in text), url


@pytest.mark.parametrize("url", [7, None, "", b"redis://localhost"])
def test_a_server_of_a_quorum_is_a_str(settings: Any, url: Any) -> None:
    configure(settings, "redlock", url)
    (found,) = check_locks()
    assert (found.id, "must be a str" in found.msg) == ("django_redis_lock.E002", True)


@pytest.mark.parametrize("url", GOOD_URLS)
def test_what_redis_py_understands_is_not_refused(settings: Any, url: str) -> None:
    """A URL that connections can be made from is no mistake, with our own pools or an alias."""
    for kind in ("redis", "getset", "redlock", "django-redis", "Django"):
        configure(settings, kind, url)
        assert list(check_locks()) == []
        locks["default"].open()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (DJANGO_REDIS, {"CONNECTION_POOL_KWARGS": {"nonsense": SECRET}}),
        (DJANGO_REDIS, {"CONNECTION_POOL_CLASS": "nowhere.Pool"}),
        (DJANGO_REDIS, {"CLIENT_CLASS": "nowhere.Client"}),
        (DJANGO_REDIS, {"CLIENT_CLASS": "django_redis.client.SentinelClient", "PASSWORD": SECRET}),
        (DJANGO_REDIS, {"SOCKET_TIMEOUT": "5", "PASSWORD": SECRET}),
        (DJANGO, {"nonsense": SECRET}),
        (DJANGO, {"pool_class": "nowhere.Pool"}),
    ],
)
def test_options_that_make_no_connection(settings: Any, kind: str, options: Any) -> None:
    """They are an error of the checks, which says in which entry of CACHES."""
    cache = {"BACKEND": kind, "LOCATION": "redis://h/11", "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "wrong": cache}
    settings.LOCKS = {"default": {"LOCATION": "wrong"}}
    (found,) = check_locks()
    assert found.id == "django_redis_lock.E009"
    assert "'wrong'" in found.msg
    assert SECRET not in found.msg
