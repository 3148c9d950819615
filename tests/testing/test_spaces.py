"""Where a lock space keeps its locks, and that nothing of it stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redis_lock import lock, locks
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.exceptions import InvalidLockBackend, LockUnavailable
from django_redis_lock.testing import LockSpace, lose
from example_project.embedded import EmbeddedServer
from tests.settings import LOCKS, REDIS
from tests.tools import findings

NOWHERE = {"default": {"BACKEND": REDIS, "LOCATION": "redis://127.0.0.1:1"}}


def test_a_space_on_a_server_leaves_no_key(client: redis.Redis, name: str) -> None:
    """The index, the last fence and the audit go, too, and other keys stay."""
    client.set("lock:other", "1")
    with LockSpace("server") as space:
        for alias in ("default", "url"):
            with space.one_test():
                lock(name, using=alias).acquire()
                lock(f"{name}-lost", using=alias).acquire()
                lose(f"{name}-lost", using=alias)
                assert locks[alias].history()
            assert locks[alias].history() == []
            assert list(locks[alias].holders()) == []
        lock(name).acquire()
        assert [key for key in client.keys("*") if name in key]
    assert client.keys("*") == ["lock:other"]
    with redis.Redis.from_url(LOCKS["url"]["LOCATION"]) as other:
        assert other.keys("*") == []


def test_no_command_searches_the_server(client: redis.Redis, name: str) -> None:
    client.config_resetstat()
    with LockSpace("server") as space, space.one_test():
        lock(name).acquire()
    ran = {command.removeprefix("cmdstat_") for command in client.info("commandstats")}
    assert not ran & {"scan", "keys", "flushdb", "flushall"}
    assert "del" in ran


@pytest.fixture(scope="module")
def three_servers() -> Iterator[list[str]]:
    with EmbeddedServer() as one, EmbeddedServer() as two, EmbeddedServer() as three:
        yield [server.url() for server in (one, two, three)]


@pytest.mark.parametrize("kind", ["getset.GetSetLockBackend", "redlock.RedlockLockBackend"])
def test_other_backends_have_spaces_on_their_servers(
    kind: str, three_servers: list[str], name: str
) -> None:
    """A quorum gives locks at once, though it has never seen the prefix."""
    location = three_servers if "redlock" in kind else three_servers[0]
    entry = {"BACKEND": f"django_redis_lock.backends.{kind}", "LOCATION": location}
    with override_settings(LOCKS={"default": entry}), LockSpace("server") as space:
        with space.one_test():
            lock(name).acquire(blocking=False)
            assert [holder.name for holder in locks["default"].holders()] == [name]
        assert list(locks["default"].holders()) == []
    for url in three_servers:
        with redis.Redis.from_url(url) as server:
            assert server.keys("*") == []


def test_a_key_that_the_options_give_is_moved_too(server: EmbeddedServer, name: str) -> None:
    """Otherwise a test would take the locks that other programs use."""
    entry = {
        "BACKEND": "django_redis_lock.backends.getset.GetSetLockBackend",
        "LOCATION": server.url(),
        "OPTIONS": {"KEY": "theirs.{name}"},
    }
    with override_settings(LOCKS={"default": entry}), lock(name) as outside:
        with LockSpace("server"), lock(name, blocking=False):
            pass
    outside.backend.close()


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("memory", {"KEY_PREFIX": 5}),
        ("memory", {"TIMOUT": 5}),
        ("server", {"KEY_PREFIX": 5}),
        ("server", {"OPTIONS": "queue"}),
        ("server", {"TIMOUT": 5}),
    ],
)
def test_a_wrong_entry_is_refused_as_outside(kind: Any, entry: dict[str, Any]) -> None:
    with (
        LockSpace(kind),
        override_settings(LOCKS={"default": {**LOCKS["url"], **entry}}),
        pytest.raises(InvalidLockBackend),
    ):
        lock("a").acquire()


def test_no_server_is_needed_in_memory() -> None:
    with LockSpace(), override_settings(LOCKS=NOWHERE), lock("a"):
        assert isinstance(locks["default"], LocMemLockBackend)


def test_without_the_setting_there_is_an_alias_in_memory(settings: Any) -> None:
    del settings.LOCKS
    with LockSpace(), lock("a"):
        assert isinstance(locks["default"], LocMemLockBackend)


@pytest.mark.parametrize("kind", ["memory", "server"])
def test_dummy_stays_dummy(kind: Any) -> None:
    with LockSpace(kind):
        assert isinstance(locks["dummy"], DummyLockBackend)


def test_aliases_exclude_each_other_as_outside() -> None:
    """They share locks if they have the same LOCATION and KEY_PREFIX."""
    entry = LOCKS["default"]
    entries = {"default": entry, "same": entry, "other": {**entry, "KEY_PREFIX": "other"}}
    with LockSpace(), override_settings(LOCKS=entries), lock("a"):
        assert not lock("a", using="same").acquire(blocking=False)
        assert lock("a", using="other").acquire(blocking=False)


def test_mistakes_in_the_settings_are_found_in_a_space() -> None:
    with LockSpace():
        with (
            override_settings(LOCKS={"default": {"TIMEOUT": 0}}),
            pytest.raises(InvalidLockBackend),
        ):
            lock("a").acquire()
        with override_settings(LOCKS={"default": {**LOCKS["url"], "OPTIONS": {"WIAT": "queue"}}}):
            (found,) = findings()  # the checks read what LOCKS says
            assert "WIAT" in found.msg


def test_a_server_that_is_gone_does_not_fail_the_end_of_a_test() -> None:
    with LockSpace("server") as space:
        with space.one_test(fail_on_held=True), override_settings(LOCKS=NOWHERE):
            with pytest.raises(LockUnavailable):
                lock("a").acquire()


def test_a_space_as_in_the_settings_releases_nothing(name: str, server: Any) -> None:
    held = lock(name)
    with LockSpace("settings") as space:
        with pytest.raises(AssertionError, match=name), space.one_test(fail_on_held=True):
            held.acquire()
    assert held.owned()
    held.release()
