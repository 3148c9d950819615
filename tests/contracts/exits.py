"""What others find of a hold that is left in a transaction, in a table of kinds, exits, contexts.

The fixture ``databases`` is that of ``tests/contracts/transactions.py``.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import time
import unittest
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from celery import Celery
from django.core.handlers.base import BaseHandler
from django.db import connections
from django.db.transaction import atomic, on_commit
from django.http import HttpResponse
from django.test import RequestFactory, TestCase, override_settings

from django_redis_lock import lock, lock_many, locks, semaphore, signals
from django_redis_lock.celery import single_instance_task
from django_redis_lock.exceptions import LockLost, LockNotOwned
from django_redis_lock.views import locked
from tests.contracts.transactions import sell, units
from tests.tools import PATIENCE, Background, eventually, told

PLAIN, BLOCKS = ("lock", "reader", "permit"), ("member", "view", "task", "rest")
"""The kinds of holds: handles, and what gives a handle to a block and leaves it at the end."""
EXITS = (
    *("stay", "release", "detach", "downgrade", "downgrade release", "release acquire"),
    *(f"release acquire {step}" for step in ("release", "detach", "downgrade")),
)
CONTEXTS = {
    "autocommit": "held after",
    "commit": "first( held before ) after",
    "savepoint": "first( first( held ) before ) after",
    "fork": "first( held fork before ) after",
    "forced release": "lost( held before force_release ) free",
    "at once": "first( held after )",
}
"""What of ``Hold`` is called, and inside of what; ``held`` stands for the hold and its exit."""
CONTEXTS_OF_LOCKS = {
    **CONTEXTS,
    "expiry": "lost( held expire ) free",
    "rollback": "undone( held before ) after",
    "savepoint undone": "first( undone( held ) before ) after",
    "two databases": "first( second( held ) before ) after second( first( held ) before ) after",
    "request": "request( held before ) after",
    "hook": "first( hook held before ) free",
    "outside": "acquire first( leave before ) after",
    "around": "acquire first( ) leave after",
}
LOSSES = ("forced release", "expiry")


def is_cell(kind: str, way_out: str, context: str) -> bool:
    """Whether there is such a hold; where it is lost, whether an exit waits that notices it."""
    if kind == "rest" or context == "at once":
        return way_out == "stay" if context != "at once" else kind in (*PLAIN, "member")
    stays = way_out == "stay" or (kind in ("reader", "permit") and way_out == "downgrade")
    return context not in LOSSES or not (stays and kind in PLAIN)


CELLS = [
    (kind, way_out, context)
    for kind, way_out in itertools.product((*PLAIN, *BLOCKS), EXITS)
    for context in (CONTEXTS_OF_LOCKS if kind == "lock" else CONTEXTS)
    if is_cell(kind, way_out, context)
]


def gets(handle: Any, *ticket: str) -> bool:
    """Whether another thread gets a lock, by a ticket or without; then it releases it."""

    def attempt() -> bool:
        got = handle.take_over(*ticket) if ticket else handle.acquire(blocking=False)
        if got:
            handle.release()
        return bool(got)

    return bool(Background(attempt).outcome())


def state(name: str, using: str = "default") -> str:
    """Return how others find a lock: ``free``, ``shared`` or ``taken``."""
    if gets(lock(name, using=using)):
        return "free"
    return "shared" if gets(lock(name, using=using, shared=True)) else "taken"


def in_child(check: Callable[[], object]) -> bool:
    """Whether a check passes in a forked child."""
    child = multiprocessing.get_context("fork").Process(target=check, daemon=True)
    child.start()
    child.join(PATIENCE)
    return child.exitcode == 0


Run = Callable[[], Any]


class Hold:
    """A hold, the exit from it, and what others find before that takes effect and after it."""

    def __init__(self, name: str, kind: str, way_out: str, **options: Any) -> None:
        self.name, self.kind, self.steps = name, kind, way_out.split()
        self.names = [name, f"{name}-2"] if kind == "member" else [name]
        self.held_as = "shared" if kind in ("reader", "permit") else "taken"
        self.options, self.ticket = {"timeout": 20, **options}, ""

    def carry_out(self, context: str) -> None:
        held = "acquire leave" if self.kind in PLAIN else f"{self.kind}( leave )"
        words = iter(CONTEXTS_OF_LOCKS[context].replace("held", held).split())

        def run() -> None:
            for word in itertools.takewhile(")".__ne__, words):
                call = getattr(self, word.rstrip("("))
                call(run) if "(" in word else call()

        run()

    def handle(self) -> Any:
        if self.kind == "permit":
            return semaphore(self.name, 1, blocking=False, **self.options)
        return lock(self.name, blocking=False, shared=self.kind == "reader", **self.options)

    def enter(self, handle: Any) -> None:
        self.lock, self.fence = handle, handle.fence

    def leave(self) -> None:
        for step in self.steps:
            getattr(self, step, getattr(self.lock, step, None))()

    def stay(self) -> None: ...

    def acquire(self) -> None:
        self.enter(self.handle().__enter__())

    def detach(self) -> None:
        self.ticket = self.lock.detach(20)

    def first(self, run: Run) -> None:
        atomic("first")(run)()

    def second(self, run: Run) -> None:
        atomic("second")(run)()

    def request(self, run: Run) -> None:
        BaseHandler().make_view_atomic(run)()

    def undone(self, run: Run) -> None:
        with suppress(KeyError), atomic("first"):
            run()
            raise KeyError

    def lost(self, run: Run) -> None:
        left = False
        with pytest.raises(LockLost), atomic("first"):
            sell()
            run()
            left = True
        assert (left, units()) == (True, 10)

    def member(self, run: Run) -> None:
        with lock_many(self.names, blocking=False, **self.options) as group:
            self.enter(group[self.name])
            run()

    def view(self, run: Run) -> None:
        @locked(self.name, **self.options)
        def answer(request: Any) -> HttpResponse:
            self.enter(request.lock)
            run()
            self.before()  # as it is in a transaction
            return HttpResponse()

        assert answer(RequestFactory().get("/")).status_code == 200

    def task(self, run: Run, **options: Any) -> None:
        @Celery(self.name, set_as_current=False).task(bind=True, shared=False)
        @single_instance_task(key=self.name, **self.options, **options)
        def work(task: Any) -> None:
            self.enter(task.lock)
            run()

        work()

    def rest(self, run: Run) -> None:
        self.task(run, at_least_for=20)

    def hook(self) -> None:
        on_commit(self.after, using="first")

    def force_release(self) -> None:
        locks["default"].force_release(self.name)

    def expire(self) -> None:
        eventually(lambda: state(self.name) == "free")

    def fork(self) -> None:
        assert in_child(self.meddle)

    def meddle(self) -> None:
        for leave in (self.lock.release, self.lock.downgrade, self.detach):
            with pytest.raises(LockNotOwned):
                leave()
        assert not lock(self.name).acquire(blocking=False)
        theirs, connections["first"].connection = connections["first"].connection, None
        connections["first"].close()  # which ends the transaction in the child
        self.before()
        assert theirs is not None

    def before(self) -> None:
        assert {state(name) for name in self.names} == {self.held_as}
        assert not (self.ticket and gets(self.handle(), self.ticket))

    def after(self) -> None:
        last, block_ends = self.steps[-1], "acquire" not in self.steps and self.kind in BLOCKS
        downgraded = last == "downgrade" and self.held_as == "taken"
        if self.kind == "rest":
            assert locks["default"].holder(self.name).marks["state"] == "resting"
            self.force_release()
        elif last == "detach":
            holder = locks["default"].holder(self.name)
            assert (holder.token_id, state(self.name)) == (self.ticket, self.held_as)
            assert 0 < holder.ttl <= 20
            heir = self.handle()
            assert heir.take_over(self.ticket)
            heir.release()
        elif last != "release" and not block_ends:
            assert state(self.name) == ("shared" if downgraded else self.held_as)
            assert self.lock.fence > self.fence or not downgraded
            self.lock.ensure_held()
            self.lock.release()
        assert not self.lock.owned()
        self.free()

    def free(self) -> None:
        assert {state(name) for name in self.names} == {"free"}


LONG = {
    "fixed": partial(lock, timeout=20),
    "renewed": partial(lock, timeout=1, auto_renew=True),
    "endless": partial(lock, timeout=None),
}
SHORT: dict[str, Callable[..., Any]] = {
    "brief": partial(lock, timeout=5),
    "at once": partial(lock, timeout=5, after_commit=False),
    "shared": partial(lock, timeout=5, shared=True),
    "group": lambda name, **how: lock_many([name], 5, after_commit=False, **how),
    "view": partial(locked, max_hold=5),
}
AGAIN: dict[str, Callable[[Any], Any]] = {
    "new": lambda held: lock(held.name, blocking=False),
    "same": lambda held: held,
    "reentrant": lambda held: lock(held.name, blocking=False, reentrant=True),
    "member": lambda held: lock_many([held.name, f"{held.name}-2"], blocking=False),
    "alias": lambda held: lock(held.name, blocking=False, using="twin"),
}


@pytest.mark.usefixtures("server", "databases")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
class ExitContract:
    """When a hold that is left inside of a transaction ends or changes for others."""

    @pytest.mark.parametrize(("kind", "way_out", "context"), CELLS)
    def test_exit_takes_effect_at_the_end(
        self, name: str, kind: str, way_out: str, context: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With ``after_commit=False`` at once, with a warning; a loss before it rolls back."""
        connections.settings["first"]["ATOMIC_REQUESTS"] = kind == "view" or context == "request"
        options = {"at once": {"after_commit": False}, "expiry": {"timeout": 0.3}}.get(context, {})
        Hold(name, kind, way_out, **options).carry_out(context)
        levels = {record.levelno for record in caplog.records if name in record.getMessage()}
        assert logging.WARNING in levels or context != "at once"
        assert logging.ERROR not in levels or context in LOSSES

    def test_test_case(self, name: str) -> None:
        """In a ``TestCase`` its own transaction does not count, and those inside of it do."""

        class Case(TestCase):
            databases = {"first"}  # noqa: RUF012 - as Django has it

            def test(self) -> None:
                for context in ("autocommit", "commit", "savepoint", "rollback", "forced release"):
                    Hold(f"{name} {context}", "lock", "release").carry_out(context)
                with atomic("first", savepoint=False):
                    Hold(name, "lock", "release").carry_out("autocommit")

        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
        assert (result.testsRun, result.errors, result.failures) == (1, [], [])

    @pytest.mark.parametrize(
        ("first", "again"), [*itertools.product(LONG, SHORT), *itertools.product(["brief"], LONG)]
    )
    def test_lock_taken_again_gets_no_weaker(self, name: str, first: str, again: str) -> None:
        """It is held as long as either of both asks for, alone and until the end."""
        ways = {**LONG, **SHORT}
        with atomic("first"):
            with ways[first](name):
                pass
            answer = ways[again](name, blocking=False)(lambda _: HttpResponse(state(name)))
            assert answer(RequestFactory().get("/")).content == b"taken"
            backend = locks["default"]
            holder = backend.holder(name)
            if "renewed" in (first, again):
                eventually(lambda: backend.holder(name).expires_at > holder.expires_at)
            else:
                assert holder.ttl is None if "endless" in (first, again) else holder.ttl > 10
            assert state(name) == "taken"
        assert state(name) == "free"

    def test_lock_taken_again_keeps_the_longer_lease(self, name: str) -> None:
        with atomic("first"):
            with lock(name, timeout=20):
                pass
            with lock(name, timeout=5, auto_renew=True) as again:
                again.reacquire()
                assert again.remaining > 10

    @pytest.mark.parametrize("stays", [False, True])
    @pytest.mark.parametrize("how", AGAIN)
    def test_lock_taken_again_is_one_hold(self, name: str, how: str, stays: bool) -> None:
        """It needs no wait, and is signalled once, with the time since it was first acquired."""
        twin = override_settings(LOCKS={**locks.settings, "twin": locks.settings["default"]})
        with twin, told(signals.lock_acquired, signals.lock_released) as calls:
            held = lock(name, blocking=False)
            with atomic("first"):
                with held:
                    pass
                assert {state(name) for _ in range(20)} == {"taken"}
                later, again = time.monotonic(), AGAIN[how](held)
                assert again.acquire()
                if not stays:
                    again.release()
                assert state(name) == "taken"
                assert [call["signal"] for call in calls if call["name"] == name] == [
                    signals.lock_acquired
                ]
            if stays:
                assert state(name) == "taken"
                again.release()
            ended = time.monotonic()
        (released,) = [call for call in calls if call["name"] == name][1:]
        assert ended - released["held_for"] < later
        assert state(name) == "free"

    def test_reader_takes_its_own_hold_again(self, name: str) -> None:
        with atomic("first"):
            one, other = lock(name, shared=True), lock(name, shared=True)
            with one, other:
                pass
            with one:
                assert state(name) == "shared"
        assert state(name) == "free"

    def test_who_held_it_first_says_when_it_is_released(self, name: str) -> None:
        """And not who leaves it last."""
        with atomic("first"):
            outer = lock(name, reentrant=True).__enter__()
            with lock(name, reentrant=True, after_commit=False):
                outer.release()
            assert state(name) == "taken"
        assert state(name) == "free"

    @pytest.mark.parametrize("rest", [0.05, 20])
    @pytest.mark.parametrize("how", ["__call__", "apply"])
    def test_rest_counts_from_the_start_of_the_run(self, name: str, how: str, rest: float) -> None:
        """After the commit the lock is held for what is left; before it in any case."""
        began: list[float] = []

        @Celery(name, set_as_current=False).task(shared=False)
        @single_instance_task(key=name, at_least_for=rest)
        def work() -> None:
            began.append(time.monotonic())
            time.sleep(0.05)

        with atomic("first"):
            getattr(work, how)()
            while (passed := time.monotonic() - began[0]) < 0.1:
                assert state(name) == "taken"
        holder = locks["default"].holder(name)
        assert (holder is None) == (rest < passed)
        assert holder is None or 0 < holder.ttl <= rest - passed + 0.01
