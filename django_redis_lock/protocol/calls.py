"""The steps that the protocol asks of a driver: calls to the server, waits, pauses, signals."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

from django.dispatch import Signal

from django_redis_lock.protocol.audit import PAGE, Fields
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import Hub, Waiter


class Step:
    """Something that a driver does on behalf of the protocol."""

    __slots__ = ()


class Call(Step):
    """One round trip: an operation that is carried out whole, and is safe to send twice."""

    __slots__ = ("first_sent_at", "patient", "sent_at")

    def __init__(self, *, patient: bool = True) -> None:
        self.patient = patient  # whether to send it again where no answer comes
        self.first_sent_at: float | None = None
        self.sent_at = 0.0  # monotonic; set by the backend before each sending

    @property
    def resent(self) -> bool:
        """Whether it went out more than once, so that an earlier sending may have done its work."""
        return self.first_sent_at is not None and self.sent_at != self.first_sent_at

    def sending(self) -> None:
        """Note that the call goes out now."""
        self.sent_at = monotonic()
        if self.first_sent_at is None:
            self.first_sent_at = self.sent_at


class Acquire(Call):
    """Take the lock, or join its waiters; see ``acquire.lua`` for the answer."""

    __slots__ = ("channel", "request")

    def __init__(self, request: Request, channel: str) -> None:
        super().__init__()
        self.request = request
        self.channel = channel

    def sending(self) -> None:
        self.request.sent = True
        super().sending()


class Release(Call):
    """Release the lock; with an ``entry``, or else leave its waiters. Answers 1 or 0.

    With ``unclaimed`` only a lock that was handed over and that nobody has claimed.
    """

    __slots__ = ("entry", "name", "token", "unclaimed")

    def __init__(
        self,
        name: str,
        token: str,
        entry: str = "",
        *,
        patient: bool = True,
        unclaimed: bool = False,
    ) -> None:
        super().__init__(patient=patient)
        self.name = name
        self.token = token
        self.entry = entry
        self.unclaimed = unclaimed


class Claim(Call):
    """Claim a lock that was handed over, with a lease to ``end_ms`` of the server's clock.

    Answers 1, or 0 where it was taken back.
    """

    __slots__ = ("end_ms", "name", "token")

    def __init__(self, name: str, token: str, end_ms: int) -> None:
        super().__init__(patient=False)
        self.name = name
        self.token = token
        self.end_ms = end_ms


class AcquireMany(Call):
    """Take several locks or none, waiting for none; see ``acquire_many.lua`` for the answer."""

    __slots__ = ("requests",)

    def __init__(self, requests: Sequence[Request]) -> None:
        super().__init__()
        self.requests = requests

    def sending(self) -> None:
        for request in self.requests:
            request.sent = True
        super().sending()


class ReleaseMany(Call):
    """Release several locks, as (name, token); answers 1 or 0 for each."""

    __slots__ = ("holds",)

    def __init__(self, holds: Sequence[tuple[str, str]], *, patient: bool = True) -> None:
        super().__init__(patient=patient)
        self.holds = holds


class TakeOver(Call):
    """Take the lock from the holder of a token, before all who wait; see ``take_over.lua``."""

    __slots__ = ("request", "token_id")

    def __init__(self, request: Request, token_id: str) -> None:
        super().__init__()
        self.request = request
        self.token_id = token_id

    def sending(self) -> None:
        self.request.sent = True
        super().sending()


class Renew(Call):
    """Set leases, as (name, token, ms); answers what is left of each: see ``renew.lua``.

    With ``at_least`` a longer one is left alone.
    """

    __slots__ = ("at_least", "leases")

    def __init__(
        self,
        leases: Sequence[tuple[str, str, int]],
        *,
        at_least: bool = False,
        patient: bool = True,
    ) -> None:
        super().__init__(patient=patient)
        self.leases = leases
        self.at_least = at_least


class Inspect(Call):
    """Read who holds locks; answers as ``inspect.lua`` does."""

    __slots__ = ("names",)

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names


class Glance(Call):
    """Read what is stored for a lock; answers the value, ``None`` where it is free."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class ForceRelease(Call):
    """Take a lock from the holder of a token, and write ``entry`` into the audit.

    Answers 1, or 2 where the audit did not take the entry; ``None`` when it holds it no more and no
    earlier sending of this took it. The audit keeps ``cap`` entries beside this one.
    """

    __slots__ = ("cap", "deleted", "entry", "name", "token_id")

    def __init__(self, name: str, token_id: str, entry: Fields, cap: int) -> None:
        super().__init__()
        self.name = name
        self.token_id = token_id
        self.entry = entry
        self.cap = cap
        self.deleted = False  # whether a server without scripts may have deleted the lock


Breaking = Inspect, ForceRelease
"""The calls of a release by force. A server that answers one of them with an error has released
nothing; others may have been carried out halfway, or were and too few replicas heard of it."""


class NoteLosses(Call):
    """Write into the audit which leases were found lost; answers how many were news to it.

    The audit keeps ``cap`` of them.
    """

    __slots__ = ("cap", "entries")

    def __init__(self, entries: Sequence[Fields], cap: int) -> None:
        super().__init__(patient=False)
        self.entries = entries[-cap:]
        self.cap = cap


class ReadHistory(Call):
    """Read a page of the audit, of one lock or of all for ``""``; answers as ``history.lua`` does.

    It begins before the id ``before``, ``+`` for the newest entry; ``most`` entries are wanted.
    """

    __slots__ = ("before", "count", "name")

    def __init__(self, name: str, before: str, most: int) -> None:
        super().__init__()
        self.name = name
        self.before = before
        self.count = PAGE if name else min(PAGE, most)


class ReadLine(Call):
    """Read who waits for a lock, all or the first so many; answers as ``waiting.lua`` does."""

    __slots__ = ("limit", "name")

    def __init__(self, name: str, limit: int | None = None) -> None:
        super().__init__()
        self.name = name
        self.limit = limit


class ReadIndex(Call):
    """Read a page of the held locks; answers as ``index.lua`` does."""

    __slots__ = ("after", "count", "start")

    def __init__(self, start: str, after: bytes, count: int) -> None:
        super().__init__()
        self.start = start
        self.after = after
        self.count = count


class Listen(Step):
    """See to it that grants of a lock for this process are received at a hub."""

    __slots__ = ("hub", "name")
    patient = True

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub = hub
        self.name = name


class Wait(Step):
    """Sleep until the waiter is granted its lock, is nudged to look again, or ``until``."""

    __slots__ = ("hub", "until", "waiter")

    def __init__(self, hub: Hub, waiter: Waiter, until: float) -> None:
        self.hub = hub
        self.waiter = waiter
        self.until = until


class Post(Step):
    """Send a call without waiting for its answer, which nobody reads."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call = call


class Pause(Step):
    """Let some seconds pass before the server is asked again."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Emit(Step):
    """Send a Django signal; a failing receiver is logged and changes nothing."""

    __slots__ = ("arguments", "signal")

    def __init__(self, signal: Signal, arguments: dict[str, Any]) -> None:
        self.signal = signal
        self.arguments = arguments
