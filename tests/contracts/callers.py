"""What callers meet in their own process, before any server is asked."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

from django_redis_lock import Lock, lock_many, locks, signals
from django_redis_lock.exceptions import LockError, LockLost, LockNotOwned
from tests.contracts.base import Contract
from tests.tools import told

_LEASES = (0, -1, 0.0005, True, math.nan, math.inf, 1e300, 10**400, -(10**400), 10**5000)
_WAITS = (-1, True, math.nan)


def _lock(**given: Any) -> Callable[[Contract, Lock, Any], object]:
    """Return what makes a lock with an argument, of which a value is that of the test."""
    return lambda one, held, value: one.lock(
        **{"name": held.name, **{key: value if own is ... else own for key, own in given.items()}}
    )


def _force_release(argument: str) -> Callable[[Contract, Lock, Any], object]:
    return lambda one, held, value: locks[one.using].force_release(held.name, **{argument: value})


MISTAKES = [
    (_lock(timeout=...), _LEASES, ValueError, r"^timeout=.{1,150}$"),
    (
        lambda one, held, value: held.extend(value),
        _LEASES,
        ValueError,
        r"^additional_time=.{1,150}$",
    ),
    (_lock(blocking_timeout=...), _WAITS, ValueError, "blocking_timeout"),
    (
        lambda one, held, value: one.lock(held.name).acquire(blocking_timeout=value),
        _WAITS,
        ValueError,
        "blocking_timeout",
    ),
    (_lock(timeout=None, auto_renew=...), [True], ValueError, "auto_renew"),
    (_lock(timeout=...), ["10"], TypeError, "seconds"),
    (_lock(name=...), ["", "a\nb", "\x00", "a\x9f", "x" * 513, "\ud800"], ValueError, "name"),
    (_lock(metadata=...), [{"shop": 1}], TypeError, "'shop'"),
    (
        _lock(metadata=...),
        [{"a": "x" * 1017}, {"é": "x" * 1012}],
        ValueError,
        "has 1025 bytes as JSON; the maximum is 1024",
    ),
    (_force_release("reason"), ["x" * 501], ValueError, "reason has at most 500"),
    (_force_release("by"), ["x" * 501], ValueError, "by has at most 500"),
    (_force_release("reason"), ["\ud800"], ValueError, "must not contain lone surrogates"),
    (_force_release("by"), [7], TypeError, "by must be a str, not int: 7"),
    (_force_release("token_id"), [7], TypeError, "token_id must be a str, not int: 7"),
]


class CallerContract(Contract):
    """What a handle does in the caller's process, wherever the lock is kept."""

    def test_second_acquire_on_a_handle_raises_and_keeps_the_lease(self, name: str) -> None:
        held = self.lock(name)
        held.acquire()
        fence = held.fence
        with pytest.raises(LockError, match="already"):
            held.acquire(blocking=False)
        assert held.fence == fence
        held.ensure_held()
        held.release()

    def test_operations_on_what_is_not_held(self, name: str) -> None:
        """What was never acquired, or was released: LockNotOwned with the name."""
        held = self.lock(name)
        for _ in range(2):
            for use in (held.release, held.reacquire, held.ensure_held, lambda: held.extend(1)):
                with pytest.raises(LockNotOwned) as caught:
                    use()
                assert caught.value.name == name
                assert not isinstance(caught.value, LockLost)
            with held:
                pass

    def test_body_error_passes_through(self, name: str) -> None:
        with pytest.raises(KeyError), self.lock(name):
            raise KeyError
        assert self.lock(name, blocking=False).acquire()

    @pytest.mark.parametrize(("make", "values", "error", "words"), MISTAKES)
    def test_senseless_arguments_are_refused(
        self,
        name: str,
        make: Callable[[Contract, Lock, Any], object],
        values: Sequence[Any],
        error: type[Exception],
        words: str,
    ) -> None:
        """At once, with an error that names the argument; what is held stays held."""
        with self.lock(name, timeout=20) as held:
            for value in values:
                with pytest.raises(error, match=words):
                    make(self, held, value)
            held.ensure_held()

    def test_signals_tell_of_a_hold(self, name: str) -> None:
        metadata = {"a": "x" * 1016}  # as many bytes as they may have
        with told(signals.lock_acquired, signals.lock_released) as calls:
            with self.lock(name, metadata=metadata) as held:
                pass
        acquired, released = calls
        assert acquired["signal"] is signals.lock_acquired
        assert released["signal"] is signals.lock_released
        for arguments in calls:
            assert arguments["name"] == name
            assert arguments["using"] == self.using
            assert arguments["lock"] is held
        assert acquired["waited"] >= 0
        assert released["held_for"] >= 0

    def test_failing_signal_receiver_changes_nothing(self, name: str) -> None:
        def fail(**kwargs: Any) -> None:
            raise RuntimeError

        signals.lock_acquired.connect(fail)
        try:
            with self.lock(name) as held:
                held.ensure_held()
        finally:
            signals.lock_acquired.disconnect(fail)

    @pytest.mark.parametrize("several", [False, True])
    @pytest.mark.parametrize(
        "duplicate", [copy.copy, copy.deepcopy, pickle.dumps, ForkingPickler.dumps]
    )
    def test_handle_can_not_be_copied(
        self, name: str, several: bool, duplicate: Callable[[Any], object]
    ) -> None:
        group = lock_many([name], using=self.using)
        handle = group if several else group[name]
        with group:
            with pytest.raises(
                TypeError, match=r"same name for each caller.* ticket that detach\(\)"
            ):
                duplicate(handle)
            handle.ensure_held()

    def test_errors_survive_pickling_and_copying(self, name: str) -> None:
        """An error can be a task's result: it keeps its message and name."""
        error = LockLost("gone", name=name)
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
            assert type(other) is LockLost
            assert str(other) == "gone"
            assert other.name == name
