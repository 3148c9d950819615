"""Where the waiters of one process sleep, and how a grant finds its waiter."""

from __future__ import annotations

import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Any

from django_redis_lock.protocol.lease import Request
from django_redis_lock.support.bells import LONGEST_SLEEP, AsyncBell, Bell
from django_redis_lock.support.process import forget_after_fork, keep_inherited, known_process

WAITING_SCHEMES = ("queue", "blpop", "poll")
"""How waiters learn that it is their turn: by pub/sub, from a list, or by polling."""
LOOK_EVERY = 0.8
"""Seconds after which the waiters of a process look at their lock at the latest. So the server
knows that their process runs, and they notice a grant that nobody claims; see ``common.lua``."""
CLAIM = 1.2
"""Seconds in which a lock that was handed off has to be claimed; see ``common.lua``."""
GONE = 5.0
"""Seconds without a sign of life after which the waiters of a process lose their places; see
``join.lua``."""
UNHEARD = 3.0
"""Seconds without one after which they are not shown. A process that was itself not answered for so
long can't tell who is gone."""
LOOK_AT_FOREIGN = 0.25
"""Seconds between looks at a lock that another program holds, which hands off to nobody."""
CLOCK_KEPT = 60.0
"""Seconds for which a reading of the server's clock is carried forward by the local clock."""


def check_scheme(wait: Any) -> str | None:
    """Return a waiting scheme, or ``None`` for the backend's own. Raises ``ValueError``."""
    if wait is not None and wait not in WAITING_SCHEMES:
        raise ValueError(
            f"wait={wait!r} is no waiting scheme. "
            f"Give {', '.join(map(repr, WAITING_SCHEMES))}, or None for the backend's."
        )
    scheme: str | None = wait
    return scheme


class Grant:
    """The message that a waiter was given its lock; ``lease_ms`` counts from ``now_ms``."""

    __slots__ = ("fence", "lease_ms", "now_ms", "received_at")

    def __init__(self, fence: int, lease_ms: int, now_ms: int) -> None:
        self.fence = fence
        self.lease_ms = lease_ms
        self.now_ms = now_ms
        self.received_at = monotonic()


class Watch:
    """When the waiters of one lock in this process should look at it next.

    They share it and take turns, so a hundred waiters ask the server no more often than one.
    """

    __slots__ = (
        "__weakref__",
        "_asked_ms",
        "_mutex",
        "_since_ms",
        "asked_at",
        "due",
        "glanced_at",
        "news",
    )

    TURN = 1.0
    """Seconds after which another waiter looks if the one whose turn it was did not."""

    def __init__(self, mutex: Any) -> None:
        self.due = monotonic() + LONGEST_SLEEP
        self.asked_at = self.glanced_at = monotonic()  # when one of them last asked, or glanced
        self.news = 0  # how often they were told when to look
        self._asked_ms = self._since_ms = 0  # the server's clock: at the last answer, the first
        self._mutex = mutex

    @property
    def asked_ms(self) -> int:
        """The server's clock when one of them was last answered.

        It is 0 until they have been answered regularly for so long that whoever was not heard
        meanwhile is gone: it can't be the server that was stopped.
        """
        return self._asked_ms if self._asked_ms - self._since_ms >= GONE * 1000 else 0

    def answered(self, now_ms: int) -> None:
        """Note what the server's clock read when one of them was answered."""
        if abs(now_ms - self._asked_ms) > UNHEARD * 1000:
            self._since_ms = now_ms
        self._asked_ms = now_ms

    def plan(self, due: float, news: int) -> None:
        """Look next at ``due``, or earlier if news since that look began has said so.

        Answers may arrive in another order than the server gave them, so only the first may put off
        the next look.
        """
        with self._mutex:
            self.due = due if self.news == news else min(self.due, due)
            self.news += 1

    def claim(self) -> bool:
        """Return True to only one of the waiters that find a look due."""
        with self._mutex:
            now = monotonic()
            if now < self.due:
                return False
            self.due = now + self.TURN
            return True


class LocalWaiter:
    """One acquisition that waits in this process."""

    __slots__ = (
        "grant",
        "looks",
        "name",
        "nudged",
        "sleeper",
        "stirred",
        "token",
        "until",
        "watch",
    )

    watch: Watch
    """Shared with the others that wait for the lock; set as it joins."""

    def __init__(self, request: Request) -> None:
        self.token = request.token
        self.name = request.name
        self.until = request.until
        self.grant: Grant | None = None
        self.nudged = False  # it has to look
        self.stirred = False  # one of the waiters of its lock has to look
        self.looks = False  # the others may sleep on when the next look is due
        self.sleeper: Callable[[], object] | None = None  # wakes it while it sleeps

    @property
    def awake(self) -> bool:
        """Whether there is a reason not to sleep."""
        return self.nudged or self.stirred or self.grant is not None

    def wake(self) -> bool:
        """End its sleep, if it sleeps. Returns False if its event loop has been closed."""
        sleeper = self.sleeper
        return sleeper is None or sleeper() is not False


class Hub:
    """The waiters of one process and backend. This one gets grants from within the process."""

    takes_back = False
    """Whether a lock that is handed off to a waiter here has to be claimed."""
    glances = False
    """Whether waiters read the holder, and ask for the lock only if that is needed."""

    def __init__(self) -> None:
        self._reset()
        forget_after_fork(self)

    def _reset(self) -> None:
        self._mutex = threading.RLock()  # the collector may close a generator that waits here
        self._waiters: dict[str, LocalWaiter] = {}
        # Its waiters keep a watch. A count of them would be wrong after an interruption.
        self._watches: weakref.WeakValueDictionary[str, Watch] = weakref.WeakValueDictionary()
        self._number = next(_numbers)

    def after_fork(self) -> None:
        """Forget the waiters of the parent process, and wake those that this child inherited."""
        inherited = list(self._waiters.values())
        keep_inherited(inherited)
        self._leave_to_parent()
        self._reset()
        for waiter in inherited:
            waiter.nudged = True
            waiter.wake()

    def _leave_to_parent(self) -> None:
        """Give up what only one process may read."""

    @property
    def channel(self) -> str:
        """The address of the waiters here in queue entries."""
        return f"{known_process().id}-{self._number}"

    @property
    def listening(self) -> bool:
        """Whether grants would be received now."""
        return True

    @property
    def in_queue(self) -> bool:
        """Whether waiters stand in a queue and are served in its order."""
        return bool(self.channel)

    def next_look(self, ttl_ms: int, *, foreign: bool = False) -> float:
        """Return after how many seconds to look again at a lock with ``ttl_ms`` left (-1: no end).

        ``foreign`` says that another program holds it, which hands off to nobody.
        """
        most = LOOK_AT_FOREIGN if foreign else LOOK_EVERY
        # A key is gone in the millisecond after its last.
        return most if ttl_ms < 0 else min(most, (ttl_ms + 2) / 1000)

    def channel_of(self, name: str) -> str:
        """Return the channel on which this process receives the grants of a lock."""
        return self.channel

    def listens_for(self, name: str) -> bool:
        """Return whether grants of a lock would be received now."""
        return self.listening

    def heard(self, now_ms: int) -> None:
        """Note what the server's clock reads now."""

    def server_ms(self) -> int | None:
        """Return the server's clock as far as this process knows it, else ``None``."""
        return time.time_ns() // 1_000_000

    def listen(self, name: str = "", until: float = math.inf) -> None:
        """Begin to receive the grants of a lock; give up ``until`` (monotonic)."""

    async def alisten(self, name: str = "") -> None:
        """Begin to receive the grants of a lock."""

    def close(self) -> None:
        """Close what receives grants."""

    def join(self, waiter: LocalWaiter) -> None:
        """Expect a grant for the waiter."""
        with self._mutex:
            watch = self._watches.get(waiter.name)
            if watch is None:
                watch = self._watches[waiter.name] = Watch(self._mutex)
            waiter.watch = watch
            self._waiters[waiter.token] = waiter

    def leave(self, waiter: LocalWaiter) -> None:
        """Expect no grant for it any more. It need not have joined."""
        heir: LocalWaiter | None = None
        with self._mutex:
            if self._waiters.pop(waiter.token, None) is not None and waiter.looks:
                others = list(self._waiters.values())
                heir = next((item for item in others if item.watch is waiter.watch), None)
                if heir is not None:
                    heir.looks = heir.stirred = True
        if heir is not None:
            self._wake(heir)

    def nudge(self, name: str | None = None) -> None:
        """Make all waiters, or those of one lock, look at it again."""
        self._nudge(lambda waiter: name in (None, waiter.name))

    def _nudge(self, concerns: Callable[[LocalWaiter], bool]) -> None:
        with self._mutex:
            nudged = [item for item in list(self._waiters.values()) if concerns(item)]
            for waiter in nudged:
                waiter.nudged = True
        for waiter in nudged:
            self._wake(waiter)

    def nudge_one(self, token: str) -> bool:
        """Make the waiter with this token look; return whether it waits here."""
        waiter = self._waiters.get(token)
        if waiter is None:
            return False
        waiter.nudged = True
        return self._wake(waiter)

    def _wake(self, waiter: LocalWaiter) -> bool:
        if waiter.wake():
            return True
        self.leave(waiter)
        return False

    def may_have_missed(self, seconds: float) -> bool:
        """Whether a turn may have come and gone unseen between looks so many seconds apart."""
        return False

    def freed(self, name: str) -> None:
        """Note that this process has released a lock."""

    def look_soon(self, name: str) -> None:
        """Make one of the waiters of a lock look at it now."""
        with self._mutex:
            watch = self._watches.get(name)
            if watch is None:
                return
            watch.due = monotonic()
            watch.news += 1
            stirred = [item for item in list(self._waiters.values()) if item.name == name]
            for waiter in stirred:
                waiter.stirred = True
        for waiter in stirred:
            self._wake(waiter)

    def dispatch(self, token: str, grant: Grant) -> bool:
        """Deliver a grant to its waiter; return whether it waits here."""
        waiter = self._waiters.get(token)
        if waiter is None:
            return False
        waiter.grant = grant
        return self._wake(waiter)

    def wait(self, waiter: LocalWaiter, until: float) -> None:
        """Block until the waiter is granted its lock, is nudged, or ``until`` (monotonic)."""
        bell = Bell()
        waiter.sleeper = bell.ring
        try:
            if not waiter.awake:
                bell.wait(until)
        finally:
            waiter.sleeper = None

    async def await_(self, waiter: LocalWaiter, until: float) -> None:
        """Wait as ``wait`` does, under asyncio."""
        bell = AsyncBell()
        waiter.sleeper = bell.ring
        try:
            if not waiter.awake:
                await bell.wait(until)
        finally:
            waiter.sleeper = None


class ServerHub(Hub):
    """A hub that carries a server's clock forward by the local one."""

    def _reset(self) -> None:
        super()._reset()
        self._clock = -CLOCK_KEPT, 0  # local (s) and server (ms) at the last reading

    def heard(self, now_ms: int) -> None:
        """Note what the server's clock reads now."""
        self._clock = monotonic(), now_ms

    def server_ms(self) -> int | None:
        """Return the server's clock, or ``None`` if the last reading is a minute old."""
        local, server_ms = self._clock
        passed = monotonic() - local
        return None if passed > CLOCK_KEPT else server_ms + round(passed * 1000)


_numbers = itertools.count(1)
"""Numbers the hubs of this process."""
