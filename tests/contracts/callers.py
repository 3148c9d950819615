"""What callers meet in their own process, before any server is asked."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

from django_redis_lock import lock_many, locks, signals
from django_redis_lock.exceptions import LockError, LockLost, LockNotOwned
from tests.contracts.base import Contract
from tests.tools import told


class CallerContract(Contract):
    """What a handle does in the caller's process, wherever the lock is kept."""

    def test_second_acquire_on_a_handle_raises_and_keeps_the_lease(self, name: str) -> None:
        """A failed second acquire on a held handle does not overwrite the token."""
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

    @pytest.mark.parametrize(
        "timeout",
        [0, -1, 0.0005, True, float("nan"), float("inf"), 1e300, 10**400, -(10**400), 10**5000],
        ids=lambda value: "huge" if abs(value) > 10**300 else None,
    )
    def test_senseless_lease_is_refused(self, name: str, timeout: float) -> None:
        """A lease has at least a millisecond and at most a century: ValueError at once."""
        with pytest.raises(ValueError, match=r"^timeout=.{1,150}$"):
            self.lock(name, timeout=timeout)
        with self.lock(name, timeout=20) as held:
            with pytest.raises(ValueError, match=r"^additional_time=.{1,150}$"):
                held.extend(timeout)
            assert held.owned()

    @pytest.mark.parametrize("wait", [-1, True, float("nan")])
    def test_senseless_wait_is_refused(self, name: str, wait: float) -> None:
        with pytest.raises(ValueError, match="blocking_timeout"):
            self.lock(name, blocking_timeout=wait)
        with pytest.raises(ValueError, match="blocking_timeout"):
            self.lock(name).acquire(blocking_timeout=wait)

    @pytest.mark.parametrize(
        ("given", "error", "words"),
        [
            ({"timeout": None, "auto_renew": True}, ValueError, "auto_renew"),
            ({"timeout": "10"}, TypeError, "seconds"),
            ({"metadata": {"shop": 1}}, TypeError, "'shop'"),
            *[
                ({"name": bad}, ValueError, "name")
                for bad in ("", "a\nb", "\x00", "a\x9f", "x" * 513, "\ud800")
            ],
        ],
    )
    def test_senseless_arguments_are_refused(
        self, name: str, given: Any, error: type[Exception], words: str
    ) -> None:
        with pytest.raises(error, match=words):
            self.lock(**{"name": name, **given})

    def test_metadata_has_a_limit(self, name: str) -> None:
        """Metadata up to the limit are stored; one byte more is a ValueError with both numbers."""
        with self.lock(name, metadata={"a": "x" * 1016}):
            pass
        for metadata in ({"a": "x" * 1017}, {"é": "x" * 1012}):
            with pytest.raises(ValueError, match="takes 1025 bytes as JSON, and the limit is 1024"):
                self.lock(name, metadata=metadata)

    def test_signals_tell_of_a_hold(self, name: str) -> None:
        """Acquiring and releasing send their signals with alias, name and handle."""
        with told(signals.lock_acquired, signals.lock_released) as calls, self.lock(name) as held:
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
        """A receiver that raises neither loses the lock nor reaches the caller."""

        def fail(**kwargs: Any) -> None:
            raise RuntimeError

        signals.lock_acquired.connect(fail)
        try:
            with self.lock(name) as held:
                held.ensure_held()
        finally:
            signals.lock_acquired.disconnect(fail)

    @pytest.mark.parametrize(
        ("given", "error", "words"),
        [
            ({"reason": "x" * 501}, ValueError, "reason has at most 500"),
            ({"by": "x" * 501}, ValueError, "by has at most 500"),
            ({"reason": "\ud800"}, ValueError, "reason must not contain lone surrogates"),
            ({"by": 7}, TypeError, "by must be a str, not int: 7"),
            ({"token_id": 7}, TypeError, "token_id must be a str, not int: 7"),
        ],
    )
    def test_senseless_reasons_are_refused(
        self, name: str, given: dict[str, Any], error: type[Exception], words: str
    ) -> None:
        """A reason that can't be stored is an error that names it, and nothing is released."""
        with self.lock(name) as held:
            with pytest.raises(error, match=words):
                locks[self.using].force_release(name, **given)
            held.ensure_held()

    @pytest.mark.parametrize("several", [False, True])
    @pytest.mark.parametrize(
        "duplicate", [copy.copy, copy.deepcopy, pickle.dumps, ForkingPickler.dumps]
    )
    def test_handle_can_not_be_copied(
        self, name: str, several: bool, duplicate: Callable[[Any], object]
    ) -> None:
        """Pickling or copying a handle is an error that says what to do; it keeps its lock."""
        group = lock_many([name], using=self.using)
        handle = group if several else group[name]
        with group:
            with pytest.raises(TypeError, match=r"handle for each caller.* ticket that detach\(\)"):
                duplicate(handle)
            handle.ensure_held()

    def test_errors_survive_pickling_and_copying(self, name: str) -> None:
        """An error can be a task's result: it keeps its message and name."""
        error = LockLost("gone", name=name)
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
            assert type(other) is LockLost
            assert str(other) == "gone"
            assert other.name == name
