"""A lease: the proof that a lock is held, as far as this process knows."""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Any

from django_redis_lock.support.arguments import to_json
from django_redis_lock.support.process import known_process


class Request:
    """What one acquisition asks for. It keeps its token however often it is sent."""

    # Milliseconds. A lock with no expiry is first taken with this lease, which a second call then
    # removes. So a grant or a reply that is lost can't leave a lock that nobody can release.
    PROBATION = 10_000

    waits_in = ""
    """What the server calls the process in which it waits, once it was sent to join the queue."""
    position = 0
    """Its position in the queue, by which it comes back if it loses that."""
    when_waiting: Any = None
    """Returns the steps to take once, when it begins to wait."""
    before_sleep: Callable[[], float] | None = None
    """Ends a wait by what it raises, or returns when (monotonic) it has to be called again."""
    until = math.inf
    """When (monotonic) its caller gives up on a silent server."""
    patient = True
    """Whether it is sent again for a short time if the server refuses it."""
    sent = False
    """Sent and not withdrawn: the server may have carried it out, or still may."""
    under_way = False
    """Sent and not answered, so that a call may still arrive."""
    shared = False
    """Whether others may hold the lock at the same time; its record says how many."""
    max_waiters: int | None = None
    """How many may wait."""
    when_full: Any = None
    """Called when so many wait already; then it does not wait."""

    def __init__(
        self, name: str, token: str, timeout: float | None, record: str, *, auto_renew: bool = False
    ) -> None:
        self.name = name
        self.token = token
        self.timeout = timeout
        self.auto_renew = auto_renew
        self.record = record
        self.lease_ms = self.PROBATION if timeout is None else milliseconds(timeout)
        self.process = known_process()

    @property
    def may_be_held(self) -> bool:
        """Whether the server may hold a lock for it that this process gives up."""
        return self.sent and self.process is known_process()

    @property
    def longest(self) -> float:
        """Seconds after which a lock that was taken for it expires."""
        return math.inf if self.timeout is None else self.timeout

    @property
    def entry(self) -> str:
        """What tells the server who leaves the queue."""
        return f"{self.waits_in} {token_id(self.token.encode())} {self.lease_ms} {self.record}"


class Lease:
    """A lock held under a token until a moment of the local monotonic clock."""

    lost = False
    """Known to be lost."""
    why_lost = ""
    """Why, once its holder was notified of the loss."""
    version = 0
    """Counts the calls by which its holder sets it."""
    pending_updates: frozenset[object] = frozenset()
    """The calls of these that are under way."""
    verify_by: float | None = None
    """Until when (monotonic) the server holds a lock that was handed off and not claimed; ``None``
    once the lease is confirmed."""
    release_sent_at: float | None = None
    """When (monotonic) a release or a detach that was not answered was first sent."""
    detached_as = ""
    """The token of a detach that may have been carried out without an answer."""
    passed_to_message = False  # its release handed the lock off to a parked message
    given_up = False
    """Its release was begun, and is completed in the background."""
    renew_until = math.inf
    """Monotonic; no renewal sets a later end."""
    execution: weakref.ref[Any] | None = None
    """The thread, greenlet or asyncio task that holds it."""
    entries = 1
    after_commit = False
    """Whether a caller that has it relies on it until its transaction ends."""
    required = False  # a caller has left it that does not run without
    shared = False
    """Whether others may hold the lock at the same time."""
    permit = False
    """Whether that is certain; else its downgrade may not have been carried out."""

    def __init__(self, request: Request, fence: int, deadline: float) -> None:
        self.name = request.name
        self.token = request.token
        self.timeout = request.timeout
        self.auto_renew = request.auto_renew
        self.record = request.record
        self.process = request.process
        self.fence = fence
        self.began, self.deadline = monotonic(), deadline
        self.shared = self.permit = request.shared
        # The longest that was asked for (s). The server may not know that it was made shorter.
        self.longest = math.inf if request.timeout is None else request.timeout

    @property
    def remaining(self) -> float:
        """Seconds left by the local clock; infinite for a lease with no expiry."""
        return max(0.0, self.deadline - monotonic())

    @property
    def passed(self) -> bool:
        """Whether the lease has ended by the local clock."""
        return monotonic() >= self.deadline

    def renewed(self, left_ms: int | None, asked_at: float) -> bool:
        """Note what the server says is left of the lease; return whether the lock is still held.

        ``left_ms`` is -1 for no end, -2 for not held, and ``None`` if the server can't tell.
        """
        if left_ms is None:
            pass
        elif left_ms < -1:
            self.lost = True
        else:
            self.deadline = math.inf if left_ms < 0 else asked_at + left_ms / 1000
            self.verify_by = None
            if not self.given_up:
                self.release_sent_at = None  # the detach was not carried out
        return not self.lost


def milliseconds(seconds: float) -> int:
    """Return a duration in whole milliseconds, rounded so that 0.29 s is 290 ms."""
    return round(seconds * 1000)


def write_record(
    *, auto_renew: bool, lease: float | None = None, max_hold: float | None = None, **origin: Any
) -> str:
    """Return the record of a holder in the current thread, which has the lock alone.

    A record is the limit of a holder and its other fields as JSON; see ``permits.lua``. ``origin``
    has its ``metadata``, ``marks``, ``task_id`` and ``task_name``. A renewed lock's record has the
    lease of a renewal (``lease``) and for how long it is renewed (``max_hold``), both in
    milliseconds, since those who read it may have other settings.
    """
    record = "- " + known_process().record()
    if auto_renew:
        record += ',"auto_renew":true'
        if lease is not None:
            record += f',"lease":{milliseconds(lease)}'
        if max_hold is not None:
            record += f',"max_hold":{milliseconds(max_hold)}'
    if any(origin.values()):
        given = {key: value for key, value in origin.items() if value}
        record += "," + to_json(given)[1:-1]
    return record + "}"


def shared_record(record: str, limit: int | None) -> str:
    """Return a record as that of a holder that shares the lock."""
    return f"{'*' if limit is None else limit} {record.partition(' ')[2]}"


def limit_in(record: str) -> float | None:
    """Return how many may share a lock with the holder of a record; ``None`` for one alone."""
    limit = record.partition(" ")[0]
    return None if limit == "-" else math.inf if limit == "*" else int(limit)


def write_value(token: str, fence: int, record: str) -> bytes:
    """Return the value of a lock that its holder has claimed; see ``base.lua``."""
    return f"{token} {fence} - {record}".encode()


def token_id(token: bytes) -> str:
    """Return the public digest of a token: the first 16 hexadecimal digits of its SHA-1.

    The Lua scripts compute the same. A token has 128 random bits, so its digest does not reveal it.
    """
    return hashlib.sha1(token, usedforsecurity=False).hexdigest()[:16]
