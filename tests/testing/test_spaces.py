"""Where a lock space keeps its locks, and that nothing of it stays."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from django_redis_lock import lock, locks
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.testing import LockSpace
from tests.settings import LOCKS, REDIS
from tests.tools import findings

NOWHERE = {"default": {"BACKEND": REDIS, "LOCATION": "redis://127.0.0.1:1"}}


@pytest.mark.parametrize("entry", [{"KEY_PREFIX": 5}, {"TIMOUT": 5}])
def test_a_wrong_entry_is_refused_as_outside(entry: dict[str, Any]) -> None:
    with (
        LockSpace(),
        override_settings(LOCKS={"default": {**LOCKS["url"], **entry}}),
        pytest.raises(InvalidLockBackend),
    ):
        lock("a").acquire()


def test_no_server_is_needed_in_memory() -> None:
    with LockSpace(), override_settings(LOCKS=NOWHERE), lock("a"):
        assert isinstance(locks["default"], LocMemLockBackend)


def test_dummy_stays_dummy() -> None:
    with LockSpace():
        assert isinstance(locks["dummy"], DummyLockBackend)


def test_without_the_setting_there_is_an_alias_in_memory(settings: Any) -> None:
    del settings.LOCKS
    with LockSpace(), lock("a"):
        assert isinstance(locks["default"], LocMemLockBackend)


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


def test_a_space_as_in_the_settings_releases_nothing(name: str, server: Any) -> None:
    held = lock(name)
    with LockSpace("settings") as space:
        with pytest.raises(AssertionError, match=name), space.one_test(fail_on_held=True):
            held.acquire()
    assert held.owned()
    held.release()
