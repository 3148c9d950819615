"""Locks against a model: random operations of many callers, each compared with what it predicts."""

from __future__ import annotations

import asyncio
import math
import threading
import uuid
from collections import deque
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, ClassVar

from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from django_redis_lock import Lock, lock, locks
from django_redis_lock.exceptions import LockError, LockLost, LockNotAcquired, LockNotOwned
from tests.tools import PATIENCE, Background, eventually

LEASE = 60.0
"""Seconds; longer than any run, so that a lease ends only when a rule says so."""
QUEUE = 3
"""The most waiters of one lock."""
NAMES = some.sampled_from(["one", "other"])
SOME = some.integers(0, 1000)
"""Chooses one of what there is at that moment."""


@dataclass(eq=False)
class Hold:
    """One acquisition of a lock: as long as it lasts, and in the minds of its callers after."""

    caller: int
    token_id: str
    fence: int
    deadline: float = 0.0  # monotonic
    entries: int = 0
    on_server: bool = True
    known_lost: bool = False


@dataclass(eq=False)
class Caller:
    """A handle, and what it holds or believes to hold."""

    handle: Lock
    name: str
    number: int
    asynchronous: bool = False
    hold: Hold | None = None

    @property
    def reentrant(self) -> bool:
        return self.handle.reentrant

    def enter(self, hold: Hold) -> None:
        self.hold = hold
        hold.entries += 1

    def leave(self) -> None:
        assert self.hold is not None
        self.hold.entries -= 1
        self.hold = None

    def error_of_asking(self) -> type[LockError] | None:
        """Return what is raised where the server has to have the lock."""
        if self.hold is None:
            return LockNotOwned
        return None if self.hold.on_server else LockLost

    def error_of_setting(self) -> type[LockError] | None:
        """Return what is raised where the lease has to have an end as well."""
        endless = self.hold is not None and self.handle.timeout is None
        return LockError if endless else self.error_of_asking()


@dataclass(eq=False)
class Waiting:
    """A caller in a queue, in a thread or a task."""

    caller: Caller
    started: Background | Future[bool]

    def outcome(self) -> bool:
        """Wait until it has the lock."""
        if isinstance(self.started, Future):
            return self.started.result(PATIENCE)
        acquired: bool = self.started.outcome()
        return acquired


class LockMachine(RuleBasedStateMachine):
    """Callers of two locks, in threads and asyncio tasks, on one backend."""

    using: ClassVar[str]

    def expire(self, name: str) -> None:
        """End the lease of a lock, as time would."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.backend = locks[self.using]
        self.run_id = uuid.uuid4().hex
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.number = 0
        self.holds: dict[str, Hold | None] = {"one": None, "other": None}
        self.queues: dict[str, deque[Waiting]] = {"one": deque(), "other": deque()}
        self.fences: dict[str, int] = {"one": 0, "other": 0}
        self.callers: list[Caller] = []
        self.token_ids: list[str] = ["0" * 16]

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        for name in self.holds:
            while self.queues[name]:
                self.backend.force_release(self.full(name))
                self.queues[name].popleft().outcome()
            self.backend.force_release(self.full(name))
        self.do_in_loop(asyncio.sleep(0))  # callbacks run that the last rules have left
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    # What the rules are made of.

    def full(self, name: str) -> str:
        return f"machine-{self.run_id}-{name}"

    def do_in_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    def do(self, caller: Caller, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Carry out an operation of a handle, blocking or under asyncio."""
        if caller.asynchronous:
            return self.do_in_loop(getattr(caller.handle, f"a{operation}")(*args, **kwargs))
        return getattr(caller.handle, operation)(*args, **kwargs)

    def caller(self, name: str, **options: Any) -> Caller:
        """Return a new caller with a handle of its own."""
        self.number += 1
        asynchronous = options.pop("asynchronous", False)
        handle = lock(
            self.full(name), using=self.using, metadata={"number": str(self.number)}, **options
        )
        caller = Caller(handle, name, self.number, asynchronous=asynchronous)
        self.callers.append(caller)
        return caller

    def acquired(self, caller: Caller) -> None:
        """Note that the server gave a caller the lock."""
        handle = caller.handle
        assert handle.fence > self.fences[caller.name]
        self.fences[caller.name] = handle.fence
        hold = Hold(caller.number, handle.token_id, handle.fence)
        hold.deadline = math.inf if handle.timeout is None else monotonic() + LEASE
        caller.enter(hold)
        self.holds[caller.name] = hold
        self.token_ids.append(handle.token_id)

    def ended(self, name: str) -> None:
        """Note that a lock was released or broken: the first waiter has it now."""
        self.holds[name] = None
        if self.queues[name]:
            first = self.queues[name].popleft()
            assert first.outcome() is True
            self.acquired(first.caller)

    @contextmanager
    def raises(self, error: type[LockError] | None, name: str) -> Iterator[None]:
        """Check that the block raises exactly this error, with the name of the lock."""
        try:
            yield
        except LockError as raised:
            assert type(raised) is error, f"{raised!r} and not {error}"  # noqa: PT017
            assert raised.name == self.full(name)  # noqa: PT017
        else:
            assert error is None, f"no {error}"

    def lose(self, name: str) -> None:
        hold = self.holds[name]
        assert hold is not None
        hold.on_server = False

    def any_held(self) -> bool:
        return any(self.holds.values())

    def any_caller(self) -> bool:
        return bool(self.callers)

    def pick(self, number: int) -> Caller:
        """Return a caller: often one of the last, which more probably hold something."""
        recent = self.callers[-6:]
        return recent[number % len(recent)]

    # Acquiring.

    @rule(name=NAMES, asynchronous=some.booleans(), endless=some.booleans(), wait=some.booleans())
    def try_to_acquire(self, name: str, asynchronous: bool, endless: bool, wait: bool) -> None:
        """One who does not wait, or not for long, gets a lock only if it is free."""
        timeout = None if endless else LEASE
        caller = self.caller(name, asynchronous=asynchronous, timeout=timeout)
        options = {"blocking_timeout": 0.01} if wait else {"blocking": False}
        free = self.holds[name] is None
        assert self.do(caller, "acquire", **options) is free
        if free:
            self.acquired(caller)

    @rule(name=NAMES)
    def enter_a_block(self, name: str) -> None:
        """A with statement takes a free lock and gives it back, or raises."""
        free = self.holds[name] is None
        caller = self.caller(name, timeout=LEASE, blocking=False)
        with self.raises(None if free else LockNotAcquired, name), caller.handle:
            self.acquired(caller)
        if free:
            caller.hold = None
            self.ended(name)

    @rule(number=SOME)
    @precondition(any_caller)
    def acquire_again(self, number: int) -> None:
        """A handle that holds its lock refuses to acquire it; one that has lost it may try."""
        caller = self.pick(number)
        if caller.reentrant:
            return
        held = caller.hold is not None and not caller.hold.known_lost
        with self.raises(LockError if held else None, caller.name):
            free = self.holds[caller.name] is None
            assert self.do(caller, "acquire", blocking=False) is free
            caller.hold = None
            if free:
                self.acquired(caller)

    @rule(name=NAMES)
    def enter_reentrant(self, name: str) -> None:
        """The thread that holds a reentrant lock enters it again, with any handle."""
        caller = self.caller(name, timeout=LEASE, reentrant=True)
        mine = [
            each.hold
            for each in self.callers
            if each.reentrant and each.name == name and each.hold and not each.hold.known_lost
        ]
        free = self.holds[name] is None
        acquired = caller.handle.acquire(blocking=False)
        if mine:
            assert acquired is True
            caller.enter(mine[-1])
        else:
            assert acquired is free
            if free:
                self.acquired(caller)

    @rule(name=NAMES, asynchronous=some.booleans(), endless=some.booleans())
    def join_the_queue(self, name: str, asynchronous: bool, endless: bool) -> None:
        """One who waits for a held lock joins its queue at the end."""
        queue = self.queues[name]
        if self.holds[name] is None or len(queue) == QUEUE:
            return
        timeout = None if endless else LEASE
        caller = self.caller(name, asynchronous=asynchronous, timeout=timeout)
        self.callers.remove(caller)
        started: Background | Future[bool]
        if asynchronous:
            started = asyncio.run_coroutine_threadsafe(caller.handle.aacquire(), self.loop)
        else:
            started = Background(caller.handle.acquire)
        queue.append(Waiting(caller, started))
        eventually(lambda: self.waiters(name) == len(queue))

    @rule(name=NAMES, number=SOME)
    def give_up_waiting(self, name: str, number: int) -> None:
        """A task that is cancelled leaves the queue, wherever it stood."""
        queue = self.queues[name]
        tasks = [each for each in queue if isinstance(each.started, Future)]
        if not tasks:
            return
        leaving = tasks[number % len(tasks)]
        leaving.started.cancel()
        queue.remove(leaving)
        eventually(lambda: self.waiters(name) == len(queue))

    @rule(name=NAMES, recent=some.integers(1, 4), asynchronous=some.booleans())
    def take_over(self, name: str, recent: int, asynchronous: bool) -> None:
        """The lock is taken from the holder that is named, ahead of the queue."""
        token_id = self.token_ids[-min(recent, len(self.token_ids))]
        caller = self.caller(name, asynchronous=asynchronous, timeout=LEASE)
        hold = self.holds[name]
        right = hold is not None and hold.token_id == token_id
        assert self.do(caller, "take_over", token_id) is right
        if right:
            self.lose(name)
            self.acquired(caller)

    # Keeping.

    @rule(number=SOME, replace=some.booleans(), seconds=some.sampled_from([5.0, 100.0]))
    @precondition(any_caller)
    def extend(self, number: int, replace: bool, seconds: float) -> None:
        """A lease is extended by what was asked for."""
        caller = self.pick(number)
        hold = caller.hold
        error = caller.error_of_setting()
        with self.raises(error, caller.name):
            assert self.do(caller, "extend", seconds, replace_ttl=replace) is True
            assert hold is not None
            hold.deadline = seconds + (monotonic() if replace else hold.deadline)
        self.learn(caller, error)

    @rule(number=SOME)
    @precondition(any_caller)
    def ensure_held(self, number: int) -> None:
        """The server says whether a lock is held, and the handle keeps in mind if it is not."""
        caller = self.pick(number)
        error = caller.error_of_asking()
        with self.raises(error, caller.name):
            self.do(caller, "ensure_held")
        self.learn(caller, error)

    @rule(number=SOME)
    @precondition(any_caller)
    def ask(self, number: int) -> None:
        """``owned()`` tells of this handle, ``locked()`` of any."""
        caller = self.pick(number)
        error = caller.error_of_asking()
        assert self.do(caller, "owned") is (error is None)
        self.learn(caller, error)
        assert self.do(caller, "locked") is (self.holds[caller.name] is not None)

    def learn(self, caller: Caller, error: type[LockError] | None) -> None:
        if error is LockLost:
            assert caller.hold is not None
            caller.hold.known_lost = True

    # Ending.

    @rule(number=SOME)
    @precondition(any_caller)
    def release(self, number: int) -> None:
        """A release hands the lock off, if the caller still had it and entered it once."""
        caller = self.pick(number)
        hold = caller.hold
        last = hold is not None and hold.entries == 1
        error = caller.error_of_asking() if last or hold is None else None
        with self.raises(error, caller.name):
            self.do(caller, "release")
        if hold is not None:
            caller.leave()
            if last and hold.on_server:
                self.ended(caller.name)

    @rule(number=SOME)
    @precondition(any_caller)
    def detach_and_take_over(self, number: int) -> None:
        """A detached lock stays locked, until the holder of its ticket takes it over."""
        caller = self.pick(number)
        hold = caller.hold
        entered = hold is not None and hold.entries > 1
        error = LockError if entered else caller.error_of_asking()
        ticket = caller.handle.ticket if error is None else ""
        with self.raises(error, caller.name):
            assert self.do(caller, "detach", LEASE) == ticket
        if hold is not None and not entered:
            caller.leave()
        if error is None:
            self.lose(caller.name)
            new = self.caller(caller.name, timeout=LEASE)
            assert new.handle.acquire(blocking=False) is False
            assert new.handle.take_over(ticket) is True
            self.acquired(new)

    @rule(name=NAMES, which=some.sampled_from(["any", "right", "wrong"]))
    def force_release(self, name: str, which: str) -> None:
        """A forced release takes the lock from its holder, or only from the one that is named."""
        hold = self.holds[name]
        token_id = None if which == "any" else "0" * 16
        if which == "right" and hold is not None:
            token_id = hold.token_id
        former = self.backend.force_release(self.full(name), token_id)
        if hold is None or which == "wrong":
            assert former is None
        else:
            assert former is not None
            assert (former.token_id, former.fence) == (hold.token_id, hold.fence)
            self.lose(name)
            self.ended(name)

    @rule(name=NAMES)
    @precondition(any_held)
    def let_expire(self, name: str) -> None:
        """An expired lock goes to its first waiter, not to a newcomer who asks first."""
        if self.holds[name] is None:
            return
        self.lose(name)
        self.expire(name)
        if self.queues[name]:
            newcomer = lock(self.full(name), using=self.using)
            assert newcomer.acquire(blocking=False) is False
        self.ended(name)

    # What always holds.

    def waiters(self, name: str) -> int:
        holder = self.backend.holder(self.full(name))
        return holder.waiters or 0 if holder is not None else 0

    @invariant()
    def server_agrees(self) -> None:
        """The server names the holder and the waiters that the model has, in order."""
        for name, hold in self.holds.items():
            holder = self.backend.holder(self.full(name))
            found = holder and (holder.token_id, holder.fence, holder.waiters)
            expected = hold and (hold.token_id, hold.fence, len(self.queues[name]))
            assert found == expected
            if holder is not None and hold is not None:
                assert holder.metadata.get("number") == str(hold.caller)
                assert (holder.ttl is None) is math.isinf(hold.deadline)
            queue = [int(each.metadata["number"]) for each in self.backend.waiting(self.full(name))]
            assert queue == [each.caller.number for each in self.queues[name]]

    @invariant()
    def handles_agree(self) -> None:
        """A handle knows its loss once it was told, and its lease without asking."""
        for caller in self.callers:
            handle, hold = caller.handle, caller.hold
            assert handle.lost is (hold is not None and hold.known_lost)
            if hold is None or hold.known_lost:
                assert handle.remaining == 0.0
            elif math.isinf(hold.deadline):
                assert handle.remaining == math.inf
            else:
                assert abs(hold.deadline - monotonic() - handle.remaining) < 1.0
            if hold is not None:
                assert (handle.fence, handle.token_id) == (hold.fence, hold.token_id)
