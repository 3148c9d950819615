"""The waiters of one process: what they ask, where they sleep, and how a grant finds its waiter."""

from __future__ import annotations

import itertools
import math
import random
import re
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import GiveBack, Release, Steps, ask
from django_redis_lock.protocol.lease import Lease, Request
from django_redis_lock.support import process, threads

JITTER = 0.2  # the part of a polling interval by which each differs, so that processes spread out
CLAIM = 1.2  # seconds in which a lock that was handed off has to be claimed; see ``common.lua``
CLOCK_VALID = 60.0  # seconds for which a reading of the server's clock is carried forward locally
LISTEN_EVERY = 1.0  # seconds after which the main thread wakes, as not each signal ends its sleep
TURN = 1.0  # seconds after which a waiter that polls looks whether the turn of another was lost
OUTAGE_LIMIT = 10.0  # seconds that waiters tolerate an unavailable server before they raise
FORGET_FOR = 10.0  # seconds for which to try to have a waiter removed
A_DAY = 86_400_000  # by which (ms) a fence is beyond its message's clock when the server is asked
_GRANT = re.compile(rb"grant ([!-~]+) (\d{1,19}) (\d{1,16}) (\d{1,16}) (.+)", re.DOTALL)
"""What a script sends. Other programs may publish anything, which is ignored."""
_DUE = re.compile(rb"due (\d{1,16})")
_numbers = itertools.count(1)  # of the registries of this process


@dataclass(slots=True, eq=False)
class Grant:
    """The message that a waiter was given its lock; ``lease_ms`` counts from ``now_ms``."""

    fence: int
    lease_ms: int
    now_ms: int
    received_at: float  # monotonic


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class LocalWaiter:
    """One acquisition that waits in this process."""

    request: Request
    grant: Grant | None = None
    must_ask: bool = False
    error: str | None = None  # why it can't wait any longer
    turn_at: float = math.inf  # when (monotonic) it asks next, where waiters take turns at that
    sleeper: Callable[[], object] | None = None  # wakes it while it sleeps

    @property
    def notified(self) -> bool:
        """Whether it has something to do."""
        return self.must_ask or self.grant is not None or self.error is not None

    def wakes_at(self, until: float) -> float:
        """Return when (monotonic) its sleep ends, ``until`` at the latest."""
        return -math.inf if self.notified else min(until, self.turn_at)

    def wake(self) -> bool:
        """End its sleep, if it sleeps. Returns False if its event loop has been closed."""
        sleeper = self.sleeper
        return sleeper is None or sleeper() is not False


class WaiterRegistry:
    """The waiters of one process and backend, which sleep until they are notified.

    A ``Heart`` reports that they wait, and reads the messages for them, every ``interval``
    seconds; a ``ReceivingRegistry`` receives messages at once.
    """

    must_claim = False  # whether a grant counts, and is to be claimed; else its waiter only asks
    heart: Any = None  # the ``Heart`` that sends heartbeats for it, if its server hands off

    def __init__(self, interval: float | None = None, give_back: GiveBack | None = None) -> None:
        self.interval = interval
        self._give_back: GiveBack = give_back or (lambda call, seconds: None)
        self._reset()
        process.forget_after_fork(self)

    def _reset(self) -> None:
        self.mutex = threading.RLock()  # the collector may close a generator that waits here
        # A waiter goes with its caller, even if an interruption kept it from leaving.
        self._waiters: dict[str, weakref.ref[LocalWaiter]] = {}
        self._number = next(_numbers)
        # Local (s) and server (ms) at the two last readings: a clock may be set back in between.
        self._readings = ((-CLOCK_VALID, -math.inf), (-CLOCK_VALID, -math.inf))

    def after_fork(self) -> None:
        """Forget the waiters of the parent process, and wake those that this child inherited."""
        inherited = self.present()
        process.retain_inherited(inherited)
        self._leave_to_parent()
        self._reset()
        if self.heart is not None:
            self.heart.reset()
        for waiter in inherited:
            waiter.must_ask = True
            waiter.wake()

    def _leave_to_parent(self) -> None:
        """Give up what only one process may read."""

    @property
    def id(self) -> str:
        return f"{process.known_process().id}-{self._number}"

    def waits_in(self, name: str) -> str:
        """Return what the server calls this process; see ``common.lua``."""
        return f"i{self.id}" + (f".{round(self.interval * 1000)}" if self.interval else "")

    def receives(self, name: str) -> bool:
        """Whether grants of a lock would be received now."""
        return True

    def note_server_ms(self, now_ms: int, at: float) -> None:
        """Note the server's clock in the answer to a call that was sent ``at`` (monotonic)."""
        self._readings = self._readings[1], (at, now_ms)

    def close(self) -> None:
        """Close what receives grants."""

    def join(self, waiter: LocalWaiter) -> None:
        token = waiter.request.token
        gone = partial(self._waiters.pop, token)  # no Python code, as in ``Register``
        self._waiters[token] = weakref.ref(waiter, gone)

    def leave(self, waiter: LocalWaiter) -> None:
        """Expect no grant for a waiter any more. It need not have joined."""
        self._waiters.pop(waiter.request.token, None)

    def waits(self, waiter: LocalWaiter, ttl_ms: int, *, foreign: bool = False) -> None:
        """Note that it is in the queue of a lock with ``ttl_ms`` left (-1: no end).

        A ``foreign`` lock is another program's, which releases it without a hand-off.
        """
        if self.heart is not None:
            self.heart.expect(ttl_ms, foreign=foreign)

    def present(self) -> list[LocalWaiter]:
        """Return the waiters, in order of their arrival."""
        found = [reference() for reference in [*self._waiters.values()]]
        return [waiter for waiter in found if waiter is not None]

    def expects(self, waiter: LocalWaiter) -> bool:
        return waiter.request.token in self._waiters

    def notify(self, token: str, grant: Grant | None = None) -> bool:
        """Give a waiter its grant, or have it ask; return whether it waits here."""
        reference = self._waiters.get(token)
        waiter = None if reference is None else reference()
        if waiter is None:
            return False
        if grant is None:
            waiter.must_ask = True
        else:
            waiter.grant = grant
        return self._wake(waiter)

    def fail(self, waiter: LocalWaiter, error: Exception) -> None:
        """Have a waiter raise what keeps this process from waiting."""
        waiter.error = str(error)
        self._wake(waiter)

    def freed(self, name: str) -> None:
        """Note that this process has released a lock, which polling waiters do not notice."""
        if self.interval is not None and self.heart is not None:
            self.heart.beat_by(monotonic())

    def take_in(self, message: bytes) -> str | None:
        """Notify whom a message concerns, or give back a former's grant; return a grant's token."""
        if found := _GRANT.fullmatch(message):
            token, lease_ms, now_ms = found[1].decode(), int(found[3]), int(found[4])
            fence = int(found[2])
            counts = self.must_claim and fence < (now_ms + A_DAY) * 1000
            grant = Grant(fence, lease_ms, now_ms, monotonic()) if counts else None
            if not self.notify(token, grant):
                name = found[5].decode(errors="replace")
                call = Release(name, token, patient=False, unclaimed=True)
                self._give_back(call, lease_ms / 1000)
            return token
        if self.heart is not None and message == b"lost":
            self.heart.ask_first()
        elif self.heart is not None and (due := _DUE.fullmatch(message)):
            self.heart.beat_by(monotonic() + (int(due[1]) + 2) / 1000)
        return None

    def wait_in_queue(self, request: Request, until: float) -> Steps[Lease | None]:
        """Join the queue of a lock; return the lease, or ``None`` if it was not granted."""
        waiter = LocalWaiter(request)
        try:
            yield from self._listen(request)
            self.join(waiter)
            return (yield from self._wait_for_turn(waiter, until))
        finally:
            self.leave(waiter)

    def _listen(self, request: Request) -> Steps[None]:
        if not self.receives(request.name):
            yield from ask(calls.Listen(self, request.name, until=request.until))

    def _wait_for_turn(self, waiter: LocalWaiter, until: float) -> Steps[Lease | None]:
        request = waiter.request
        while True:
            call, answer = yield from self._ask(request, until)
            lease = call.lease(answer)
            if lease is not None:
                return lease
            minus_fence, ttl_ms, now_ms, kind, *position = answer
            if kind % 3 == 0 and request.max_waiters is not None:
                request.full = True
                return None
            request.position = position[0] if position else 0
            self.note_server_ms(now_ms, call.sent_at)
            self.waits(waiter, ttl_ms, foreign=kind >= 3)
            if request.when_waiting is not None:
                begin, request.when_waiting = request.when_waiting, None
                yield from begin()
            over = yield from self._sleep_on(waiter, until)
            if waiter.grant is not None:
                grant, waiter.grant = waiter.grant, None
                lease, is_newer = self._granted(request, grant), grant.fence > -minus_fence
                # An older one was taken back, and looks young if a clock was set back.
                if is_newer and (yield from self._claim(lease, grant, request.until)):
                    return lease
            elif over:
                self.leave(waiter)  # what a heartbeat asks for it meanwhile, that withdraws
                yield from ask(calls.withdrawal(request, patient=True, until=request.until))
                return None

    def _sleep_on(self, waiter: LocalWaiter, until: float) -> Steps[bool]:
        """Sleep until the waiter has a grant, or has to ask; return True if the wait ran out."""
        while True:
            check = waiter.request.before_sleep
            yield calls.Wait(self, waiter, until if check is None else min(until, check()))
            if waiter.error is not None:
                raise LockUnavailable(waiter.error, name=waiter.request.name)
            if waiter.grant is not None:
                return False
            if waiter.must_ask or monotonic() >= waiter.turn_at:
                waiter.must_ask = False
                return False
            if monotonic() >= until:
                return True

    def _ask(self, request: Request, until: float) -> Steps[tuple[calls.Acquire, Any]]:
        """Ask for the lock. A request that waits already tolerates a short outage."""
        give_up = min(until, monotonic() + OUTAGE_LIMIT)
        pause = 0.05
        while True:
            try:
                yield from self._listen(request)
                request.waits_in = self.waits_in(request.name)
                call = calls.Acquire(request, request.waits_in, until=request.until)
                return call, (yield from ask(call))
            except LockUnavailable:
                if not request.position or monotonic() >= give_up:
                    raise
            left = max(0.0, give_up - monotonic())
            yield calls.Pause(min(pause * random.uniform(0.5, 1.5), left))
            pause = min(pause * 2, 1.0)

    def _granted(self, request: Request, grant: Grant) -> Lease:
        """Return the lease of a grant, counted from when it was given: its message may be old."""
        age, seconds = self._age(grant) if self.must_claim else 0.0, grant.lease_ms / 1000
        given_at = grant.received_at - age
        lease = Lease(request, grant.fence, given_at + seconds)
        if self.must_claim:
            lease.handed_off(given_at + min(CLAIM, seconds))
        return lease

    def _age(self, grant: Grant) -> float:
        """Return how many seconds ago a grant was given; infinity if that is not known."""
        at = grant.received_at
        if at - self._readings[1][0] > CLOCK_VALID:
            return math.inf
        now_ms = max(server_ms + (at - local) * 1000 for local, server_ms in self._readings)
        age = (now_ms - grant.now_ms) / 1000
        return max(0.0, age) if age > -CLAIM / 2 else math.inf  # the clock was set back

    def _claim(self, lease: Lease, grant: Grant, until: float) -> Steps[bool]:
        """Claim a lock that was handed off; return False if the server has to be asked instead."""
        if lease.verify_by is None or lease.passed:
            return not lease.passed
        if self.heart is not None and not self.heart.runs:  # no thread can verify the lock
            return False
        # The server may take the lock back before it receives the claim.
        if lease.verify_by - monotonic() < min(CLAIM, grant.lease_ms / 1000) / 2:
            return False
        try:
            end_ms = grant.now_ms + grant.lease_ms
            about = lease.name, lease.token, grant.fence, end_ms
            yield calls.Claim(*about, shared=lease.shared, until=until)
        except LockUnavailable:
            return False
        return True

    def forget(self, request: Request) -> None:
        """Have a waiter that has left removed from the queue, which it has come back to."""
        self._give_back(Release(request.name, "", request.entry, patient=False), FORGET_FOR)

    def _wake(self, waiter: LocalWaiter) -> bool:
        if waiter.wake():
            return True
        self.leave(waiter)
        return False

    def wait(self, waiter: LocalWaiter, until: float) -> None:
        """Block until the waiter has something to do, or ``until`` (monotonic)."""
        while waiter.wakes_at(until) > monotonic():
            self._sleep(waiter, self._checks_at(until))
            self._check(waiter)

    async def await_(self, waiter: LocalWaiter, until: float) -> None:
        while waiter.wakes_at(until) > monotonic():
            await self._asleep(waiter, self._checks_at(until))
            self._check(waiter)

    def _checks_at(self, until: float) -> float:
        """Return until when a waiter may sleep; it sends the heartbeats if no thread can."""
        return until if self.heart is None else min(until, self.heart.unattended_at)

    def _check(self, waiter: LocalWaiter) -> None:
        if self.heart is not None and monotonic() >= self.heart.unattended_at:
            self.heart.beat()

    def _sleep(self, waiter: LocalWaiter, until: float) -> None:
        if threading.current_thread() is threading.main_thread():
            until = min(until, monotonic() + LISTEN_EVERY)
        event = threads.OneShotEvent()
        waiter.sleeper = event.ring
        try:
            event.wait(self._sleeps_until(waiter, until))
        finally:
            waiter.sleeper = None

    def _sleeps_until(self, waiter: LocalWaiter, until: float) -> float:
        return waiter.wakes_at(until)  # now that it can be woken

    async def _asleep(self, waiter: LocalWaiter, until: float) -> None:
        event = threads.AsyncOneShotEvent()
        waiter.sleeper = event.ring
        try:
            await event.wait(waiter.wakes_at(until))
        finally:
            waiter.sleeper = None


class PollingRegistry(WaiterRegistry):
    """A registry without a hand-off: each ``interval`` (s) one waiter of a lock asks the server."""

    interval: float

    def __init__(self, interval: float, waits_in: str = "") -> None:
        super().__init__(interval)
        self._waits_in = waits_in

    def _reset(self) -> None:
        super()._reset()
        self._turns: dict[str, str] = {}  # by name: the token of the waiter that asks next

    def waits_in(self, name: str) -> str:
        return self._waits_in

    def leave(self, waiter: LocalWaiter) -> None:
        super().leave(waiter)
        if waiter.turn_at < math.inf:
            self._pass_turn(waiter.request.name, None, monotonic())

    def waits(self, waiter: LocalWaiter, ttl_ms: int, *, foreign: bool = False) -> None:
        most = self.interval * random.uniform(1 - JITTER, 1 + JITTER)
        # A key is gone in the millisecond after its last.
        pause = most if ttl_ms < 0 else min(most, (ttl_ms + 2) / 1000)
        waiter.turn_at = math.inf
        self._pass_turn(waiter.request.name, waiter, monotonic() + pause)

    def freed(self, name: str) -> None:
        self._pass_turn(name, None, monotonic())

    def _pass_turn(self, name: str, asked: LocalWaiter | None, at: float) -> None:
        """Have a waiter ask at that time: the next, or who has the turn already, but sooner."""
        with self.mutex:
            waiting = [waiter for waiter in self.present() if waiter.request.name == name]
            turn = next((waiter for waiter in waiting if waiter.turn_at < math.inf), None)
            if turn is None and waiting:
                after = waiting.index(asked) + 1 if asked in waiting else 0
                turn = waiting[after % len(waiting)]
            if turn is None:
                self._turns.pop(name, None)
            else:
                turn.turn_at = min(turn.turn_at, at)
                self._turns[name] = turn.request.token
        if turn is not None and turn is not asked:
            self._wake(turn)

    def _checks_at(self, until: float) -> float:
        return min(until, monotonic() + TURN)

    def _check(self, waiter: LocalWaiter) -> None:
        if self._turns.get(waiter.request.name) not in self._waiters:  # it left without a word
            self._pass_turn(waiter.request.name, None, monotonic())
