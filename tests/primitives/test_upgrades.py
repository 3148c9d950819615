"""A caller that shares a lock does not get it alone, in whatever way it asks."""

from __future__ import annotations

import pytest
from django.test import override_settings

from django_redis_lock import lock, semaphore
from django_redis_lock.exceptions import LockError, LockNotAcquired
from example_project.embedded import EmbeddedServer


def test_a_reentrant_reader_is_not_entered_by_a_writer(server: EmbeddedServer, name: str) -> None:
    with (
        lock(name, shared=True, reentrant=True) as reader,
        pytest.raises(LockError, match="Release it first"),
    ):
        lock(name, reentrant=True).acquire()
    assert not reader.owned()


def test_a_reentrant_permit_is_entered_by_the_same_caller(
    server: EmbeddedServer, name: str
) -> None:
    with semaphore(name, 1, reentrant=True) as permit, semaphore(name, 1, reentrant=True) as again:
        assert again.fence == permit.fence
    assert not permit.owned()


def test_a_downgraded_handle_is_not_entered_again_as_if_it_were_alone(
    server: EmbeddedServer, name: str
) -> None:
    held = lock(name, reentrant=True)
    assert held.acquire()
    held.downgrade()
    with pytest.raises(LockError, match="downgrade"):
        held.acquire()
    held.release()
    assert not held.locked()


def test_a_reader_may_write_under_the_same_name_of_another_alias(
    server: EmbeddedServer, name: str
) -> None:
    """What it shares is another lock: it waits for that one as any caller does."""
    two = {alias: {"LOCATION": server.url(), "KEY_PREFIX": alias} for alias in ("default", "other")}
    with override_settings(LOCKS=two), lock(name, shared=True), lock(name, using="other"):
        with pytest.raises(LockError, match="downgrade"):
            lock(name, blocking_timeout=20).acquire()
        with pytest.raises(LockNotAcquired):
            lock(name, using="other", blocking_timeout=0.01).__enter__()


def test_the_error_of_a_full_queue_says_so(server: EmbeddedServer, name: str) -> None:
    with (
        lock(name),
        pytest.raises(LockNotAcquired, match="at once, as max_waiters=0 allows no more"),
    ):
        lock(name, blocking_timeout=20, max_waiters=0).__enter__()


def test_the_error_of_a_semaphore_blames_no_holder(server: EmbeddedServer, name: str) -> None:
    """It may be paused, and have none."""
    with pytest.raises(LockNotAcquired, match="at once: no permit was free"):
        semaphore(name, 0, blocking=False).__enter__()
