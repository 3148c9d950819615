"""Receives this process's grants over one connection, however many waiters it has."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.waiting import LONGEST_SLEEP, Bell, Grant, LocalWaiter, ServerHub
from django_redis_lock.transport.connections import leave_to_parent

SILENCE = 10.0
"""Seconds without a message after which the server is asked whether the connection still lives."""
PATIENCE = 5.0
"""Seconds that it may take to answer; then the connection is given up for another."""


_GRANT = re.compile(rb"grant ([!-~]+) (\d{1,16}) (\d{1,16}) (\d{1,16}) (.+)", re.DOTALL)
"""What a script publishes; anybody may publish anything, and that is passed over."""


class Listener(ServerHub):
    """A hub that is told of grants by the server.

    There is no thread while only threads and greenlets wait: one of the waiters reads the
    connection for all (the leader), the others (followers) sleep until they are woken by it, and
    a leader that leaves wakes a follower to take its place. So a grant reaches a lone waiter
    without a switch of threads (the leader/followers pattern, Schmidt and others, 2000). The
    first asyncio waiter, which can't block, starts a thread that leads from then on.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        prefix: str,
        give_back: Callable[[str, str, float], object],
        *,
        confirming: bool = False,
    ) -> None:
        self._connect = connect
        self._prefix = prefix
        # Is told of a lock (name, token, seconds of lease) that nobody here waits for any more.
        self._give_back = give_back
        self._confirming = confirming  # a waiter takes a grant only from the answer to its look
        self.takes_back = not confirming
        super().__init__()

    def _reset(self) -> None:
        super()._reset()
        self._connection: Any = None
        self._interrupted: list[Any] = []  # connections in whose reading an exception struck
        self._connecting = threading.RLock()  # a signal's handler may wait for a lock, too
        self._failed: tuple[float, str] = 0.0, ""  # when connecting failed last, and why
        self._connected = threading.Event()
        self._heard_at = 0.0  # when the connection last brought something
        self._asked_at = 0.0  # when it was asked whether it lives
        self._leader: object = None  # who reads: a waiter, or the thread
        self._lead_is_free = threading.Event()  # for the thread, once there is one
        self._thread: threading.Thread | None = None
        self._closed = False
        self._retired = False  # closed, and used only by those who waited then
        self._attempts: dict[str, Future[None]] = {}  # to listen on behalf of asyncio tasks

    @property
    def channel(self) -> str:
        """The channel of this process."""
        return f"{self._prefix}:{super().channel}"

    @property
    def listening(self) -> bool:
        """Whether the channel is subscribed."""
        return self._connection is not None

    def listen(self, name: str = "") -> None:
        """Subscribe, unless that is done already. Raises ``LockUnavailable``."""
        asked_at = monotonic()
        with self._connecting:
            if self._connection is not None:
                return
            failed_at, why = self._failed
            if failed_at > asked_at:  # another's attempt, while this one stood in line
                raise LockUnavailable(why)
            connection = None
            try:
                connection = self._connect()
                connection.connect()
                self._introduce(connection)
            except (RedisError, OSError) as error:
                if connection is not None:
                    connection.disconnect()
                self._failed = monotonic(), f"Can't listen for grants: {error}"
                raise LockUnavailable(self._failed[1]) from error
            except BaseException:
                if connection is not None:
                    connection.disconnect()
                raise
            if self._connection is not None:  # made by a signal's handler meanwhile
                connection.disconnect()
                return
            self._closed = False
            self._heard_at = monotonic()
            self._connection = connection
            self._connected.set()
            self._disconnect_interrupted()

    def _introduce(self, connection: Any) -> None:
        """Say on a new connection what it is for."""
        connection.send_command("SUBSCRIBE", self.channel)
        connection.read_response(disable_decoding=True)

    async def alisten(self, name: str = "") -> None:
        """Subscribe without blocking the loop, and have a thread read.

        The loop's executor is left alone: it may be busy, with callers that wait for this one.
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
        """Return the outcome of subscribing in a thread, which all who want it share."""
        channel = self.channel_of(name)
        with self._mutex:
            attempt = self._attempts.get(channel)
            if attempt is None:
                attempt = self._attempts[channel] = Future()
                attempt.set_running_or_notify_cancel()
                threading.Thread(
                    target=self._listen_for_tasks,
                    args=(name, channel, attempt),
                    name="django-redis-lock-subscribing",
                    daemon=True,
                ).start()
        return attempt

    def _listen_for_tasks(self, name: str, channel: str, attempt: Future[None]) -> None:
        error: BaseException | None = None
        try:
            self.listen(name)
        except BaseException as failure:
            error = failure
        with self._mutex:
            self._attempts.pop(channel, None)
        if error is None:
            attempt.set_result(None)
        else:
            attempt.set_exception(error)

    def close(self) -> None:
        """Drop the connection. Those who wait look again and open another, to be dropped by the
        last of them.
        """
        self._retired = True
        self._close()

    def _close(self) -> None:
        self._closed = True
        self._connected.set()
        self._lead_is_free.set()
        self._hang_up()

    def _leave_to_parent(self) -> None:
        for connection in (self._connection, *self._interrupted):
            if connection is not None:
                leave_to_parent(connection)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._drop(self._connection)
        self._disconnect_interrupted()

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

    def leave(self, waiter: LocalWaiter) -> None:
        """Expect it no longer; should ``wait`` have been interrupted at its end, end its lead."""
        super().leave(waiter)
        self._pass_lead(waiter)
        if self._retired and not self._waiters:
            self._close()

    async def await_(self, waiter: LocalWaiter, until: float) -> None:
        """Wait as ``wait`` does, under asyncio."""
        if self._thread is None:
            await self.alisten(waiter.name)
        await super().await_(waiter, until)

    def _lead(self, waiter: LocalWaiter, until: float) -> None:
        while not waiter.awake and (left := until - monotonic()) > 0:
            if not self._hear(left):
                waiter.nudged = True  # dropped before the waiter came
                return

    def _hear(self, seconds: float) -> bool:
        """Take in what comes within some seconds; return False where nothing is listened to."""
        connection = self._connection
        if connection is None:
            return False
        self._read(connection, seconds)
        return True

    def _follow(self, waiter: LocalWaiter, until: float) -> None:
        """Sleep until something is there for the waiter, or the lead is."""
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
        """Block the thread while it is of no use."""

    def _worth_leading(self) -> bool:
        """Whether the thread is of use when it reads."""
        return True

    def _take_lead(self, candidate: object) -> bool:
        # Remembered by name rather than by a lock that is held: should an exception come from a
        # signal in any place, ``_pass_lead`` still knows whose lead it is to end.
        with self._mutex:
            if self._leader is None:
                self._leader = candidate
            return self._leader is candidate

    def _pass_lead(self, leaver: object) -> None:
        """End the lead of whoever leaves, if it is theirs; where nobody leads, wake one to."""
        with self._mutex:
            if self._leader is leaver:
                self._leader = None
            if self._leader is not None:
                return
            if self._thread is not None:
                self._lead_is_free.set()
                return
            for waiter in self._waiters.values():
                if waiter.sleeper is not None:
                    waiter.wake()
                    return

    def _read(self, connection: Any, seconds: float) -> None:
        """Read one message and hand on what it says. A failure drops the connection."""
        try:
            self._receive(connection, seconds)
        except (RedisError, OSError, ValueError, TypeError, AttributeError):
            # The last three are redis-py's where another thread closes the socket under its hands.
            self._drop(connection)
        except BaseException:
            # Interrupted in the middle of a message, perhaps; what follows can't be told apart.
            self._abandon(connection)
            raise

    def _receive(self, connection: Any, seconds: float) -> None:
        if connection.can_read(timeout=min(seconds, self._listen_for(connection))):
            self._heard_at = monotonic()
            message = connection.read_response(disable_decoding=True)
            if message[0] == b"message":
                self._take_in(message[2])

    def _listen_for(self, connection: Any) -> float:
        """Return for how many seconds silence is no bad sign, asking for a sign where it may be.

        A connection can die without a word, where a router forgets it. Raises ``OSError`` then.
        The question is a second subscription, which changes nothing and needs no more permission.
        """
        now = monotonic()
        if now - self._heard_at < SILENCE:
            return self._heard_at + SILENCE - now
        if self._asked_at < self._heard_at:
            connection.send_command("SUBSCRIBE", self.channel, check_health=False)
            self._asked_at = now
        if now - self._asked_at > PATIENCE:
            raise OSError(f"nothing heard for {now - self._heard_at:.0f} s")
        return max(0.001, self._asked_at + PATIENCE - now)

    def _take_in(self, message: bytes) -> None:
        if grant := _GRANT.fullmatch(message):
            token, name = grant[1].decode(), grant[5].decode(errors="replace")
            news = Grant(int(grant[2]), int(grant[3]), int(grant[4]))
            known = self.nudge_one(token) if self._confirming else self.dispatch(token, news)
            if not known:
                self._give_back(name, token, news.lease_ms / 1000)
        elif message.startswith(b"look "):
            self.look_soon(message[5:].decode(errors="replace"))

    def _drop(self, connection: Any) -> None:
        self._turn_from(connection)
        connection.disconnect()

    def _abandon(self, connection: Any) -> None:
        """Read a connection no more, but keep it until there is another.

        Whoever waits here keeps its place only while the channel has a subscriber. A grant that
        this one gets is found by looking.
        """
        self._interrupted.append(connection)
        self._turn_from(connection)

    def _disconnect_interrupted(self) -> None:
        while self._interrupted:
            self._interrupted.pop().disconnect()

    def _turn_from(self, connection: Any) -> None:
        """Read a connection no more. Grants may be lost with it, so every waiter has to look."""
        if self._connection is connection:
            self._connection = None
            self._connected.clear()
        self.nudge()
