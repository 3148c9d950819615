"""The waiters of one process: where they sleep, when they poll, how a grant finds its waiter."""

from __future__ import annotations

import itertools
import math
import random
import threading
import weakref
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from django_redis_lock.protocol.lease import Request
from django_redis_lock.support import process

POLL_EVERY = 0.8
"""Seconds after which the waiters of a process poll their lock at the latest. So the server knows
that their process runs, and they notice a grant that nobody claims; see ``common.lua``."""
POLL_FOREIGN_EVERY = 0.25
"""Seconds between polls of a lock that another program holds, which hands off to nobody."""
JITTER = 0.2
"""The part of a polling interval by which each is longer or shorter, so that processes that began
together spread out."""
CLAIM = 1.2
"""Seconds in which a lock that was handed off has to be claimed; see ``common.lua``. Those who poll
have four intervals if that is longer."""
GONE = 5.0
"""Seconds without a sign of life after which the waiters of a process lose their positions; see
``acquire.lua``."""
UNSEEN = 3.0
"""Seconds without one after which they are not shown. A process that was itself not answered for so
long can't tell who is gone."""
CLOCK_VALID = 60.0
"""Seconds for which a reading of the server's clock is carried forward by the local clock."""


class Grant:
    """The message that a waiter was given its lock; ``lease_ms`` counts from ``now_ms``."""

    __slots__ = ("fence", "lease_ms", "now_ms", "received_at")

    def __init__(self, fence: int, lease_ms: int, now_ms: int) -> None:
        self.fence = fence
        self.lease_ms = lease_ms
        self.now_ms = now_ms
        self.received_at = monotonic()


class Schedule:
    """When the waiters of one lock in this process poll it.

    They share it and take turns, so a hundred waiters ask the server no more often than one:

    ==============  ===========================================================================
    ``take_turn``   A waiter finds a poll due and takes it on. If it fails, another does later.
    ``polled``      A poll found the lock held, which tells when the next one is due.
    ``peeked``      A waiter has read the holder, and not asked for the lock.
    ``plan``        The next poll is due then. Only who knows the latest may put it off.
    ``poll_soon``   The next poll is due now: what was planned is out of date.
    ==============  ===========================================================================
    """

    TURN = 1.0
    """Seconds after which another waiter polls if the one whose turn it was did not."""

    def __init__(self, mutex: Any) -> None:
        self.due = monotonic() + process.LONGEST_SLEEP
        self.poller = ""  # the token of the waiter whose turn it is; the others may sleep on
        self.version = 0  # how often it was said when to poll
        self.polled_at = self.peeked_at = monotonic()
        self._answered_ms = self._since_ms = 0  # the server's clock: at the last answer, the first
        self._mutex = mutex

    @property
    def answered_ms(self) -> int:
        """The server's clock when one of them was last answered.

        It is 0 until they have been answered regularly for so long that whoever was not seen
        meanwhile is gone: it can't be the server that was stopped.
        """
        return self._answered_ms if self._answered_ms - self._since_ms >= GONE * 1000 else 0

    def take_turn(self, waiter: LocalWaiter) -> bool:
        """Return True to only one of the waiters that find a poll due."""
        with self._mutex:
            now = monotonic()
            if now < self.due:
                return False
            self.due, self.poller = now + self.TURN, waiter.token
            return True

    def polled(self, at: float, now_ms: int) -> None:
        """Note a poll that was sent ``at`` (monotonic), and the server's clock in the answer."""
        if abs(now_ms - self._answered_ms) > UNSEEN * 1000:
            self._since_ms = now_ms
        self._answered_ms, self.polled_at = now_ms, at

    def peeked(self, at: float) -> float:
        """Note that the holder was read ``at`` (monotonic); return when it was read before."""
        before, self.peeked_at = self.peeked_at, at
        return before

    def plan(self, due: float, version: int) -> None:
        """Poll next at ``due``, or earlier if that was said since ``version``.

        Answers may arrive in another order than the server gave them, so only the first may put off
        the next poll.
        """
        with self._mutex:
            self.due = due if self.version == version else min(self.due, due)
            self.version += 1

    def poll_soon(self, poller: LocalWaiter) -> None:
        """Have a waiter poll now; another does if that one leaves."""
        with self._mutex:
            self.due, self.poller = monotonic(), poller.token
            self.version += 1


class LocalWaiter:
    """One acquisition that waits in this process."""

    __slots__ = (
        *("grant", "must_poll", "name", "schedule", "shared", "sleeper", "token", "until"),
        "__weakref__",
    )

    schedule: Schedule
    """Shared with the others that wait for the lock; set as it joins."""

    def __init__(self, request: Request) -> None:
        self.token = request.token
        self.name = request.name
        self.shared = request.shared
        self.until = request.until
        self.grant: Grant | None = None
        self.must_poll = False
        self.sleeper: Callable[[], object] | None = None  # wakes it while it sleeps

    def wakes_at(self, until: float) -> float:
        """Return until when (monotonic) it may sleep, ``until`` at the latest."""
        if self.must_poll or self.grant is not None:
            return -math.inf
        return min(until, self.schedule.due)

    def wake(self) -> bool:
        """End its sleep, if it sleeps. Returns False if its event loop has been closed."""
        sleeper = self.sleeper
        return sleeper is None or sleeper() is not False


class Hub:
    """The waiters of one process and backend.

    They are notified from within the process; a ``ReceivingHub`` receives messages for them. With
    an ``interval`` (seconds) they poll so often instead. If they also stand in the queue of a
    server that can't notify them, they have ``claim_ms`` to find out that it is their turn. So
    they peek: one reads the holder for all, and only the one whose turn it is asks for the lock.

    ``channel`` is what stands in the queue's entries where waiters are not served in its order.
    """

    must_claim = False
    """Whether a lock that is handed off to a waiter here has to be claimed."""

    def __init__(
        self, *, interval: float | None = None, peeks: bool = False, channel: str | None = None
    ) -> None:
        self.interval = interval
        self.peeks = peeks
        longest = (interval or 0) * (1 + JITTER)
        self.claim_ms = round(max(CLAIM, 4 * longest) * 1000)
        self._channel = channel
        self.in_order = channel is None
        self._reset()
        process.forget_after_fork(self)

    def _reset(self) -> None:
        self.mutex = threading.RLock()  # the collector may close a generator that waits here
        # A waiter goes with its caller, even if an interruption kept it from leaving.
        self._waiters: dict[str, weakref.ref[LocalWaiter]] = {}
        # One lives as long as its waiters. A count of them would be wrong after an interruption.
        self._schedules: weakref.WeakValueDictionary[str, Schedule] = weakref.WeakValueDictionary()
        self._number = next(_numbers)
        self._clock = -CLOCK_VALID, 0  # local (s) and server (ms) at the last reading

    def after_fork(self) -> None:
        """Forget the waiters of the parent process, and wake those that this child inherited."""
        inherited = self._present()
        process.retain_inherited(inherited)
        self._leave_to_parent()
        self._reset()
        for waiter in inherited:
            waiter.must_poll = True
            waiter.wake()

    def _leave_to_parent(self) -> None:
        """Give up what only one process may read."""

    @property
    def id(self) -> str:
        """Tells the hubs of all processes apart."""
        return f"{process.known_process().id}-{self._number}"

    def channel_of(self, name: str) -> str:
        """Return the channel on which this process receives the grants of a lock."""
        if self._channel is not None:
            return self._channel
        return f"@poll:{self.claim_ms}:{self.id}" if self.peeks else self.id

    def receives(self, name: str) -> bool:
        """Whether grants of a lock would be received now."""
        return True

    def may_join(self, name: str) -> bool:
        """Whether the first call for a lock may join its queue.

        A queue entry says since when it waits, which takes the server's clock.
        """
        return self.receives(name) and self.server_ms() is not None

    def note_server_ms(self, now_ms: int) -> None:
        self._clock = monotonic(), now_ms

    def server_ms(self) -> int | None:
        """Return the server's clock, or ``None`` if the last reading is a minute old."""
        local, server_ms = self._clock
        passed = monotonic() - local
        return None if passed > CLOCK_VALID else server_ms + round(passed * 1000)

    def close(self) -> None:
        """Close what receives grants."""

    def next_poll(self, ttl_ms: int, *, foreign: bool = False) -> float:
        """Return after how many seconds to poll a lock with ``ttl_ms`` left (-1: no end).

        ``foreign`` says that another program holds it, which hands off to nobody.
        """
        if self.interval is not None:
            most = self.interval * random.uniform(1 - JITTER, 1 + JITTER)
        else:
            most = POLL_FOREIGN_EVERY if foreign else POLL_EVERY
        # A key is gone in the millisecond after its last.
        return most if ttl_ms < 0 else min(most, (ttl_ms + 2) / 1000)

    # Waiters come and go.

    def join(self, waiter: LocalWaiter) -> None:
        """Expect a grant for the waiter."""
        with self.mutex:
            waiter.schedule = self._schedules.setdefault(waiter.name, Schedule(self.mutex))
            gone = partial(self._waiters.pop, waiter.token)  # no Python code, as in ``Register``
            self._waiters[waiter.token] = weakref.ref(waiter, gone)

    def leave(self, waiter: LocalWaiter) -> None:
        """Expect no grant for it any more. It need not have joined."""
        heir: LocalWaiter | None = None
        with self.mutex:
            joined = self._waiters.pop(waiter.token, None) is not None
            if joined and waiter.schedule.poller == waiter.token:
                heir = self._first_of(waiter.name)
                if heir is not None:
                    waiter.schedule.poller = heir.token
        if heir is not None:
            self._wake(heir)  # when the next poll is due it may not know

    def _first_of(self, name: str) -> LocalWaiter | None:
        return next((item for item in self._present() if item.name == name), None)

    def _present(self) -> list[LocalWaiter]:
        found = [reference() for reference in [*self._waiters.values()]]
        return [waiter for waiter in found if waiter is not None]

    # Waiters are notified.

    def notify(self, token: str, grant: Grant | None = None) -> bool:
        """Give a waiter its grant, or have it poll; return whether it waits here."""
        reference = self._waiters.get(token)
        waiter = None if reference is None else reference()
        if waiter is None:
            return False
        if grant is None:
            waiter.must_poll = True
        else:
            waiter.grant = grant
        return self._wake(waiter)

    def notify_all(self, name: str | None = None) -> None:
        """Have all waiters poll, or those of one lock."""
        self.notify_if(lambda waiter: name in (None, waiter.name))

    def notify_if(self, concerns: Callable[[LocalWaiter], bool]) -> None:
        """Have those waiters poll of whom ``concerns`` returns True."""
        with self.mutex:
            notified = [item for item in self._present() if concerns(item)]
            for waiter in notified:
                waiter.must_poll = True
        for waiter in notified:
            self._wake(waiter)

    def poll_soon(self, name: str) -> None:
        """Have one of the waiters of a lock poll it now."""
        with self.mutex:
            poller = self._first_of(name)
            if poller is None:
                return
            poller.schedule.poll_soon(poller)
        self._wake(poller)

    def freed(self, name: str) -> None:
        """Note that this process has released a lock, of which those who poll do not know."""
        if self.interval is not None:
            self.poll_soon(name)

    def _wake(self, waiter: LocalWaiter) -> bool:
        if waiter.wake():
            return True
        self.leave(waiter)
        return False

    # Waiters sleep.

    def wait(self, waiter: LocalWaiter, until: float) -> None:
        """Block until the waiter has something to do, or ``until`` (monotonic)."""
        while waiter.wakes_at(until) > monotonic():
            self._sleep(waiter, until)

    async def await_(self, waiter: LocalWaiter, until: float) -> None:
        while waiter.wakes_at(until) > monotonic():
            await self._asleep(waiter, until)

    def _sleep(self, waiter: LocalWaiter, until: float) -> None:
        """Block until the waiter is woken, or as long as it may sleep."""
        bell = process.Bell()
        waiter.sleeper = bell.ring
        try:
            bell.wait(self._sleeps_until(waiter, until))
        finally:
            waiter.sleeper = None

    def _sleeps_until(self, waiter: LocalWaiter, until: float) -> float:
        """Return until when it may sleep, now that it can be woken."""
        return waiter.wakes_at(until)

    async def _asleep(self, waiter: LocalWaiter, until: float) -> None:
        bell = process.AsyncBell()
        waiter.sleeper = bell.ring
        try:
            await bell.wait(waiter.wakes_at(until))
        finally:
            waiter.sleeper = None


_numbers = itertools.count(1)  # of the hubs of this process
