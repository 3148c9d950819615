"""Receives the grants of this process for all of its waiters, over one connection."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.calls import GiveBack
from django_redis_lock.protocol.waiting import LocalWaiter, WaiterRegistry
from django_redis_lock.support.threads import LONGEST_SLEEP, InThread, OneShotEvent, from_below
from django_redis_lock.transport.clients import NOTHING, Connection
from django_redis_lock.transport.connections import leave_to_parent
from django_redis_lock.transport.packing import pack
from django_redis_lock.transport.redis_py import BROKEN

READ_FOR = 0.1  # seconds for which a leader reads at a time: it is not woken meanwhile
SILENCE = 10.0  # seconds without a message after which the server is asked for one
ANSWER_WITHIN = 5.0  # seconds within which it must answer; otherwise the connection is replaced
ROUND = 2.0  # seconds for which one BLPOP blocks


class ReceivingRegistry(WaiterRegistry):
    """A registry whose waiters take turns at reading what a receiver brings.

    One waiter, the leader, reads for all; the others sleep until it wakes them. A leader that
    leaves wakes another to take its place. So a grant reaches a lone waiter without a switch of
    threads (the leader/followers pattern, Schmidt and others, 2000). The first asyncio waiter,
    which can't block, starts a thread that leads from then on, while there are waiters.

    A connection that is lost is replaced before the next heartbeat. ``receiver`` is a
    ``Subscription`` or has the same methods. With ``confirming`` a grant only lets its waiter ask,
    and the answer to that counts.
    """

    def __init__(self, receiver: Any, give_back: GiveBack, *, confirming: bool) -> None:
        self.receiver = receiver
        receiver.registry = self
        self.must_claim = not confirming
        super().__init__(give_back=give_back)

    def _reset(self) -> None:
        super()._reset()
        self._attempt: InThread[None] | None = None  # to connect, the last one
        self._leader: object = None  # who reads: a waiter, or the thread
        self._thread: threading.Thread | None = None
        self._thread_may_lead = OneShotEvent()
        self._closed = False
        self._retired = False  # closed, and only used by waiters of that time
        self.receiver.reset()

    def _leave_to_parent(self) -> None:
        self.receiver.leave_to_parent()

    def waits_in(self, name: str) -> str:
        return f"{self.receiver.kind}{self.id}"

    def receives(self, name: str) -> bool:
        return bool(self.receiver.receives(name))

    # Connecting.

    def listen(self, name: str = "", until: float = math.inf) -> None:
        """Connect for a lock ``until`` (monotonic), if need be. Raises ``LockUnavailable``."""
        with _listening():
            while not self.receives(name):
                self._connect(name).result(until)

    def _connect(self, name: str) -> InThread[None]:
        """Connect, if no other caller does at the moment; callers meanwhile share the outcome."""
        with self.mutex:
            if self._attempt is None or self._attempt.done:  # if it needed no thread
                self._attempt = InThread(partial(self._connect_now, name))
            return self._attempt

    def _connect_now(self, name: str) -> None:
        try:
            if not self.receives(name):  # another attempt may just have ended
                self.receiver.connect(name)
            self._closed = False
            self._thread_may_lead.ring()
        finally:
            self._attempt = None

    async def alisten(self, name: str = "") -> None:
        """Do as ``listen`` without blocking the event loop, and have a thread read."""
        with _listening():
            while not self.receives(name):
                await self._connect(name).aresult()
        if self._thread is None:
            await InThread(self._start_thread).aresult()

    def _start_thread(self) -> None:
        with self.mutex:
            if self._thread is None:
                name = "django-redis-lock-listener"
                thread = threading.Thread(target=self._lead_for_ever, name=name, daemon=True)
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """Close the connection. Waiters open another, which the last of them closes."""
        self._retired = True
        self._close()

    def _close(self) -> None:
        self._closed = True
        self._thread_may_lead.ring()
        self.receiver.close()

    # Waiters.

    def join(self, waiter: LocalWaiter) -> None:
        super().join(waiter)
        self._thread_may_lead.ring()

    def leave(self, waiter: LocalWaiter) -> None:
        super().leave(waiter)
        self._pass_lead(waiter)  # its ``wait`` may have been interrupted at the end
        if self._retired and not self._waiters:
            self._close()

    def lost(self) -> None:
        if self.heart is not None:
            self.heart.ask_first()

    def wait(self, waiter: LocalWaiter, until: float) -> None:
        try:
            while (left := waiter.wakes_at(until) - monotonic()) > 0:
                if not self._take_lead(waiter):
                    self._sleep(waiter, until)
                    continue
                if not self.receiver.receive(min(left, READ_FOR)):  # it has no connection
                    self._sleep(waiter, monotonic() + min(left, READ_FOR))
                if self.heart is not None and monotonic() >= self.heart.overdue_at:
                    self.heart.beat()
        finally:
            self._pass_lead(waiter)

    def _sleeps_until(self, waiter: LocalWaiter, until: float) -> float:
        return super()._sleeps_until(waiter, until) if self._leader is not None else -math.inf

    async def _asleep(self, waiter: LocalWaiter, until: float) -> None:
        if self._thread is None:
            await self.alisten(waiter.request.name)
        await super()._asleep(waiter, until)

    # Leading.

    def _lead_for_ever(self) -> None:
        thread = threading.current_thread()
        try:
            while not self._closed:
                if self._waiters and self._take_lead(thread):
                    while self._waiters and self.receiver.receive(LONGEST_SLEEP):
                        pass
                    self._pass_lead(thread)
                self._thread_may_lead.wait(math.inf)
        finally:
            self._thread = None
            self._pass_lead(thread)

    def _take_lead(self, candidate: object) -> bool:
        # The leader is stored, rather than a mutex held: wherever a signal handler raises,
        # ``_pass_lead`` still knows whose lead it has to end.
        with self.mutex:
            if self._leader is None:
                self._leader = candidate
            return self._leader is candidate

    def _pass_lead(self, leaver: object) -> None:
        """End the lead of a leaver, if it leads; if there is no leader, wake a candidate."""
        with self.mutex:
            if self._leader is leaver:
                self._leader = None
            if self._leader is not None or self._thread is leaver:
                return
            if self._thread is not None:
                self._thread_may_lead.ring()
                return
            for waiter in self.present():
                if waiter.sleeper is not None and waiter.wake():
                    return


@contextlib.contextmanager
def _listening() -> Iterator[None]:
    try:
        yield
    except from_below(RedisError, OSError) as error:
        more = ". Grant the user what WAIT needs" * isinstance(error, NoPermissionError)
        raise LockUnavailable(f"Can't subscribe to lock notifications: {error}{more}") from error


class Listening:
    """An open connection on which messages come, once ``commands`` have asked for them.

    A router may have forgotten it, so after a long silence the first command is sent again. Raises
    ``RedisError`` and ``OSError``.
    """

    def __init__(self, origin: Any, commands: Sequence[tuple[str, ...]]) -> None:
        self.origin = origin
        try:
            origin.connect()
            self._connection = Connection(origin)
            self.send, self.close = self._connection.send, self._connection.close
            for command in commands:
                self.send(pack(command))
            for _ in commands:
                self._connection.read_confirmed()
        except BaseException:
            origin.disconnect()
            raise
        self._sign_of_life = pack(commands[0])
        self._seen_at, self._asked_at = monotonic(), 0.0

    def receive(self, seconds: float) -> Any:
        """Return a message, or ``NOTHING`` if none begins to arrive within some seconds."""
        return self._note(self._connection.receive(min(seconds, self.patience())))

    def receive_arrived(self) -> Any:
        """Return a message, or ``NOTHING`` if a socket that does not block has none."""
        return self._note(self._connection.read_arrived())

    def _note(self, message: Any) -> Any:
        if isinstance(message, Exception):
            raise message
        if message is not NOTHING:
            self._seen_at = monotonic()
        return message

    def patience(self) -> float:
        """Return how many seconds of silence are normal. Raises ``OSError`` after a longer one."""
        now = monotonic()
        if now - self._seen_at < SILENCE:
            return self._seen_at + SILENCE - now
        if self._asked_at < self._seen_at:
            self.send(self._sign_of_life)
            self._asked_at = now
        if now - self._asked_at > ANSWER_WITHIN:
            raise OSError(f"nothing received for {now - self._seen_at:.0f} s")
        return max(0.001, self._asked_at + ANSWER_WITHIN - now)


class Subscription:
    """Receives by pub/sub. ``dial`` makes a connection that is not open yet."""

    registry: ReceivingRegistry
    kind = "c"  # the letter for a process that receives so; see ``common.lua``

    def __init__(self, dial: Callable[[], Any], prefix: str) -> None:
        self._dial = dial
        self._prefix = prefix

    def reset(self) -> None:
        self.connection: Listening | None = None

    def leave_to_parent(self) -> None:
        if self.connection is not None:
            leave_to_parent(self.connection.origin)

    def receives(self, name: str) -> bool:
        return self.connection is not None

    def connect(self, name: str) -> None:
        self.connection = Listening(self._dial(), [self._sign_of_life])

    @property
    def _sign_of_life(self) -> tuple[str, ...]:
        # Subscribing again changes nothing, and needs no further permission.
        return "SUBSCRIBE", f"{self._prefix}-grant:{self.registry.waits_in('')}"

    def close(self) -> None:
        if self.connection is not None:
            self._drop(self.connection)

    def receive(self, seconds: float) -> bool:
        connection = self.connection
        if connection is None:
            return False
        try:
            self._receive(connection, seconds)
        except BaseException as error:
            self._drop(connection)  # it may have been interrupted in the middle of a message
            if not isinstance(error, from_below(*BROKEN)):
                raise
        return True

    def _receive(self, connection: Listening, seconds: float) -> None:
        message = connection.receive(seconds)
        if message is not NOTHING:
            self._take(message)

    def _take(self, message: Any) -> None:
        if message[0] == b"message":
            self.registry.take_in(message[2])

    def _drop(self, connection: Listening) -> None:
        if self.connection is connection:
            self.connection = None
        self.registry.lost()
        connection.close()


class PoppedList(Subscription):
    """Receives what is pushed to the inbox of the process, by BLPOP, for want of channels."""

    kind = "i"

    @property
    def _inbox(self) -> str:
        return f"{self._prefix}-inbox:{self.registry.waits_in('')}"

    def connect(self, name: str) -> None:
        self._popping = False
        super().connect(name)

    @property
    def _sign_of_life(self) -> tuple[str, ...]:
        return "LLEN", self._inbox

    def _receive(self, connection: Listening, seconds: float) -> None:
        if not self._popping:
            self._popping = True
            connection.send(pack(["BLPOP", self._inbox, str(ROUND)]))
        super()._receive(connection, seconds)

    def _take(self, message: Any) -> None:
        self._popping = isinstance(message, int)  # else it is the answer to BLPOP
        if isinstance(message, list):
            self.registry.take_in(message[1])
