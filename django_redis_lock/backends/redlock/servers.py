"""The servers of a quorum: what is sent to each, and the thread that sends it.

Each has one connection and one thread, which a server that is slow, paused or gone delays alone.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import math
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import redis
from django.conf import settings

from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.backends.redlock.votes import CONTESTED, PENDING, Count, NoQuorum, Pending
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call, Step
from django_redis_lock.protocol.drivers import Port
from django_redis_lock.support import threads
from django_redis_lock.support.process import forget_after_fork
from django_redis_lock.support.text import without_passwords
from django_redis_lock.transport.clients import BlockingClient
from django_redis_lock.transport.location import databases_of
from django_redis_lock.transport.packing import Packed, Packing, Script, numbers

ACQUIRE = Script("quorum_acquire")
CONFIRM = Script("quorum_confirm")
RELEASE = Script("quorum_release")
READ_FENCE = Script("quorum_fence")
ADMIT = Script("quorum_admit")

READ_FOR = 5.0  # seconds without an answer after which a connection is closed
LAG = 0.02  # seconds, at least, for which a caller waits for the last answers to a contested vote


Vote = calls.Acquire | calls.TakeOver
Note = Callable[[int, Any], object]


def ignore(*answer: Any) -> None:
    """Do nothing about an answer, or a sending."""


@dataclass(eq=False, slots=True)
class Job:
    """A call to one server. ``reply`` is called with its answer, or with an exception."""

    packed: Packed
    until: float  # when (monotonic) it is too late to send it
    reply: Callable[[Any], object] = ignore
    owed: bool = False  # whether to send it again after a failure


class Executor(threads.Background):
    """Sends calls to a server in order. Once one is unanswered for long, others fail at once."""

    RETRY_EVERY = 0.5  # seconds between attempts to send owed calls, while there are no others
    MOST_OWED = 1000
    """How many calls are owed to a server at most. Older releases are left to the lease."""

    def __init__(self, client: Callable[[], BlockingClient], timeout: float) -> None:
        super().__init__("django-redis-lock-quorum")
        self._client = client
        self._timeout = timeout
        forget_after_fork(self)
        _executors.add(self)

    def reset(self) -> None:
        super().reset()
        self._jobs: deque[Job] = deque()
        self._owed: list[Job] = []
        self._busy_since: float | None = None
        self._finishing: list[threads.OneShotEvent] = []  # to ring once all jobs were sent

    after_fork = reset

    def submit(self, job: Job) -> None:
        since = self._busy_since
        if since is not None and monotonic() - since > self._timeout and not job.owed:
            job.reply(late())
            return
        self._jobs.append(job)
        with contextlib.suppress(RuntimeError):  # the process is exiting
            self.wake(0.0)

    def finish(self, until: float) -> None:
        """Wait ``until`` (monotonic) for what was submitted to be sent."""
        event = threads.OneShotEvent()
        self._finishing.append(event)  # before the check, so that no end is missed
        if self._jobs or self._busy_since is not None:
            event.wait(until)

    def close(self) -> None:
        self.finish(monotonic() + self._timeout)
        self._owed = []

    def work(self) -> float:
        now = self._busy_since = monotonic()
        jobs, self._owed = self._owed, []
        while self._jobs:
            jobs.append(self._jobs.popleft())
        due = [job for job in jobs if now < job.until]  # no caller waits for the others any more
        try:
            answers = self._client().call_all([job.packed for job in due]) if due else []
        except Exception as error:  # several classes, if the connection is closed meanwhile
            answers = [error] * len(due)
            self._owed = [job for job in due if job.owed][-self.MOST_OWED :]
        finally:
            self._busy_since = None
            while self._finishing and not self._jobs:
                self._finishing.pop().ring()
        for job, answer in zip(due, answers, strict=True):
            job.reply(numbers(answer))
        return monotonic() + self.RETRY_EVERY if self._owed else math.inf


_executors: weakref.WeakSet[Executor] = weakref.WeakSet()


@atexit.register
def _finish() -> None:
    """Let releases be sent before the process exits; for half a second at most."""
    deadline = monotonic() + 0.5
    for executor in list(_executors):
        executor.finish(deadline)


def late() -> Exception:
    return redis.exceptions.TimeoutError("No answer in time")


class QuorumCall(Step):
    """The step that waits for the answers to a call that was sent to several servers.

    ``count``, one of the functions in ``votes``, says what they amount to. After ``timeout``
    seconds, or soon after that is ``CONTESTED``, a missing answer counts as an exception. ``note``
    is called with the index of a server and each answer, even with those that come later.
    """

    def __init__(self, size: int, count: Count, timeout: float, note: Note) -> None:
        self.sendings: list[int] = []  # the index of a server for each time that it was sent to it
        self._sent_at = monotonic()
        self.until = self._sent_at + timeout
        self.answers: list[Any] = []  # that were counted last
        self._received: list[Any] = [PENDING] * size
        self._count = count
        self._note = note
        self._wake: Callable[[], object] | None = None

    def receive(self, index: int, answer: Any) -> None:
        self._note(index, answer)
        self._received[index] = answer
        missing = self._received.count(PENDING)
        if self._wake is not None and missing <= len(self._received) // 2:
            self._wake()

    def outcome(self, wake: Callable[[], object]) -> Any:
        """Return what the answers amount to; if that is ``Pending``, have ``wake`` called.

        Raises ``NoQuorum`` if all have come and they are too few.
        """
        self._wake = wake  # before the count, so that no answer is missed
        self.answers = list(self._received)
        now = monotonic()
        if now >= self.until:
            self.answers = [late() if item is PENDING else item for item in self.answers]
        outcome = self._count(self.answers)
        if outcome is CONTESTED:
            self.until = min(self.until, now + max(LAG, now - self._sent_at))
        elif outcome is PENDING and PENDING not in self.answers:
            raise NoQuorum(self.answers)
        return outcome


class Answers(Port):
    """The port of a call to several servers: it waits for their answers."""

    def call(self, asked: QuorumCall) -> Any:
        event = threads.OneShotEvent()
        while isinstance(outcome := asked.outcome(event.ring), Pending):
            event.wait(asked.until)
        return outcome

    async def acall(self, asked: QuorumCall) -> Any:
        while True:
            event = threads.AsyncOneShotEvent()
            if not isinstance(outcome := asked.outcome(event.ring), Pending):
                return outcome
            await event.wait(asked.until)


@dataclass(slots=True, eq=False)
class ReadFences(Call):
    """Read the last fence that each server knows, and whether the server votes."""

    delay_ms: int


@dataclass(slots=True, eq=False)
class Admit(Call):
    """Let restarted servers vote, and send them the last fence."""

    fence: int
    start: int | str = ""  # of the server that it is meant for; empty for any


class Server(RedisLockBackend):
    """One of the servers: how calls are packed for it, and what sends them."""

    def __init__(self, alias: str, prefix: str, location: str, timeout: float) -> None:
        super().__init__(alias, {"KEY_PREFIX": prefix, "LOCATION": location})
        self.executor = Executor(lambda: self.client, timeout)
        self._timeout = timeout
        self._packing = Packing(self.key_prefix)

    def __str__(self) -> str:
        return self.location.alias or without_passwords(self.location.url or "")

    @threads.cached_property_atomic
    def client(self) -> BlockingClient:
        """What the executor uses. Raises ``InvalidLockBackend``."""
        pool, reads_for = copy.copy(self.pool), max(READ_FOR, self._timeout)
        own = {"socket_timeout": reads_for, "socket_connect_timeout": self._timeout}
        pool.connection_kwargs = pool.connection_kwargs | own
        return BlockingClient(pool)

    def close(self) -> None:
        self.executor.close()
        if "client" in self.__dict__:
            self.__dict__.pop("client").close()
        super().close()

    def pack(self, call: Call) -> Packed:
        match call:
            case calls.Release():
                return self.release(call)
            case ReadFences():
                return self._packed(READ_FENCE, "", call.delay_ms)
            case Admit():
                return self._packed(ADMIT, "", call.fence, call.start)
        packed = self._packing.pack(call, ignore)  # it counts as sent when any server was asked
        packed.until = math.inf  # the QuorumCall ends in time; the connection serves others, too
        return packed

    def acquire(self, call: Vote, attempt: int, least: int, delay_ms: int) -> Packed:
        request = call.request
        former = call.token_id if isinstance(call, calls.TakeOver) else ""
        mine = request.token, request.lease_ms, request.record, request.name, _entry_of(call)
        return self._packed(ACQUIRE, request.name, *mine, least, delay_ms, former, attempt)

    def confirm(self, call: Vote, fence: int) -> Packed:
        request = call.request
        return self._packed(CONFIRM, request.name, request.token, fence, _entry_of(call))

    def release(self, call: calls.Release, attempt: int | str = "") -> Packed:
        """Pack a release, or the withdrawal of the vote for an attempt."""
        entry = call.entry.partition(" ")[2]
        return self._packed(RELEASE, call.name, call.token, call.name, entry, attempt)

    def _packed(self, script: Script, name: str, *args: int | str) -> Packed:
        keys = self._packing.quorum_keys(name)
        return Packed(script, keys, [*map(str, args)], ignore, repeatable=True)


def _entry_of(call: Vote) -> str:
    waits = isinstance(call, calls.Acquire) and call.waits_in
    return call.request.entry.partition(" ")[2] if waits else ""


def check_servers(alias: str, location: Any) -> list[str]:
    """Return the servers in LOCATION. Raises ``InvalidLockBackend``."""
    where = f"LOCKS[{alias!r}]['LOCATION']"
    if not isinstance(location, list | tuple):
        raise InvalidLockBackend(
            f"{where} must be a list of at least three servers, each an alias of CACHES or a "
            f"URL, not {location!r}."
        )
    count = len(location)
    if count < 3 or count % 2 == 0:
        raise InvalidLockBackend(
            f"{where} names {count} server{'' if count == 1 else 's'}: name 3, 5 or another odd "
            f"number, as an even one tolerates no more failures."
        )
    seen: dict[Any, str] = {}
    for item in location:
        if not isinstance(item, str) or not item:
            raise InvalidLockBackend(
                f"{where} has {item!r}: a server must be a str, an alias of CACHES or a URL."
            )
        configured = item if "://" in item else settings.CACHES.get(item)
        addresses = {(host, port) for host, port, _ in databases_of(configured)}
        for address in addresses or {(item, "")}:
            if address in seen:
                raise InvalidLockBackend(
                    f"{where} names one server twice: {seen[address]} and {item}. "
                    f"Name servers that fail independently."
                )
            seen[address] = item
    return list(location)
