"""The steps that the protocol yields, for ``drivers`` to carry out: calls, waits and signals."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, ClassVar, TypeVar

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.lease import Lease, Request
from django_redis_lock.signals import LockSignal

Result = TypeVar("Result")
RETRY_PAUSES = (0.0, 0.05, 0.2, 0.5)  # seconds before each resending of an unanswered call
RETRY_FOR = 2.0  # seconds after which no call is resent; a server that lets calls time out is down
GRACE = 0.28  # seconds that the server gets to answer once the wait of a caller has ended
PAGE = 50  # entries of the audit that one call reads, in half a millisecond: it blocks the server


class Step:
    """One thing that a generator asks its driver to do; the driver sends back the result."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.lock_name!r}>"  # without tokens, for tracebacks

    @property
    def lock_name(self) -> str:
        """The name of the lock that it is about; empty if that is none, or several."""
        subject = getattr(self, "waiter", self)
        return str(getattr(getattr(subject, "request", subject), "name", ""))


Steps = Generator[Step, Any, Result]  # yields steps, is sent their results, and returns its own


@dataclass(slots=True, eq=False, repr=False)
class Call(Step):
    """One round trip: an atomic operation that is safe to send twice."""

    patient: bool = field(default=True, kw_only=True)  # whether it is sent again if no answer comes
    until: float = field(default=math.inf, kw_only=True)
    """When (monotonic) its caller gives up; infinite: leave it to the socket timeout."""
    first_sent_at: float | None = field(default=None, init=False)
    sent_at: float = field(default=0.0, init=False)  # (monotonic) of the latest sending

    @property
    def resent(self) -> bool:
        """Whether an earlier sending may have succeeded."""
        return self.first_sent_at is not None and self.sent_at != self.first_sent_at

    def sending(self) -> None:
        self.sent_at = monotonic()
        self.first_sent_at = self.first_sent_at or self.sent_at


@dataclass(slots=True, eq=False, repr=False)
class _TakeOne(Call):
    request: Request

    def sending(self) -> None:
        self.request.sent = self.request.under_way = True
        Call.sending(self)

    def lease(self, answer: Any) -> Lease | None:
        """Return the lease that an answer grants, if it does."""
        request = self.request
        request.under_way = False
        if isinstance(answer, int):  # the fence, and nothing else: the lease is as asked
            return Lease(request, answer, self.sent_at + request.lease_ms / 1000)
        if answer is None or answer[0] <= 0:
            return None
        fence, ttl_ms = answer[0], answer[1]
        return Lease(request, fence, self.sent_at + ttl_ms / 1000 if ttl_ms >= 0 else math.inf)


@dataclass(slots=True, eq=False, repr=False)
class Acquire(_TakeOne):
    """Take the lock or join its queue; ``acquire.lua`` describes the answer."""

    waits_in: str  # what the server calls the process that waits; empty not to wait
    final: bool = field(default=False, kw_only=True)  # a refusal is the last answer: no wait


@dataclass(slots=True, eq=False, repr=False)
class TakeOver(_TakeOne):
    """Take the lock from the holder with a token id, ahead of the queue; see ``take_over.lua``."""

    token_id: str


@dataclass(slots=True, eq=False, repr=False)
class Release(Call):
    """Release the lock or, given an ``entry``, leave its queue. Answers if the token held it."""

    name: str
    token: str
    entry: str = ""
    shared: bool = field(default=False, kw_only=True)  # it certainly is; else either is tried
    unclaimed: bool = field(default=False, kw_only=True)  # only if handed off and not yet claimed


GiveBack = Callable[[Release, float], object]  # sends it in the background, for some seconds


@dataclass(slots=True, eq=False, repr=False)
class Claim(Call):
    """Claim a lock that was handed off. The answer is not used, so a backend need not await it."""

    name: str
    token: str
    fence: int
    end_ms: int  # when the lease ends, by the server's clock
    shared: bool = field(default=False, kw_only=True)
    patient: bool = field(default=False, kw_only=True)


@dataclass(slots=True, eq=False, repr=False)
class Renew(Call):
    """Set leases, given as (name, token, ms). Answers what is left of each; see ``renew.lua``."""

    leases: Sequence[tuple[str, str, int]]
    at_least: bool = field(default=False, kw_only=True)  # leave a longer lease alone


@dataclass(slots=True, eq=False, repr=False)
class Inspect(Call):
    """Read the holders of locks; ``inspect.lua`` describes the answer."""

    names: Sequence[str]
    skip: int = 0  # how many shared holders were read already


@dataclass(slots=True, eq=False, repr=False)
class SetLimit(Call):
    """Set how many permits of a lock there are, ``None`` to leave that to its callers."""

    name: str
    limit: int | None
    by: str


@dataclass(slots=True, eq=False, repr=False)
class ReadLimits(Call):
    """Read the limits that were set: a list of names, each followed by its limit."""


@dataclass(slots=True, eq=False, repr=False)
class ForceRelease(Call):
    """Take a lock from the holder with a token id, and write an entry into the audit.

    Answers 1; 2 if no entry was written, as for none; ``None`` if neither that holder has the lock
    nor an earlier sending took it.
    """

    name: str
    token_id: str
    entry: Mapping[str, str]
    cap: int  # how many entries the audit has beside this one


FORCED_RELEASE = Inspect, ForceRelease
"""Where one of them is answered with an error, nothing was released. Others may be partly done."""


@dataclass(slots=True, eq=False, repr=False)
class ReadHistory(Call):
    """Read a page of the audit, of one lock, or of all for ``""``; see ``history.lua``."""

    name: str
    before: str  # the id of the entry before which the page begins; ``+`` for the newest
    limit: int

    @property
    def count(self) -> int:
        return PAGE if self.name else min(PAGE, self.limit)


@dataclass(slots=True, eq=False, repr=False)
class ReadQueue(Call):
    """Read a page of the waiters of a lock; ``waiting.lua`` describes the answer."""

    name: str
    after: int = 0  # the position after which it begins


@dataclass(slots=True, eq=False, repr=False)
class ReadIndex(Call):
    """Read a page of the held locks, or of the queues of other locks; see ``index.lua``."""

    start: str
    after: bytes
    count: int
    queues: bool = False


@dataclass(slots=True, eq=False, repr=False)
class ReadPages(Call):
    """Read a page of the index of each of several servers or shards.

    ``None`` stands for an index that was read to its end and, in the answer, for a page that could
    not be read.
    """

    parts: Sequence[ReadIndex | None]

    def of(self, number: int) -> ReadIndex:
        """Return the call for one of them; after its end it reads nothing."""
        return self.parts[number] or ReadIndex("+inf", b"", 0)


def write_page(entries: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return entries, each a name and a lease end, in the form of the reply of ``index.lua``."""
    names, ends, name = [], [], b""
    for name, end in entries:
        names.append(b"" if b"\n" in name else name)
        ends.append(end)
    return [b"\n".join(names), b"\n".join(ends), name]


@dataclass(slots=True, eq=False, repr=False)
class Heartbeat(Call):
    """Report to a server, or a shard, that this process waits; see ``heartbeat.lua``."""

    process: str
    names: Mapping[str, str]  # of each lock the digest of its last waiter
    turn: int

    MOST: ClassVar[int] = 64

    def some(self) -> list[tuple[str, str]]:
        """Return those names that are sent in this turn."""
        pairs = [*self.names.items()]
        first = self.turn * self.MOST % max(len(pairs), 1)
        return (pairs[first:] + pairs[:first])[: self.MOST]


@dataclass(slots=True, eq=False, repr=False)
class ComeBack(Call):
    """Let waiters of a lock come back to its queue; ``come_back.lua`` describes the answer."""

    process: str
    name: str
    requests: Sequence[Request]


@dataclass(slots=True, eq=False, repr=False)
class Listen(Call):
    """Make a registry of waiters receive the grants of a lock for this process."""

    registry: Any
    name: str


@dataclass(slots=True, eq=False, repr=False)
class Wait(Step):
    """Sleep until the waiter has something to do, or until a time (monotonic)."""

    registry: Any
    waiter: Any
    until: float


class BeginToWait(Step):
    """Warn a caller whose wait will block an event loop."""

    __slots__ = ()


@dataclass(slots=True, eq=False, repr=False)
class Pause(Step):
    seconds: float


@dataclass(slots=True, eq=False, repr=False)
class Emit(Step):
    """Send a Django signal. A failing receiver is logged and changes nothing."""

    signal: LockSignal
    arguments: dict[str, Any]


def withdrawal(request: Request, *, patient: bool = False, until: float = math.inf) -> Release:
    entry = request.entry if request.waits_in else ""
    name, token = request.name, request.token
    return Release(name, token, entry, shared=request.shared, patient=patient, until=until)


def ask(call: Call) -> Steps[Any]:
    """Carry out a call, sending it again for a short time if the server can't be reached."""
    began = monotonic()
    # A caller that is late may have been stopped; that proves nothing about the server.
    call.until = max(call.until, began + GRACE)
    pauses = iter(RETRY_PAUSES if call.patient else ())
    while True:
        unproven = call.first_sent_at is not None
        try:
            return (yield call)
        except LockUnavailable as error:
            error.not_applied = error.not_applied and not (unproven or call.resent)
            if error.not_applied:
                call.first_sent_at = None  # as if it had not been sent
            pause = next(pauses, None)
            now = monotonic()
            error.silent = now - began > RETRY_FOR or now >= call.until
            if pause is None or error.silent or not error.passing or now + pause >= call.until:
                raise
        yield Pause(pause)
