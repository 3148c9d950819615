"""Lets one of the waiters, or a thread, read the grants for all waiters of a process."""

from __future__ import annotations

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.waiting import LocalWaiter, ServerHub
from django_redis_lock.support.bells import LONGEST_SLEEP, Bell
from django_redis_lock.transport.threads import shielded, start_in_thread

LOOK_UP = 0.1
"""Seconds for which a leader reads at a time. The others can't wake it meanwhile, and the one that
looks for all may leave that to the leader."""


class LeadingHub(ServerHub, ABC):
    """A hub whose waiters take turns at reading.

    While only threads and greenlets wait, there is no extra thread. One waiter, the leader, reads
    for all; the others, its followers, sleep until it wakes them. A leader that leaves wakes a
    follower to take its place. So a grant reaches a lone waiter without a switch of threads (the
    leader/followers pattern, Schmidt and others, 2000). The first asyncio waiter, which can't
    block, starts a thread that leads from then on.
    """

    def _reset(self) -> None:
        super()._reset()
        self._connecting = threading.RLock()  # a signal handler may wait for a lock, too
        self._failed: tuple[float, str] = 0.0, ""  # when connecting last failed, and why
        self._attempts: dict[str, Future[None]] = {}  # to listen for asyncio tasks, by channel
        self._connected = threading.Event()
        self._leader: object = None  # who reads: a waiter, or the thread
        self._lead_is_free = threading.Event()  # for the thread, once there is one
        self._thread: threading.Thread | None = None
        self._closed = False
        self._retired = False  # closed, and only used by those who waited then

    @abstractmethod
    def _dial(self, name: str) -> Any:
        """Return a new connection for grants of a lock. Raises ``RedisError`` and ``OSError``."""

    @abstractmethod
    def _adopt(self, connection: Any) -> None:
        """Begin to read from a new connection, and set ``_connected`` as soon as it counts."""

    @abstractmethod
    def _hear(self, seconds: float) -> bool:
        """Read what comes within some seconds; return False if there is no connection."""

    @abstractmethod
    def _hang_up(self) -> None:
        """Close all connections."""

    def listen(self, name: str = "", until: float = math.inf) -> None:
        """Connect to receive the grants of a lock, if need be; give up ``until`` (monotonic).

        Raises ``LockUnavailable``.
        """
        if self.listens_for(name):
            return
        if until != math.inf:
            try:
                shielded(partial(self.listen, name), until)
            except TimeoutError as error:
                raise LockUnavailable(f"Can't listen for grants: {error}") from error
            return
        asked_at = monotonic()
        with self._connecting:
            if self.listens_for(name):
                return
            failed_at, why = self._failed
            if failed_at > asked_at:  # another attempt, while this one waited for the mutex
                raise LockUnavailable(why)
            try:
                connection = self._dial(name)
            except (RedisError, OSError) as error:
                self._failed = monotonic(), f"Can't listen for grants: {error}"
                raise LockUnavailable(self._failed[1]) from error
            self._closed = False
            self._adopt(connection)

    async def alisten(self, name: str = "") -> None:
        """Do as ``listen`` without blocking the event loop, and have a thread read.

        The loop's executor is not used: it may be busy with callers that wait for this one.
        """
        if not self.listens_for(name):
            await asyncio.wrap_future(self._attempt(name))
        with self._mutex:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._lead_for_ever, name="django-redis-lock-listener", daemon=True
                )
                thread.start()
                self._thread = thread

    def _attempt(self, name: str) -> Future[None]:
        """Return the outcome of listening in a thread, which is shared by all tasks that ask."""
        channel = self.channel_of(name)

        def listen() -> None:
            try:
                self.listen(name)
            finally:
                with self._mutex:
                    self._attempts.pop(channel, None)

        with self._mutex:
            attempt = self._attempts.get(channel)
            if attempt is None:
                attempt = self._attempts[channel] = start_in_thread(listen)
        return attempt

    def close(self) -> None:
        """Close the connection. Waiters open another, which the last of them closes."""
        self._retired = True
        self._close()

    def _close(self) -> None:
        self._closed = True
        self._connected.set()
        self._lead_is_free.set()
        self._hang_up()

    def wait(self, waiter: LocalWaiter, until: float) -> None:
        """Block until the waiter is granted its lock, is nudged, or ``until`` (monotonic)."""
        try:
            while not waiter.awake and monotonic() < until:
                if self._take_lead(waiter):
                    self._lead(waiter, until)
                else:
                    self._follow(waiter, until)
        finally:
            self._pass_lead(waiter)

    async def await_(self, waiter: LocalWaiter, until: float) -> None:
        """Wait as ``wait`` does, under asyncio."""
        if self._thread is None:
            await self.alisten(waiter.name)
        await super().await_(waiter, until)

    def leave(self, waiter: LocalWaiter) -> None:
        """Remove a waiter; if its ``wait`` was interrupted at the end, it still leads."""
        super().leave(waiter)
        self._pass_lead(waiter)
        if self._retired and not self._waiters:
            self._close()

    def _lead(self, waiter: LocalWaiter, until: float) -> None:
        while not waiter.awake and (left := until - monotonic()) > 0:
            if not self._hear(min(left, LOOK_UP)):
                waiter.nudged = True  # the connection was closed before the waiter came
                return

    def _follow(self, waiter: LocalWaiter, until: float) -> None:
        """Sleep until there is news for the waiter, or no leader."""
        bell = Bell()
        waiter.sleeper = bell.ring
        try:
            if not waiter.awake and self._leader is not None:
                bell.wait(until)
        finally:
            waiter.sleeper = None

    def _lead_for_ever(self) -> None:
        thread = threading.current_thread()
        try:
            while not self._closed:
                self._connected.wait()
                self._rest()
                self._lead_is_free.clear()
                if self._take_lead(thread):
                    while self._worth_leading() and self._hear(LONGEST_SLEEP):
                        pass
                    self._pass_lead(thread)
                else:
                    self._lead_is_free.wait()
        finally:
            self._thread = None
            self._pass_lead(thread)

    def _rest(self) -> None:
        """Block the thread while there is nothing to read."""

    def _worth_leading(self) -> bool:
        """Whether the thread should go on reading."""
        return True

    def _take_lead(self, candidate: object) -> bool:
        # The leader is stored, rather than a mutex held: wherever an exception from a signal
        # handler strikes, ``_pass_lead`` still knows whose lead it has to end.
        with self._mutex:
            if self._leader is None:
                self._leader = candidate
            return self._leader is candidate

    def _pass_lead(self, leaver: object) -> None:
        """End the lead of a leaver, if it leads; if there is no leader, wake a candidate."""
        with self._mutex:
            if self._leader is leaver:
                self._leader = None
            if self._leader is not None:
                return
            if self._thread is not None:
                self._lead_is_free.set()
                return
            for waiter in list(self._waiters.values()):
                if waiter.sleeper is not None:
                    waiter.wake()
                    return
