"""What tests of a project do to locks: the same in memory and on a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from django.test import override_settings

from django_redis_lock import lock, locks, semaphore
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.renewal import renewer
from django_redis_lock.exceptions import (
    InvalidLockBackend,
    LockError,
    LockLost,
    LockNotAcquired,
    LockUnavailable,
)
from django_redis_lock.protocol.calls import Release
from django_redis_lock.support.arguments import DEFAULT
from django_redis_lock.testing import (
    LockRecorder,
    LockSpace,
    assert_no_locks_held,
    expire_now,
    held_by_another,
    lose,
    unavailable,
)
from django_redis_lock.testing.tools import finish_releases
from tests.settings import LOCKS, REDIS
from tests.tools import ROOT, Background, eventually, owes, queue, waiters


@pytest.fixture(params=["memory", "settings"], autouse=True)
def space(request: pytest.FixtureRequest, server: Any) -> Iterator[LockSpace]:
    with LockSpace(request.param) as space:
        yield space


def free(name: str) -> bool:
    """Whether a lock can be acquired; it is released again."""
    handle = lock(name)
    if not handle.acquire(blocking=False):
        return False
    handle.release()
    return True


def test_another_holder_excludes_the_thread_of_the_test(name: str) -> None:
    with held_by_another(name):
        assert not lock(name, reentrant=True).acquire(blocking=False)
        assert locks["default"].holder(name)
        with pytest.raises(LockNotAcquired), held_by_another(name):
            pass
    assert free(name)


def test_another_holder_may_have_lost_the_lock_by_the_end(name: str) -> None:
    with LockRecorder() as recorded:
        for timeout, take in ((None, lose), (60, expire_now)):
            with held_by_another(name, timeout=timeout):
                take(name)
                with lock(name, blocking=False):
                    pass
    assert recorded.events == [("acquired", name), ("released", name)] * 2


def test_another_holder_shares(name: str) -> None:
    with held_by_another(name, limit=2), semaphore(name, 2) as permit:
        assert not semaphore(name, 2, blocking=False).acquire()
        assert not lock(name, blocking=False).acquire()
        assert [holder.limit for holder in locks["default"].holders_of([name])] == [2, 2]
        permit.ensure_held()
        for limit, why in ((None, "all 2 permits are taken"), (0, "limit 0, set by ada")):
            locks["default"].set_limit(name, limit, by="ada")
            with pytest.raises(LockNotAcquired, match=why), held_by_another(name, limit=2):
                pass
        locks["default"].set_limit(name, None)
    with held_by_another(name, shared=True), lock(name, shared=True):
        assert not lock(name, blocking=False).acquire()
    with held_by_another(name):
        assert not semaphore(name, 5, blocking=False).acquire()
        assert not lock(name, shared=True, blocking=False).acquire()
    assert free(name)
    with held_by_another(name, limit=1):
        (waiting,) = queue(semaphore(name, 1))
    assert waiting.outcome()


@pytest.mark.parametrize("kind", ["getset.GetSetLockBackend", "redlock.RedlockLockBackend"])
def test_what_an_alias_can_not_do_it_can_not_in_memory_either(name: str, kind: str) -> None:
    location: Any = [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]
    location = location if kind.startswith("redlock") else location[0]
    entry = {"BACKEND": f"django_redis_lock.backends.{kind}", "LOCATION": location}
    with override_settings(LOCKS={**LOCKS, "other": entry}):
        for arguments in ({"shared": True}, {"max_waiters": 1}):
            with pytest.raises(
                InvalidLockBackend, match=f"is a {kind.partition('.')[2]}, which does"
            ):
                lock(name, using="other", **arguments).acquire()


def test_nobody_is_excluded_by_dummy(name: str) -> None:
    for tool in (expire_now, lose):
        with pytest.raises(LockError, match="excludes no caller"):
            tool(name, using="dummy")
    with pytest.raises(LockError, match="excludes no caller"), held_by_another(name, using="dummy"):
        pass


@pytest.mark.parametrize("timeout", [DEFAULT, 60, None])
def test_a_lease_that_is_over_is_lost(name: str, timeout: Any) -> None:
    """And a waiter gets the lock."""
    held = lock(name, timeout=timeout)
    held.acquire()
    waiter = Background(lock(name).acquire)
    eventually(lambda: waiters(name))
    expire_now(name)
    assert (held.lost, held.remaining) == (True, 0.0)
    assert waiter.outcome()
    with pytest.raises(LockLost):
        held.release()


@pytest.mark.parametrize("timeout", [DEFAULT, 60])
def test_a_holder_notices_that_its_lock_is_lost(name: str, timeout: Any) -> None:
    """At once, if its lease is renewed; else when it asks."""
    held, told = lock(name, timeout), [name] if timeout is DEFAULT else []
    with LockRecorder() as recorded:
        held.acquire()
        lose(name)
        assert (held.lost, recorded.lost, recorded.force_released) == (bool(told), told, [])
        with pytest.raises(LockLost):
            held.ensure_held()
    assert (held.lost, recorded.lost) == (True, [name])  # once
    assert free(name)
    with pytest.raises(LockError, match="is not held"):
        lose(name)


@pytest.mark.parametrize("tool", [expire_now, lose])
def test_one_of_several_holders_is_chosen_by_its_fence(name: str, tool: Any) -> None:
    with LockRecorder() as recorded, held_by_another(name, limit=3):
        first, second = semaphore(name, 3), semaphore(name, 3)
        first.acquire()
        second.acquire()
        with pytest.raises(LockError, match="has 3 holders: pass the fence"):
            tool(name)
        tool(name, fence=first.fence)
        assert (first.lost, second.lost, recorded.lost) == (True, False, [name])
        with pytest.raises(LockError, match=f"not held with fence {first.fence}"):
            tool(name, fence=first.fence)
        second.release()


def test_every_operation_fails_at_once_while_unavailable(name: str) -> None:
    held, other = lock(name), lock(f"{name}-other")
    held.acquire()
    force = partial(locks["default"].force_release, name)
    operations = [
        other.acquire,
        other.locked,
        held.ensure_held,
        held.reacquire,
        lambda: held.detach(5),
        force,
        lambda: list(locks["default"].holders()),
        locks["default"].history,
        held.release,
    ]
    with LockRecorder() as recorded, unavailable():
        for operation in operations:
            with pytest.raises(LockUnavailable, match="the test uses") as caught:
                Background(operation).outcome()
            assert caught.value.not_applied or operation is not force
    assert len(recorded.unavailable) == len(operations)
    assert free(name)  # the release was sent at the end


def test_what_one_alias_owes_at_the_end_of_a_test_is_dropped(name: str) -> None:
    for using in ("default", "url"):
        release = Release(name, "token", patient=False)
        renewer.withdraw(release, locks[using], 60.0)
    with unavailable():
        finish_releases([locks["default"]])
        assert (owes("default"), owes("url")) == (False, True)


def test_one_alias_can_be_unavailable(name: str) -> None:
    with unavailable("url"):
        with lock(name):
            pass
        with pytest.raises(LockUnavailable):
            lock(name, using="url").acquire()


def test_the_recorder_notes_names_in_order(name: str) -> None:
    with LockRecorder() as recorded:
        with lock("a"), lock("b"):
            lock("a", blocking=False).acquire()
        lock("c").acquire()
        locks["default"].force_release("c")
    with lock("unheard"):
        pass
    assert (recorded.acquired, recorded.released) == (["a", "b", "c"], ["b", "a"])
    assert (recorded.not_acquired, recorded.force_released) == (["a"], ["c"])
    assert recorded.events[:3] == [("acquired", "a"), ("acquired", "b"), ("not_acquired", "a")]
    recorded.clear()
    assert (recorded.acquired, recorded.events) == ([], [])


def test_locks_that_are_held_are_named_with_their_thread(name: str) -> None:
    assert_no_locks_held()
    with lock(name, using="url"), lock("b") as detached:
        assert_no_locks_held("locmem")
        ticket = detached.detach(60)
        with pytest.raises(AssertionError) as caught:
            assert_no_locks_held()
        assert detached.take_over(ticket)
    told = str(caught.value)
    assert told.startswith("2 locks are still held:\n")
    assert f"{name!r} (LOCKS['url']), acquired at {__file__.removeprefix(f'{ROOT}/')}:" in told
    assert len(re.findall(r"acquired at .*, for \d", told)) == 2
    assert "by thread 'MainThread' of process" in told
    assert_no_locks_held()


def test_a_space_is_apart_from_others(name: str) -> None:
    with lock(name):
        with LockSpace("memory"):
            assert free(name)
            with override_settings(LOCKS={"default": {**LOCKS["url"], "TIMEOUT": 7}}):
                assert free(name)
                assert locks["default"].timeout == 7
        assert not free(name)


def test_what_one_test_leaves_is_released_and_what_was_held_before_stays(name: str) -> None:
    with LockSpace("memory") as space, LockRecorder() as recorded, lock("before") as before:
        left = lock(name, reentrant=True)
        with pytest.raises(AssertionError, match=name), space.one_test(fail_on_held=True):
            left.acquire()
            waiter = Background(lock(name).acquire)
            eventually(lambda: waiters(name))
        assert waiter.outcome()
        with lock(name, reentrant=True, blocking=False):  # it is not the lease that was left
            pass
        assert (left.lost, before.owned()) == (True, True)
    assert recorded.lost == []  # the former holder is not told in the next test


@pytest.mark.parametrize("held", [False, True])
def test_permits_and_limits_of_one_test_are_not_left(name: str, held: bool) -> None:
    with LockSpace("memory") as space:
        locks["default"].set_limit("before", 3)
        with held_by_another("before") if held else nullcontext():
            with pytest.raises(AssertionError, match="2 locks"), space.one_test(fail_on_held=True):
                locks["default"].set_limit(name, 2)
                locks["default"].set_limit("before", None)
                assert semaphore(name, 1).acquire()
                assert semaphore(name, 1).acquire()
            assert [limit.name for limit in locks["default"].limits()] == ["before"]
            assert list(locks["default"].holders(name)) == []


def test_a_space_in_memory_needs_no_server_and_leaves_dummy_alone(settings: Any) -> None:
    with LockSpace("memory"):
        assert isinstance(locks["dummy"], DummyLockBackend)
        nowhere = {"BACKEND": REDIS, "LOCATION": "redis://127.0.0.1:1"}
        settings.LOCKS = {"default": nowhere, "same": nowhere}
        with lock("a"):
            assert not lock("a", using="same").acquire(blocking=False)
        settings.LOCKS = {"default": {"TIMOUT": 5}}
        with pytest.raises(InvalidLockBackend):
            lock("a").acquire()
        del settings.LOCKS
        with lock("a"):
            pass
