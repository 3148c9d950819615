"""What every backend promises; a test class for each backend extends these classes.

``HandleContract`` is what a handle does whoever keeps the lock. ``LockContract`` adds what a
backend promises that really excludes. What a backend ``lacks`` is not asked of it: a test that
``needs`` it is not collected.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, TypeVar
from unittest.mock import ANY

import pytest

from django_redis_lock import AuditEntry, Holder, Lock, lock, locks, signals
from django_redis_lock.backends.index import Index
from django_redis_lock.exceptions import (
    LockError,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockUnavailable,
)
from django_redis_lock.protocol.calls import ForceRelease, NoteLosses
from django_redis_lock.protocol.conversation import ask
from tests.tools import SOON, Background, eventually, waiters

Case = TypeVar("Case", bound=Callable[..., None])


def needs(*capabilities: str) -> Callable[[Case], Case]:
    """Mark a test of what only backends with these capabilities promise."""

    def mark(test: Case) -> Case:
        vars(test)["needs"] = capabilities
        return test

    return mark


class HandleContract:
    """What a handle does, whether or not the backend excludes anybody."""

    using: ClassVar[str]
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Capabilities that the backend does not have; or ``precision``, in milliseconds."""

    def __init_subclass__(cls) -> None:
        for name in dir(cls):
            if cls.lacks.intersection(getattr(getattr(cls, name), "needs", ())):
                setattr(cls, name, None)

    def lock(self, name: str, *args: Any, **kwargs: Any) -> Lock:
        """Return a handle on the backend under test."""
        return lock(name, *args, using=self.using, **kwargs)

    def test_context_manager_holds_and_releases(self, name: str) -> None:
        """The body runs with the lock held, and the lock is free afterwards."""
        with self.lock(name) as held:
            assert held.owned()
            assert held.fence > 0
            assert 0 < held.remaining <= locks[self.using].timeout
            assert not held.lost
        assert held.remaining == 0.0
        assert self.lock(name, blocking=False).acquire()

    def test_acquire_and_release_return_as_in_redis_py(self, name: str) -> None:
        """``acquire`` returns True, ``release`` returns None."""
        held = self.lock(name)
        assert held.acquire() is True
        assert held.release() is None

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

    def test_release_of_a_handle_that_holds_nothing(self, name: str) -> None:
        """Releasing what was never acquired, or twice, raises LockNotOwned with the name."""
        held = self.lock(name)
        with pytest.raises(LockNotOwned) as caught:
            held.release()
        assert caught.value.name == name
        assert not isinstance(caught.value, LockLost)
        held.acquire()
        held.release()
        with pytest.raises(LockNotOwned):
            held.release()

    @pytest.mark.parametrize("operation", ["reacquire", "ensure_held"])
    def test_operations_on_what_is_not_held(self, name: str, operation: str) -> None:
        """Keeping or checking a lock that is not held raises LockNotOwned."""
        with pytest.raises(LockNotOwned):
            getattr(self.lock(name), operation)()
        with pytest.raises(LockNotOwned):
            self.lock(name).extend(1)

    def test_extend_adds_and_replaces(self, name: str) -> None:
        """``extend`` adds to the lease, or replaces it; ``reacquire`` starts it anew."""
        with self.lock(name, timeout=10) as held:
            assert held.extend(20) is True
            assert 29 < held.remaining <= 30
            assert held.extend(5, replace_ttl=True) is True
            assert 4 < held.remaining <= 5
            assert held.reacquire() is True
            assert 9 < held.remaining <= 10

    def test_endless_lock(self, name: str) -> None:
        """``timeout=None`` never expires, and its lease can't be set."""
        with self.lock(name, timeout=None) as held:
            assert held.remaining == math.inf
            held.ensure_held()
            assert held.remaining == math.inf
            with pytest.raises(LockError, match="never expires"):
                held.extend(5)
            with pytest.raises(LockError, match="never expires"):
                held.reacquire()

    def test_body_error_passes_through(self, name: str) -> None:
        """An exception from the body reaches the caller, and the lock is free."""
        with pytest.raises(KeyError), self.lock(name):
            raise KeyError
        assert self.lock(name, blocking=False).acquire()

    def test_body_error_is_not_masked_by_the_release(self, name: str) -> None:
        """An exception from the body is never hidden by one from the release."""
        with pytest.raises(KeyError), self.lock(name) as held:
            held.release()
            raise KeyError

    def test_decorator(self, name: str) -> None:
        """A decorated function keeps its name, and each call holds the lock anew."""
        seen = []

        @self.lock(name)
        def work(value: int, *, plus: int = 0) -> int:
            """Work."""
            seen.append(locks[self.using].holder(name))
            return value + plus

        assert work(1, plus=2) == 3
        assert work(4) == 4
        assert work.__doc__ == "Work."
        assert len(seen) == 2

    def test_decorated_coroutine_function(self, name: str) -> None:
        """An async function is decorated as one."""

        @self.lock(name)
        async def work(value: int) -> int:
            return value

        async def twice() -> list[int]:
            return list(await asyncio.gather(work(1), work(2)))

        assert asyncio.iscoroutinefunction(work)
        assert asyncio.run(twice()) == [1, 2]

    def test_decorated_generator_is_refused(self, name: str) -> None:
        """A generator, whose body would run without the lock, is refused when decorated."""
        with pytest.raises(TypeError, match="generator"):

            @self.lock(name)
            def work() -> Any:
                yield 1

    def test_async_face(self, name: str) -> None:
        """Every operation has an asynchronous twin that does the same."""

        async def main() -> None:
            async with self.lock(name, timeout=10) as held:
                assert await held.aowned()
                await held.aensure_held()
                await held.aextend(10)
                assert 19 < held.remaining <= 20
                await held.areacquire()
                assert 9 < held.remaining <= 10
                with pytest.raises(LockError, match="already"):
                    await held.aacquire()
            with pytest.raises(LockNotOwned):
                await held.arelease()

        asyncio.run(main())

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
        """A negative, bool or NaN wait is a ValueError at once."""
        with pytest.raises(ValueError, match="blocking_timeout"):
            self.lock(name, blocking_timeout=wait)
        with pytest.raises(ValueError, match="blocking_timeout"):
            self.lock(name).acquire(blocking_timeout=wait)

    def test_contradictions_are_refused(self, name: str) -> None:
        """Arguments that contradict each other are a ValueError that names them."""
        with pytest.raises(ValueError, match="blocking=False"):
            self.lock(name, blocking=False, blocking_timeout=1)
        with pytest.raises(ValueError, match="blocking=False"):
            self.lock(name).acquire(blocking=False, blocking_timeout=1)
        with pytest.raises(ValueError, match="auto_renew"):
            self.lock(name, timeout=None, auto_renew=True)
        with pytest.raises(TypeError, match="seconds"):
            self.lock(name, timeout="10")

    @pytest.mark.parametrize("bad", ["", "a\nb", "\x00", "a\x9f", "x" * 513, "\ud800"])
    def test_bad_names_are_refused(self, bad: str) -> None:
        """Empty names, control characters and overlong names are a ValueError."""
        with pytest.raises(ValueError, match="name"):
            self.lock(bad)

    @pytest.mark.parametrize("good", [" ", "a b", "ключ:{42}", "鎖 🔒", "x" * 512, "a*[b]?", "%s"])
    def test_good_names_work(self, good: str) -> None:
        """Any other text is a name, exactly as written."""
        with self.lock(good) as held:
            assert held.owned()
            holder = locks[self.using].holder(good)
            assert holder is None or holder.name == good

    def test_metadata_must_be_text(self, name: str) -> None:
        """Metadata that is not str to str is a TypeError naming the key."""
        with pytest.raises(TypeError, match="'shop'"):
            self.lock(name, metadata={"shop": 1})

    def test_metadata_has_a_limit(self, name: str) -> None:
        """As much as the limit is stored; a byte more is a ValueError with both numbers."""
        with self.lock(name, metadata={"a": "x" * 1016}):
            pass
        for metadata in ({"a": "x" * 1017}, {"é": "x" * 1012}):
            with pytest.raises(ValueError, match="takes 1025 bytes as JSON, and the limit is 1024"):
                self.lock(name, metadata=metadata)

    @needs("passing")
    def test_metadata_of_a_detached_lock_has_the_same_limit(self, name: str) -> None:
        """What is added when a lock is detached counts with what was there; it stays held."""
        with self.lock(name, metadata={"a": "x" * 1000}) as held:
            with pytest.raises(ValueError, match="takes 1045 bytes as JSON"):
                held.detach(15, metadata={"b": "x" * 30})
            assert held.owned()

    def test_signals_tell_of_a_hold(self, name: str) -> None:
        """Acquiring and releasing send their signals with alias, name and handle."""
        told: list[tuple[str, dict[str, Any]]] = []

        def acquired(**kwargs: Any) -> None:
            told.append(("acquired", kwargs))

        def released(**kwargs: Any) -> None:
            told.append(("released", kwargs))

        signals.lock_acquired.connect(acquired)
        signals.lock_released.connect(released)
        try:
            with self.lock(name) as held:
                pass
        finally:
            signals.lock_acquired.disconnect(acquired)
            signals.lock_released.disconnect(released)
        assert [kind for kind, _ in told] == ["acquired", "released"]
        for _, kwargs in told:
            assert kwargs["name"] == name
            assert kwargs["using"] == self.using
            assert kwargs["lock"] is held
        assert told[0][1]["waited"] >= 0
        assert told[1][1]["held_for"] >= 0

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

    def test_nobody_waits_and_nothing_happened(self, name: str) -> None:
        """A lock that is not held has no line, and one that nobody lost has no history."""
        backend = locks[self.using]
        assert backend.waiting(name) == backend.history(name) == []
        with pytest.raises(ValueError, match="limit=0"):
            backend.history(limit=0)
        for question in (backend.waiting, backend.history, backend.force_release):
            with pytest.raises(ValueError, match="name"):
                question("")

    @pytest.mark.parametrize(
        ("given", "error", "words"),
        [
            ({"reason": "x" * 501}, ValueError, "reason has at most 500"),
            ({"by": "x" * 501}, ValueError, "by has at most 500"),
            ({"reason": "\ud800"}, ValueError, "reason must not contain lone surrogates"),
            ({"by": 7}, TypeError, "by must be a str, not int: 7"),
        ],
    )
    def test_senseless_reasons_are_refused(
        self, name: str, given: dict[str, Any], error: type[Exception], words: str
    ) -> None:
        """What can't be kept as a reason is an error that names it, and nothing is released."""
        with self.lock(name) as held:
            with pytest.raises(error, match=words):
                locks[self.using].force_release(name, **given)
            held.ensure_held()

    def test_handle_has_a_telling_repr(self, name: str) -> None:
        """The repr says the name and the state."""
        held = self.lock(name)
        assert name in repr(held)
        with held:
            assert f"fence {held.fence}" in repr(held)


class LockContract(HandleContract):
    """What a backend promises that excludes, queues, fences and lists."""

    @pytest.mark.parametrize("blocking_timeout", [0, 0.05])
    def test_second_holder_is_kept_out(self, name: str, blocking_timeout: float) -> None:
        """While one holds, another is told False, and its with statement raises."""
        with self.lock(name):
            assert self.lock(name).acquire(blocking=False) is False
            assert self.lock(name).acquire(blocking_timeout=blocking_timeout) is False
            with pytest.raises(LockNotAcquired) as caught:
                self.lock(name, blocking_timeout=blocking_timeout).__enter__()
            assert caught.value.name == name

    def test_body_does_not_run_without_the_lock(self, name: str) -> None:
        """The ``with`` body never runs after a timed-out wait."""
        ran = []
        with self.lock(name), pytest.raises(LockNotAcquired):
            with self.lock(name, blocking_timeout=0.02):
                ran.append(1)
        assert not ran

    def test_other_names_are_free(self, name: str) -> None:
        """A lock excludes only its own name."""
        with self.lock(name), self.lock(name + "!", blocking=False) as other:
            assert other.owned()

    def test_locked_and_owned(self, name: str) -> None:
        """``locked`` says whether anybody holds, ``owned`` whether this handle does."""
        one, other = self.lock(name), self.lock(name)
        assert not one.locked()
        with one:
            assert other.locked()
            assert one.owned()
            assert not other.owned()
        assert not other.locked()

    @needs("fencing")
    def test_fences_rise(self, name: str) -> None:
        """Each holder's fence is greater than every earlier one's."""
        fences = []
        for _ in range(50):
            with self.lock(name) as held:
                fences.append(held.fence)
        assert fences == sorted(set(fences))

    def test_waiter_gets_the_lock_on_release(self, name: str) -> None:
        """A release hands the lock to who waits; the next fence is greater."""
        first = self.lock(name)
        first.acquire()
        fence = first.fence
        other = self.lock(name)
        waiting = Background(other.acquire)
        eventually(lambda: waiters(name, self.using) == 1)
        first.release()
        assert waiting.outcome() is True
        assert other.fence > fence
        other.ensure_held()
        other.release()

    @needs("queue")
    def test_waiters_are_served_in_their_order(self, name: str) -> None:
        """First come, first served; nobody who comes later passes the line."""
        order: list[int] = []
        first = self.lock(name)
        first.acquire()

        def wait(number: int) -> None:
            with self.lock(name):
                order.append(number)

        line = []
        for number in range(8):
            line.append(Background(lambda number=number: wait(number)))
            eventually(lambda number=number: waiters(name, self.using) == number + 1)
        first.release()
        for waiting in line:
            waiting.outcome()
        assert order == list(range(8))

    @needs("queue")
    def test_waiter_that_gives_up_leaves_the_line(self, name: str) -> None:
        """A waiter whose time runs out leaves nothing behind, and the next is served."""
        with self.lock(name):
            assert not self.lock(name).acquire(blocking_timeout=0.05)
            assert waiters(name, self.using) == 0
            patient = Background(self.lock(name).acquire)
            eventually(lambda: waiters(name, self.using) == 1)
        assert patient.outcome() is True

    @needs("queue")
    def test_line_is_shown(self, name: str) -> None:
        """``waiting`` tells who waits, in which order, since when, and what for."""
        backend = locks[self.using]
        with self.lock(name):
            began = backend.holder(name).acquired_at
            first = self.lock(name, timeout=7, metadata={"shop": "7\n"})
            second = self.lock(name)
            waiting = [Background(lambda: self.take_turn(first))]
            eventually(lambda: waiters(name, self.using) == 1)
            waiting.append(Background(lambda: self.take_turn(second)))
            eventually(lambda: waiters(name, self.using) == 2)
            line = backend.waiting(name)
            assert asyncio.run(backend.awaiting(name))[0].token_id == line[0].token_id
            assert [item.thread for item in line] == [item.name for item in waiting]
            assert [(item.lease, item.auto_renew) for item in line] == [
                (7.0, False),
                (backend.timeout, True),
            ]
            assert {(item.name, item.using, item.pid) for item in line} == {
                (name, self.using, os.getpid())
            }
            assert line[0].metadata == {"shop": "7\n"}
            tolerance = timedelta(seconds=0.02)
            assert began - tolerance <= line[0].since <= line[1].since + tolerance
            assert 0 <= line[0].waited < 10
            assert line[0].waited > line[1].waited - 0.02
            assert str(line[0].pid) in str(line[0])
        turns = [item.outcome() for item in waiting]
        assert [turn.token_id for turn in turns] == [item.token_id for item in line]
        assert [turn.metadata for turn in turns] == [{"shop": "7\n"}, {}]
        assert backend.waiting(name) == []

    def take_turn(self, waiter: Lock) -> Holder:
        """Wait for a lock and release it; return who held it meanwhile."""
        with waiter:
            holder = locks[self.using].holder(waiter.name)
            assert holder is not None
            return holder

    @needs("queue")
    def test_since_stays_while_one_waits(self, name: str) -> None:
        """However often a waiter looks again, it has waited since it came."""
        with self.lock(name) as held:
            waiting = Background(self.lock(name).acquire)
            eventually(lambda: waiters(name, self.using) == 1)
            (before,) = locks[self.using].waiting(name)
            for lease in (20, 10, 5):
                held.extend(lease, replace_ttl=True)  # makes it look
            locks[self.using].hub.nudge()
            eventually(lambda: locks[self.using].waiting(name)[0].waited > before.waited + 0.1)
            (after,) = locks[self.using].waiting(name)
            assert (after.since, after.token_id) == (before.since, before.token_id)
        assert waiting.outcome() is True

    @needs("queue")
    def test_waiter_that_was_interrupted_leaves_the_line(self, name: str) -> None:
        """The entry that carries the time is the one that is taken back."""
        with self.lock(name):
            for _ in range(2):  # the second knows the server's clock already
                assert not self.lock(name).acquire(blocking_timeout=0.05)
                assert locks[self.using].waiting(name) == []

    def test_endless_lock_excludes(self, name: str) -> None:
        """``timeout=None`` is no lease of zero: the lock stays, and there is no second holder."""
        with self.lock(name, timeout=None) as held:
            holder = locks[self.using].holder(name)
            assert (holder.ttl, holder.expires_at) == (None, None)
            assert not self.lock(name, timeout=None).acquire(blocking_timeout=0.05)
            assert not self.lock(name).acquire(blocking=False)
            held.ensure_held()

    @needs("precision")
    def test_short_wait_for_a_lock_that_comes_free(self, name: str) -> None:
        """A wait shorter than any polling interval gets a lock that comes free within it."""
        self.lock(name, timeout=0.03).acquire()
        assert self.lock(name).acquire(blocking_timeout=0.24)

    @needs("queue")
    def test_deadline_is_kept_through_many_wake_ups(self, name: str) -> None:
        """A wait of one second ends after one second however often the waiter is woken."""
        with self.lock(name, timeout=30) as held:
            began = time.monotonic()
            waiting = Background(lambda: self.lock(name).acquire(blocking_timeout=1))
            eventually(lambda: waiters(name, self.using) == 1)
            lease = 20.0
            while waiting.is_alive():
                lease = max(lease * 0.99, 5.0)
                held.extend(lease, replace_ttl=True)  # a shorter lease wakes whoever waits
                assert time.monotonic() - began < 5
            assert waiting.outcome() is False
            assert 1 <= waiting.ended_at - began < 3

    @needs("precision")
    def test_clock_of_the_client_decides_nothing(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A client whose wall clock jumps about holds, waits and expires as others do."""
        jumps = iter(range(0, 10**9, 86_400))
        monkeypatch.setattr(time, "time", lambda: float(next(jumps)))
        with self.lock(name, timeout=1, auto_renew=True) as held:
            first = held.fence
            assert not self.lock(name).acquire(blocking_timeout=0.05)
            assert 0 < held.remaining <= 1
            held.ensure_held()
        dead = self.lock(name, timeout=0.1)
        dead.acquire()
        end = time.monotonic() + dead.remaining
        with self.lock(name, blocking_timeout=5) as held:
            assert held.fence > first
            assert -0.01 < time.monotonic() - end < SOON

    def test_wait_ends_when_it_should(self, name: str) -> None:
        """The wait's deadline is kept, and does not start again at each wake-up."""
        with self.lock(name, timeout=30):
            began = time.monotonic()
            assert not self.lock(name).acquire(blocking_timeout=0.3)
            assert 0.3 <= time.monotonic() - began < 3

    def test_expired_lock_is_free(self, name: str) -> None:
        """A lease that passes frees the lock, and a fixed lease is not renewed."""
        held = self.lock(name, timeout=0.05)
        held.acquire()
        with self.lock(name, blocking_timeout=5) as other:
            assert held.lost
            assert held.remaining == 0.0
            with pytest.raises(LockLost):
                held.ensure_held()
            with pytest.raises(LockLost):
                held.extend(5)
            other.ensure_held()

    def test_expired_holder_does_not_release_its_successor(self, name: str) -> None:
        """An expired holder's release raises LockLost and never frees its successor's lock."""
        late = self.lock(name, timeout=0.05)
        late.acquire()
        with self.lock(name, blocking_timeout=5) as successor:
            with pytest.raises(LockLost) as caught:
                late.release()
            assert caught.value.name == name
            successor.ensure_held()
            assert not self.lock(name, blocking=False).acquire()

    @needs("precision")
    def test_dead_holder_delays_waiters_by_its_lease_only(self, name: str) -> None:
        """A waiter gets the lock within 100 ms of the end of a lease that nobody released."""
        dead = self.lock(name, timeout=0.4)
        dead.acquire()
        end = time.monotonic() + dead.remaining
        with self.lock(name, blocking_timeout=5):
            assert -0.01 < time.monotonic() - end < SOON

    @needs("queue")
    def test_shortened_lease_is_noticed_by_waiters(self, name: str) -> None:
        """A lease that its holder cuts short delays the next by what is left of it only."""
        held = self.lock(name, timeout=30)
        held.acquire()
        waiting = Background(self.lock(name).acquire)
        eventually(lambda: waiters(name, self.using) == 1)
        held.extend(0.2, replace_ttl=True)
        end = time.monotonic() + held.remaining
        assert waiting.outcome() is True
        assert time.monotonic() - end < SOON

    @needs("precision")
    def test_lease_is_exact_to_the_millisecond(self, name: str) -> None:
        """Fractions of a second are kept: 1.9 s is not 1 s."""
        with self.lock(name, timeout=1.9):
            holder = locks[self.using].holder(name)
            assert 1.8 < holder.ttl <= 1.9

    def test_handle_can_be_used_again(self, name: str) -> None:
        """A handle can acquire again after a release, and after a loss."""
        held = self.lock(name, timeout=30)
        for _ in range(3):
            assert held.acquire(blocking_timeout=5)
            held.release()
        held.acquire(blocking_timeout=5)
        held.extend(0.02, replace_ttl=True)
        eventually(lambda: held.lost)
        assert held.acquire(blocking_timeout=5)
        held.ensure_held()

    def test_release_from_another_thread(self, name: str) -> None:
        """A handle may be released by another thread than the one that acquired it."""
        held = self.lock(name)
        held.acquire()
        Background(held.release).outcome()
        assert self.lock(name, blocking=False).acquire()

    def test_two_threads_acquiring_one_handle(self, name: str) -> None:
        """A handle that is waiting already refuses a second acquire; the first goes on."""
        with self.lock(name):
            shared = self.lock(name)
            waiting = Background(shared.acquire)
            eventually(lambda: waiters(name, self.using) == 1)
            with pytest.raises(LockError, match="already"):
                shared.acquire()
        assert waiting.outcome() is True

    def test_reentrant(self, name: str) -> None:
        """The same thread enters again, and the lock is free after the last exit."""
        with self.lock(name, reentrant=True) as outer:
            with self.lock(name, reentrant=True) as inner:
                assert inner.fence == outer.fence
                assert (
                    Background(
                        lambda: self.lock(name, blocking=False, reentrant=True).acquire()
                    ).outcome()
                    is False
                )
            outer.ensure_held()
            assert outer.locked()
        assert not outer.locked()

    def test_reentrant_handle_can_be_entered_again(self, name: str) -> None:
        """The very same handle can be entered again, as a threading.RLock can."""
        handle = self.lock(name, reentrant=True)
        with handle as outer:
            fence = outer.fence
            with handle, handle:
                assert handle.fence == fence
            handle.ensure_held()
            assert Background(lambda: self.lock(name).acquire(blocking=False)).outcome() is False
        assert not handle.locked()
        with pytest.raises(LockNotOwned):
            handle.release()

    def test_abandoned_generators_do_not_deadlock(self, name: str) -> None:
        """The collector may close a generator that holds a lock, in the midst of anything."""

        def hold(number: int) -> Any:
            me = []
            with self.lock(f"{name}:{number}", reentrant=True):
                me.append(me)  # a cycle, so that only the collector ends it
                yield me

        before = gc.get_threshold()
        gc.set_threshold(7)
        try:
            for number in range(150):
                next(hold(number))
                with self.lock(name, reentrant=True):
                    pass
        finally:
            gc.set_threshold(*before)
            gc.collect()

    def test_reentrant_tasks_do_not_share(self, name: str) -> None:
        """Another asyncio task does not enter its creator's lock."""

        async def main() -> None:
            async with self.lock(name, reentrant=True):
                async with self.lock(name, reentrant=True, blocking=False):
                    pass
                other = self.lock(name, reentrant=True)
                assert not await asyncio.create_task(other.aacquire(blocking=False))
            assert await asyncio.create_task(other.aacquire(blocking=False))
            await other.arelease()

        asyncio.run(main())

    @needs("records")
    def test_holder_record(self, name: str) -> None:
        """A holder's record says who, since when, until when, and what the caller gave."""
        with self.lock(name, timeout=20, metadata={"shop": "7", "é": "\n"}) as held:
            holder = locks[self.using].holder(name)
            assert isinstance(holder, Holder)
            assert holder.name == name
            assert holder.using == self.using
            assert holder.fence == held.fence
            assert 19 < holder.ttl <= 20
            assert holder.auto_renew is False
            assert holder.thread == threading.current_thread().name
            assert holder.waiters in ({0, None} if "queue" in self.lacks else {0})
            assert holder.metadata == {"shop": "7", "é": "\n"}
            assert 19 < (holder.expires_at - holder.acquired_at).total_seconds() < 20.1
            assert len(holder.token_id) == 16
            assert str(holder.pid) in str(holder)
        assert locks[self.using].holder(name) is None

    @needs("records")
    def test_auto_renewed_record(self, name: str) -> None:
        """Without a timeout the lease is the backend's, and is renewed."""
        with self.lock(name):
            holder = locks[self.using].holder(name)
            assert holder.auto_renew is True
            assert 0 <= locks[self.using].timeout - holder.ttl < 1

    @needs("listing")
    def test_listing(self, name: str) -> None:
        """``holders`` yields what is held and matches, the newest lease end first."""
        held = [self.lock(f"{name}:{number}", timeout=10 + number) for number in range(5)]
        endless = self.lock(f"{name}:endless", timeout=None)
        for item in [*held, endless]:
            item.acquire()
        found = [holder.name for holder in locks[self.using].holders(f"{name}:*")]
        assert found == [endless.name, *[item.name for item in reversed(held)]]
        held[2].release()
        found = [holder.name for holder in locks[self.using].holders(f"{name}:[0-9]")]
        assert found == [held[4].name, held[3].name, held[1].name, held[0].name]
        assert not list(locks[self.using].holders(f"{name}"))

    @needs("listing")
    def test_listing_turns_pages(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """More locks than a page holds are all listed once, equal lease ends included."""
        backend = locks[self.using]
        monkeypatch.setattr(type(backend), "page_size", 7)
        held = [self.lock(f"{name}:{number}", timeout=None) for number in range(30)]
        held += [self.lock(f"{name}:x{number}", timeout=60) for number in range(30)]
        for item in held:
            item.acquire()
        found = [holder.name for holder in backend.holders(f"{name}:*")]
        assert sorted(found) == sorted(item.name for item in held)

        async def collect() -> list[str]:
            return [holder.name async for holder in backend.aholders(f"{name}:*")]

        assert asyncio.run(collect()) == found

    @needs("listing")
    def test_lock_renewed_while_it_is_listed_is_not_missed(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A lease that is lengthened while the pages are turned is listed all the same."""
        monkeypatch.setattr(type(locks[self.using]), "page_size", 1)  # ten names a page
        held = [self.lock(f"{name}:{number}", timeout=20 + number) for number in range(25)]
        for item in held:
            item.acquire()
        add = Index.add

        def add_then_renew(self: Index, page: Any, size: int) -> None:
            add(self, page, size)
            held[12].extend(100)

        monkeypatch.setattr(Index, "add", add_then_renew)
        found = [holder.name for holder in locks[self.using].holders(f"{name}:*")]
        assert sorted(found) == sorted(item.name for item in held)
        assert found[0] == held[12].name

    @needs("listing")
    def test_locks_released_while_they_are_listed_hide_no_others(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Leases without end all end alike, and of these some leave while the pages are turned."""
        monkeypatch.setattr(type(locks[self.using]), "page_size", 1)  # ten names a page
        held = [self.lock(f"{name}:{number}", timeout=None) for number in range(80)]
        for item in held:
            item.acquire()
        leaving = {item.name: item for item in held[::2]}
        add = Index.add

        def add_then_release(self: Index, page: Any, size: int) -> None:
            add(self, page, size)
            for listed in page[0]:
                if listed in leaving:
                    leaving.pop(listed).release()

        monkeypatch.setattr(Index, "add", add_then_release)
        found = {listed for listed, _ in locks[self.using].read_index(f"{name}:*").latest()}
        assert {item.name for item in held[1::2]} <= found
        assert not leaving

    @needs("precision")
    def test_expired_locks_are_not_listed(self, name: str) -> None:
        """A lock whose lease has passed is nobody's."""
        self.lock(name, timeout=0.02).acquire()
        eventually(lambda: locks[self.using].holder(name) is None)
        assert not list(locks[self.using].holders(name))

    @needs("records")
    def test_force_release(self, name: str) -> None:
        """An operator's release frees the lock, tells who lost it, and the loser learns it."""
        told = []

        def receive(**kwargs: Any) -> None:
            told.append(kwargs)

        signals.lock_force_released.connect(receive)
        try:
            held = self.lock(name)
            held.acquire()
            loser = locks[self.using].force_release(name)
        finally:
            signals.lock_force_released.disconnect(receive)
        assert loser.fence == held.fence
        assert told[0]["holder"] == loser
        assert locks[self.using].holder(name) is None
        assert locks[self.using].force_release(name) is None
        with pytest.raises(LockLost):
            held.ensure_held()
        assert held.lost
        with pytest.raises(LockLost):
            held.release()

    @needs("records")
    def test_forced_release_is_in_the_audit(self, name: str) -> None:
        """The audit tells who lost which hold, when, to whom and why; the newest comes first."""
        backend = locks[self.using]
        held = self.lock(name, metadata={"shop": "7"})
        held.acquire()
        before = backend.holder(name)
        backend.force_release(name, by="ada", reason=" it hangs\n")
        (entry,) = backend.history(name)
        assert isinstance(entry, AuditEntry)
        assert (entry.event, entry.by, entry.reason) == ("force_released", "ada", "it hangs")
        assert (entry.name, entry.using) == (name, self.using)
        assert (entry.fence, entry.token_id) == (held.fence, before.token_id)
        assert (entry.host, entry.pid, entry.thread) == (before.host, before.pid, before.thread)
        assert (entry.task_id, entry.task_name) == (None, None)
        assert str(entry) == str(before)
        assert -0.001 <= (entry.at - before.acquired_at).total_seconds() < 10  # to the millisecond

        assert backend.force_release(name, by="ada") is None  # nobody lost anything
        self.lock(name).acquire()
        backend.force_release(name)
        newest, *_ = asyncio.run(backend.ahistory(name, limit=1))
        assert [newest] == backend.history(limit=1) == backend.history(name, 1)
        assert [item.event for item in backend.history(name)].count("force_released") == 2

    @needs("records")
    def test_forced_release_that_came_too_late_is_none(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Sent in vain, and again after the holder's own release, it is told as nobody's loss."""
        backend = locks[self.using]
        carry_out = backend.call
        held = self.lock(name)
        held.acquire()

        def lose_the_first(call: Any) -> Any:
            if isinstance(call, ForceRelease) and call.first_sent_at is None:
                call.sending()
                held.release()
                raise LockUnavailable("the call was lost")
            return carry_out(call)

        monkeypatch.setattr(backend, "call", lose_the_first)
        assert backend.force_release(name) is None
        assert backend.history(name) == []

    @needs("records")
    @pytest.mark.parametrize("how", ["ensure_held", "release", "extend", "renewal", "async"])
    def test_loss_is_in_the_audit_once(self, name: str, how: str) -> None:
        """Whoever finds that a lease was lost writes it down, and nobody writes it again."""
        backend = locks[self.using]
        held = self.lock(name, timeout=0.6 if how == "renewal" else 20, auto_renew=how == "renewal")
        held.acquire()
        fence, token_id = held.fence, backend.holder(name).token_id
        backend.force_release(name)
        if how == "renewal":
            eventually(lambda: len(backend.history(name)) == 2)
            assert held.lost
        else:
            find = {
                "ensure_held": held.ensure_held,
                "release": held.release,
                "extend": lambda: held.extend(1),
                "async": lambda: asyncio.run(held.aensure_held()),
            }
            with pytest.raises(LockLost):
                find[how]()
        with contextlib.suppress(LockLost, LockNotOwned):
            held.ensure_held()
        with contextlib.suppress(LockLost, LockNotOwned):
            held.release()
        lost, forced = backend.history(name)
        assert (lost.event, forced.event) == ("lost", "force_released")
        assert (lost.fence, lost.token_id) == (fence, token_id)
        assert (lost.host, lost.pid, lost.thread) == (forced.host, forced.pid, forced.thread)
        assert "expired or was broken" in lost.reason
        assert lost.by == ""
        assert lost.at >= forced.at

    @needs("records")
    def test_freed_lock_is_no_release_by_force(self, name: str) -> None:
        """What a worker frees for a dead holder is told by a signal and an event of its own."""
        backend = locks[self.using]
        told = []

        def receive(**kwargs: Any) -> None:
            told.append(kwargs)

        signals.lock_freed.connect(receive)
        signals.lock_force_released.connect(receive)
        try:
            self.lock(name).acquire()
            shown = backend.holder(name)
            assert backend.free(name, "0" * 16) is None
            assert backend.free(name, shown.token_id, reason="killed") == replace(
                shown, held_for=ANY, ttl=ANY, expires_at=ANY
            )
        finally:
            signals.lock_freed.disconnect(receive)
            signals.lock_force_released.disconnect(receive)
        assert backend.holder(name) is None
        ((_, news),) = [(item.pop("signal"), item) for item in told]
        assert {**news, "holder": news["holder"].token_id, "held_for": 0} == {
            "sender": type(backend),
            "using": self.using,
            "name": name,
            "holder": shown.token_id,
            "held_for": 0,
            "reason": "killed",
        }
        (entry,) = backend.history(name)
        assert (entry.event, entry.by, entry.reason) == ("freed", "", "killed")
        assert (entry.token_id, entry.fence, entry.pid) == (
            shown.token_id,
            shown.fence,
            shown.pid,
        )

    def test_audit_has_an_end(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """It keeps about as many releases by force as the alias says, whatever was lost since."""
        backend = locks[self.using]
        cap = 50
        monkeypatch.setattr(backend, "operators", replace(backend.operators, audit_entries=cap))
        for number in range(cap + 220):
            held = self.lock(name, timeout=5)
            held.acquire(blocking=False)
            backend.force_release(name, reason=str(number))
        kept = [item.reason for item in backend.history(name, limit=10 * cap)]
        assert cap <= len(kept) <= cap + 100
        assert kept[:2] == [str(cap + 219), str(cap + 218)]
        losses = [
            {"event": "lost", "name": name, "token_id": str(number)} for number in range(cap + 220)
        ]
        for begin in range(0, len(losses), cap):
            backend.run(ask(NoteLosses(losses[begin : begin + cap], cap)))
        events = [item.event for item in backend.history(name, limit=20 * cap)]
        assert events.count("force_released") == len(kept)
        assert cap <= events.count("lost") <= cap + 100

    def test_history_is_read_in_pages(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """However small they are, it is told whole, in order, and each event once."""
        backend = locks[self.using]
        for number in range(12):
            held = self.lock(f"{name}:{number % 3}", timeout=5)
            held.acquire(blocking=False)
            if number % 4:
                backend.force_release(held.name, reason=str(number))
            else:
                backend.free(held.name, backend.holder(held.name).token_id, reason=str(number))
        for page in (1, 2, 5, 100):
            monkeypatch.setattr("django_redis_lock.protocol.calls.PAGE", page)
            told = [one for one in backend.history() if one.name.startswith(name)]
            assert sorted(int(one.reason) for one in told) == list(range(12))
            assert [one.at for one in told] == sorted((one.at for one in told), reverse=True)
            assert [one.id for one in backend.history(limit=1)] == [told[0].id]
            assert [one.reason for one in backend.history(f"{name}:1")] == ["10", "7", "4", "1"]
            assert [one.reason for one in backend.history(f"{name}:0", 2)] == ["9", "6"]
            assert backend.history(f"{name}:none") == []

    @needs("queue")
    def test_force_release_hands_over(self, name: str) -> None:
        """A broken lock goes to the longest waiting."""
        held = self.lock(name)
        held.acquire()
        waiting = Background(self.lock(name).acquire)
        eventually(lambda: waiters(name, self.using) == 1)
        assert locks[self.using].force_release(name).waiters == 1
        assert waiting.outcome() is True

    @needs("passing")
    def test_take_over_from_a_named_holder(self, name: str) -> None:
        """A lock passes from one holder to another; nobody who waits comes in between."""
        first, second = self.lock(name, timeout=20), self.lock(name, timeout=30)
        first.acquire()
        waiting = Background(self.lock(name, timeout=20).acquire)
        eventually(lambda: waiters(name, self.using) == 1)
        assert second.take_over("0" * 16) is False
        first.ensure_held()
        assert second.take_over(first.token_id) is True
        assert second.fence > first.fence
        second.ensure_held()
        assert 29 < second.remaining <= 30
        assert waiters(name, self.using) == 1
        assert not first.owned()
        with pytest.raises(LockLost):
            first.release()
        second.release()
        assert waiting.outcome() is True

    @needs("passing")
    def test_take_over_of_a_free_lock(self, name: str) -> None:
        """Where the holder has gone there is nothing to take over, not even a free lock."""
        first, second = self.lock(name), self.lock(name)
        first.acquire()
        token_id = first.token_id
        first.release()
        assert second.take_over(token_id) is False
        assert second.acquire(blocking=False)
        assert asyncio.run(self.lock(name).atake_over(token_id)) is False
        assert asyncio.run(self.lock(name).atake_over(second.token_id)) is True

    @needs("passing")
    def test_detached_lock_is_nobodys_until_it_is_taken_over(self, name: str) -> None:
        """A detached lock stays held; whoever has its ticket takes it over, once."""
        first = self.lock(name, metadata={"state": "working"})
        first.acquire()
        ticket = first.ticket
        assert first.detach(15, metadata={"state": "parked"}) == ticket
        assert first.remaining == 0.0
        with pytest.raises(LockNotOwned):
            first.release()
        holder = locks[self.using].holder(name)
        assert (holder.token_id, holder.auto_renew) == (ticket, False)
        assert 14 < holder.ttl <= 15
        assert holder.metadata == {"state": "parked"}
        assert not self.lock(name, blocking=False).acquire()
        second, third = self.lock(name), self.lock(name)
        assert second.take_over(ticket) is True
        assert third.take_over(ticket) is False
        ticket = asyncio.run(second.adetach(0.05))
        assert third.acquire(blocking_timeout=10)

    @needs("passing")
    def test_detaching_what_was_lost(self, name: str) -> None:
        """Who has lost a lock is told so, and detaches nobody else's."""
        held = self.lock(name, timeout=20)
        held.acquire()
        locks[self.using].force_release(name)
        with self.lock(name) as successor:
            with pytest.raises(LockLost):
                held.detach(10)
            successor.ensure_held()
        with pytest.raises(LockNotOwned):
            held.detach(10)

    @needs("passing")
    def test_mistakes_in_detaching(self, name: str) -> None:
        """A lock can't be detached for ever, nor one that is entered twice."""
        with self.lock(name, reentrant=True) as held, self.lock(name, reentrant=True):
            with pytest.raises(ValueError, match="has to expire"):
                held.detach(None)  # type: ignore[arg-type]
            with pytest.raises(LockError, match="entered 2 times"):
                held.detach(5)

    @needs("records")
    def test_force_release_of_a_shown_holder_only(self, name: str) -> None:
        """With a token_id only that holder loses the lock; a successor is left alone."""
        with self.lock(name):
            shown = locks[self.using].holder(name)
        with self.lock(name) as successor:
            assert locks[self.using].force_release(name, token_id=shown.token_id) is None
            successor.ensure_held()
            mine = locks[self.using].holder(name).token_id
            assert mine != shown.token_id
            assert asyncio.run(locks[self.using].aforce_release(name, mine)).token_id == mine
            with pytest.raises(LockLost):
                successor.ensure_held()
            assert successor.acquire(blocking=False)

    def test_not_acquired_signal(self, name: str) -> None:
        """A wait that runs out sends its signal."""
        told = []

        def receive(**kwargs: Any) -> None:
            told.append(kwargs)

        signals.lock_not_acquired.connect(receive)
        try:
            with self.lock(name):
                self.lock(name).acquire(blocking_timeout=0.02)
        finally:
            signals.lock_not_acquired.disconnect(receive)
        assert told[0]["name"] == name
        assert told[0]["waited"] >= 0.02

    @needs("queue")
    def test_async_waiters_are_served_in_their_order(self, name: str) -> None:
        """Asyncio tasks stand in the same line."""

        async def main() -> list[int]:
            order: list[int] = []

            async def wait(number: int) -> None:
                async with self.lock(name):
                    order.append(number)

            async with self.lock(name):
                tasks = []
                for number in range(20):
                    tasks.append(asyncio.create_task(wait(number)))
                    while (await locks[self.using].aholder(name)).waiters <= number:
                        await asyncio.sleep(0)
            await asyncio.gather(*tasks)
            return order

        assert asyncio.run(main()) == list(range(20))

    @needs("queue")
    def test_cancelled_async_acquire_leaves_the_line(self, name: str) -> None:
        """Cancelling an async acquire gives the place up and strands nothing."""

        async def main() -> None:
            async with self.lock(name):
                task = asyncio.create_task(self.lock(name).aacquire())
                while (await locks[self.using].aholder(name)).waiters == 0:
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (await locks[self.using].aholder(name)).waiters == 0
            assert await self.lock(name).aacquire(blocking=False)

        asyncio.run(main())

    def test_threads_and_tasks_exclude_each_other(self, name: str) -> None:
        """A thread waits for an asyncio task, and a task for a thread."""
        ready, go = threading.Event(), threading.Event()

        async def hold() -> None:
            async with self.lock(name):
                ready.set()
                await asyncio.to_thread(go.wait)

        holding = Background(lambda: asyncio.run(hold()))
        assert ready.wait(5)
        waiting = Background(self.lock(name).acquire)
        eventually(lambda: waiters(name, self.using) == 1)
        go.set()
        holding.outcome()
        assert waiting.outcome() is True

    def test_errors_survive_pickling_and_copying(self, name: str) -> None:
        """An error can be a task's result: it keeps its message and name."""
        import pickle

        error = LockLost("gone", name=name)
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
            assert type(other) is LockLost
            assert str(other) == "gone"
            assert other.name == name

    def test_finished_tasks_do_not_pass_on_their_locks(self, name: str) -> None:
        """A lock that a finished task or thread left held is not entered by a later one."""

        async def main() -> None:
            left: list[Lock] = []

            async def leave_held() -> None:
                left.append(self.lock(name, reentrant=True))
                await left[0].aacquire()

            await asyncio.create_task(leave_held())
            for _ in range(50):
                other = self.lock(name, reentrant=True)
                assert not await asyncio.create_task(other.aacquire(blocking=False))
            await left[0].arelease()

        asyncio.run(main())
        held = self.lock(name, reentrant=True)
        Background(held.acquire).outcome()
        for _ in range(50):
            other = self.lock(name, reentrant=True, blocking=False)
            assert Background(other.acquire).outcome() is False
        held.release()

    def test_loss_found_under_asyncio_is_told_to_async_receivers(self, name: str) -> None:
        """``lock_lost`` reaches an async receiver, and the caller gets LockLost."""
        told: list[str] = []

        async def receive(**kwargs: Any) -> None:
            told.append(kwargs["name"])

        async def main() -> None:
            held = self.lock(name, timeout=20)
            await held.aacquire()
            await locks[self.using].aforce_release(name)
            with pytest.raises(LockLost):
                await held.aensure_held()
            with pytest.raises(LockLost):
                await held.arelease()

        signals.lock_lost.connect(receive)
        try:
            asyncio.run(main())
        finally:
            signals.lock_lost.disconnect(receive)
        assert told == [name]
