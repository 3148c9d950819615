"""Several locks at once: all or none, in any order."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis
from django.db.transaction import atomic

from django_redis_lock import LockGroup, lock, lock_many, locks, semaphore
from django_redis_lock.backends.renewal import renewer
from django_redis_lock.exceptions import LockLost, LockNotAcquired, LockNotOwned, LockUnavailable
from django_redis_lock.testing import held_by_another
from example_project.embedded import EmbeddedServer
from tests.tools import Background, counted, eventually, waiters


@pytest.fixture(params=["default", "locmem"])
def using(request: pytest.FixtureRequest, server: EmbeddedServer) -> str:
    """Return the alias of a backend."""
    alias: str = request.param
    return alias


@pytest.fixture
def names(name: str) -> list[str]:
    """Return three names, in no order."""
    return [f"{name}-{part}" for part in "bca"]


def held(names: list[str], using: str = "default") -> list[str]:
    return sorted(name[-1] for name in names if locks[using].holder(name) is not None)


def test_all_are_held_and_released(names: list[str], using: str) -> None:
    """The body runs with each lock held, as a lock of its own, and all are free afterwards."""
    with lock_many([*names, names[0]], timeout=10, using=using) as group:
        assert isinstance(group, LockGroup)
        assert group.names == tuple(sorted(names))
        assert held(names, using) == ["a", "b", "c"]
        assert group.fences == {name: locks[using].holder(name).fence for name in sorted(names)}
        assert len(set(group.fences.values())) == 3
        assert group[names[0]].owned()
        assert group.owned()
        assert 9 < group.remaining <= 10
        assert not group.lost
        group.extend(10)
        assert 19 < group.remaining <= 20
        group.reacquire()
        assert 9 < group.remaining <= 10
        group.ensure_held()
    assert held(names, using) == []
    assert group.remaining == 0.0
    for use in (group.release, group.ensure_held):
        with pytest.raises(LockNotOwned):
            use()


def test_one_held_lock_keeps_all_out_until_it_is_released(names: list[str], using: str) -> None:
    """If one is held none is acquired, and the error names the held one; a waiter gets all."""
    for name in names:
        single = lock(name, using=using)
        single.acquire()
        group = lock_many(names, timeout=10, using=using)
        assert group.acquire(blocking=False) is False
        assert group.acquire(blocking_timeout=0.02) is False
        with pytest.raises(LockNotAcquired) as caught:
            lock_many(names, blocking=False, using=using).__enter__()
        assert caught.value.name == name
        assert held(names, using) == [name[-1]]
        waiting = Background(group.acquire)
        eventually(lambda name=name: waiters(name, using) == 1)
        single.release()
        assert waiting.outcome() is True
        assert held(names, using) == ["a", "b", "c"]
        group.release()


@pytest.mark.parametrize("lose", [False, True])
def test_leases_begin_when_the_last_is_taken(names: list[str], using: str, lose: bool) -> None:
    """A fixed lease does not run down during the wait for another; a lost lock is taken again."""
    group, last = lock_many(names, timeout=30, using=using), max(names)
    with lock(last, using=using):
        waiting = Background(group.acquire)
        eventually(lambda: waiters(last, using) == 1)
        early = [group[name].lease for name in sorted(names)[:2]]
        assert all(lease and lease.token in renewer.entries for lease in early)
        for lease in early:
            lease.shorten(10)  # as after a long wait
        soonest = min(lease.deadline for lease in early)
        if lose:
            locks[using].force_release(min(names))
    assert waiting.outcome() is True
    leases = [group[name].lease for name in names]
    assert all(lease.deadline > soonest + 10 for lease in leases)
    group.ensure_held()
    assert not any(lease and lease.token in renewer.entries for lease in leases)
    group.release()


def test_each_in_its_own_way(names: list[str], using: str) -> None:
    """Some alone, others shared, and permits of others, in the order of all names."""
    (alone, event, printer), given = names, {"using": using, "blocking_timeout": 0.01}
    mixed = lock_many([alone], shared=iter([event]), limit={printer: 1}, **given)
    with mixed:
        assert mixed.names == tuple(sorted(names))
        with lock(event, shared=True, **given):
            assert not lock(event, using=using, blocking=False).acquire()
        for taken in (lock(alone, shared=True, **given), semaphore(printer, 1, **given)):
            assert not taken.acquire()
    with semaphore(printer, 1, using=using):
        with pytest.raises(LockNotAcquired, match=f"{printer}.*: the only permit is taken"):
            mixed.__enter__()
        assert held(names, using) == [printer[-1]]


def test_loss_of_two(names: list[str], using: str) -> None:
    """If one lock is lost so is the group; the error names the first, and the rest is released."""
    group = lock_many(names, using=using)
    group.acquire()
    for name in sorted(names)[:2]:
        locks[using].force_release(name)
    with pytest.raises(LockLost) as caught:
        group.ensure_held()
    assert caught.value.name == min(names)
    assert group.lost
    with pytest.raises(LockLost) as caught:
        group.release()
    assert caught.value.name == min(names)
    assert held(names, using) == []


def test_release_that_is_not_answered(
    names: list[str], using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller waits for one of the locks only; all are freed as soon as that is possible."""
    asked = list[str]()
    group = lock_many(names, using=using)
    group.acquire()
    with monkeypatch.context() as patch:

        def deaf(call: Any) -> Any:
            asked.append(threading.current_thread().name)
            raise LockUnavailable("no answer")

        patch.setattr("django_redis_lock.protocol.calls.RETRY_FOR", -1.0)
        patch.setattr(locks[using], "call", deaf)
        with pytest.raises(LockUnavailable):
            group.release()
        assert asked.count(threading.current_thread().name) == 1
    eventually(lambda: held(names, using) == [])


@pytest.mark.django_db
def test_failed_group_in_a_transaction(names: list[str], using: str) -> None:
    """A group that can't be acquired leaves the locks that the transaction keeps alone."""
    with held_by_another(names[1], using=using):
        with atomic():
            with lock(names[0], using=using):
                pass
            assert lock_many(names, blocking=False, using=using).acquire() is False
            assert held(names, using) == sorted([names[0][-1], names[1][-1]])
        assert held(names, using) == [names[1][-1]]


@pytest.mark.django_db
def test_group_that_is_taken_again_in_a_transaction(names: list[str], using: str) -> None:
    group = lock_many(names, using=using)
    with atomic():
        for _ in range(2):
            with group:
                assert group.owned()
        assert held(names, using) == ["a", "b", "c"]
    assert held(names, using) == []


@pytest.mark.parametrize(
    ("names", "options", "error", "message"),
    [
        (["a"], {"shared": "event:7"}, TypeError, "shared='event:7' must be a list of names"),
        (["a"], {"shared": 1}, TypeError, "shared=1 must be True or False"),
        (["a"], {"shared": ["b", "a"]}, ValueError, "'a' is passed twice, in different ways"),
        ([], {"shared": ["a"], "limit": {"a": 2}}, ValueError, "'a' is passed twice"),
        (["a"], {"limit": {"b": None}}, ValueError, "must map each name to a whole number"),
        (["a"], {"limit": {"b": -1}}, ValueError, "limit=-1 must be a whole number"),
        (["a"], {"shared": True, "limit": 2}, ValueError, "shared conflicts with limit"),
        ([], {"shared": [], "limit": {}}, ValueError, "at least one lock name"),
        ("product:1", {}, TypeError, "one name"),
        (None, {}, TypeError, "names=None must be a list of names"),
        (map(str, range(1001)), {}, ValueError, "1000"),
        (["a", ""], {}, ValueError, "name"),
    ],
)
def test_invalid_names(names: Any, options: Any, error: Any, message: str) -> None:
    """Wrong names, a name with two modes, and a wrong limit raise before anything is acquired."""
    with pytest.raises(error, match=message):
        lock_many(names, **options)


def test_a_name_given_twice_in_one_way() -> None:
    """It counts once; names that are given apart have the way of the others, or their own."""
    assert lock_many(["a", "a"], shared=["b", "b"]).names == ("a", "b")
    group = lock_many(["b"], shared=True, limit={"a": 2})
    assert [group[name].sharing[:2] for name in group] == [(True, 2), (True, None)]
    assert lock_many(["a"], shared=["b"], limit=3)["a"].sharing.limit == 3


@pytest.mark.usefixtures("server")
def test_one_round_trip_each(names: list[str], client: redis.Redis) -> None:
    """A free lock is acquired in one call, and released in another."""
    with lock_many(names):
        pass
    many = [f"{names[0]}-{number}" for number in range(5)]
    with counted(client) as counts, lock(names[0]), lock_many(many):
        pass
    assert counts["evalsha"] == 12
