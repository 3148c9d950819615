"""A lease: the proof that a lock is held, as far as this process knows."""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Callable
from enum import Enum
from time import monotonic
from typing import Any

from django_redis_lock.support.arguments import to_json
from django_redis_lock.support.process import current_process, known_process


class Request:
    """What one acquisition asks for. It keeps its token however often it is sent."""

    # Milliseconds. A lock with no expiry is first taken with this lease, which a second call then
    # removes. So a grant or a reply that is lost can't leave a lock that no holder can release.
    PROBATION = 10_000

    waits_in = ""  # what the server calls the process it waits in, once sent to join the queue
    position = 0  # in the queue, by which it comes back
    when_waiting: Any = None  # returns the steps to take once, when it begins to wait
    before_sleep: Callable[[], float] | None = None  # returns when to call it again, or raises
    until = math.inf  # when (monotonic) its caller gives up on a silent server
    patient = True  # as of a call
    sent = False  # sent and not withdrawn: the server may have carried it out, or still may
    under_way = False  # sent and not answered, so that a call may still arrive
    shared = False  # whether others may hold the lock at the same time; its record says how many
    from_token_id = ""  # whose lock it takes over, ahead of the queue
    max_waiters: int | None = None
    full = False  # max_waiters callers wait already

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
        """Whether the server may hold a lock for it, which this process has to give back."""
        return self.sent and self.process is known_process()

    @property
    def longest(self) -> float:
        """Seconds after which a lock that was taken for it expires."""
        return math.inf if self.timeout is None else self.timeout

    @property
    def entry(self) -> str:
        """What identifies to the server who leaves the queue."""
        return f"{self.waits_in} {token_id(self.token.encode())} {self.lease_ms} {self.record}"


class State(Enum):
    HELD = 1
    RELEASING = 2  # its release was begun, and is completed in the background
    RELEASED = 3  # the server has answered it
    LOST = 4


class Lease:
    """A lock held under a token until a moment of the local clock. Its methods alone change it."""

    state = State.HELD
    why_lost = ""  # why, once its holder was notified of the loss
    verify_by: float | None = None  # when (monotonic) the server takes it back, unless claimed
    left_at: float | None = None  # when (monotonic) an unanswered release or detach was first sent
    detached_as = ""  # the token of a detach that may have been carried out without an answer
    passed_to_message = False  # its release handed the lock off to a parked message
    renew_until = math.inf  # monotonic; no renewal sets a later end
    longest_set = 0.0  # the longest lease that its holder has set (s)
    version = 0  # counts the calls by which its holder sets it
    pending_updates: frozenset[object] = frozenset()  # those that are under way
    execution: weakref.ref[Any] | None = None  # the thread, greenlet or asyncio task of its holder
    entries = 1
    after_commit = False  # whether a caller that has it relies on it until its transaction ends
    required = False  # a caller has left it that does not run without

    def __init__(self, request: Request, fence: int, deadline: float) -> None:
        self.name = request.name
        self.token = request.token
        self.timeout = request.timeout
        self.auto_renew = request.auto_renew
        self.record = request.record
        self.process = request.process
        self.fence = fence
        self.began, self.deadline = monotonic(), deadline
        # Whether others may hold the lock at the same time, and whether that is certain: else its
        # downgrade may not have been carried out.
        self.shared = self.permit = request.shared

    @property
    def remaining(self) -> float:
        """Seconds left by the local clock; infinite for a lease with no expiry."""
        return max(0.0, self.deadline - monotonic())

    @property
    def passed(self) -> bool:
        return monotonic() >= self.deadline

    @property
    def lost(self) -> bool:
        return self.state is State.LOST

    @property
    def valid(self) -> bool:
        """Whether this process holds the lock."""
        return self.state is State.HELD and not self.passed and self.process is current_process()

    @property
    def longest(self) -> float:
        """Seconds after which the lock expires: the server may not know of a shorter lease."""
        return math.inf if self.timeout is None else max(self.timeout, self.longest_set)

    def lose(self, reason: str = "") -> bool:
        """Note a loss; return whether its holder was not notified of one, for a reason, before."""
        self.state, notified = State.LOST, bool(self.why_lost)
        self.why_lost = self.why_lost or reason
        return not notified

    def handed_off(self, verify_by: float) -> None:
        self.verify_by = verify_by

    def begin_release(self) -> bool:
        """Give it up; return whether to send a release: of a lost one, if one was sent before."""
        if self.state is State.LOST:
            return self.left_at is not None
        self.state = State.RELEASING
        self.left_at = self.left_at or monotonic()
        return True

    def released(self) -> None:
        if self.state is State.RELEASING:
            self.state = State.RELEASED

    def detach_sent(self, at: float | None, token: str) -> None:
        self.left_at, self.detached_as = self.left_at or at, token

    def pass_to_message(self) -> None:
        self.passed_to_message = True

    def renewed(self, left_ms: int | None, asked_at: float, *, current: bool = True) -> None:
        """Note what the server says is left: -1 for no end, -2 for not held, ``None`` if unknown.

        Unless it is ``current``, the lease was set meanwhile.
        """
        if left_ms is None:
            return
        if left_ms < -1:
            self.lose()
            return
        self.verify_by = None
        if current:
            self.deadline = math.inf if left_ms < 0 else asked_at + left_ms / 1000
            if self.state is State.HELD:
                self.left_at = None  # the detach was not carried out

    def begin_update(self, call: object, lease_ms: int) -> None:
        """Note that a call sets it to some ms (-1: no end, 0: only asks), a shorter one now."""
        self.pending_updates |= {call}
        self.shorten(lease_ms / 1000 if lease_ms > 0 else math.inf)
        self.longest_set = max(self.longest_set, math.inf if lease_ms < 0 else lease_ms / 1000)

    def end_update(self, call: object) -> None:
        self.pending_updates -= {call}

    def shorten(self, seconds: float) -> None:
        """Let it end in some seconds at the latest, whatever a renewal under way finds."""
        self.version += 1
        self.deadline = min(self.deadline, monotonic() + seconds)

    def renew_for(self, seconds: float | None, since: float) -> None:
        """Let renewals set no later end than some seconds after a moment (monotonic)."""
        self.renew_until = since + (math.inf if seconds is None else seconds)

    def strengthen(self, wanted: Request, max_hold: float | None) -> None:
        """Renew it for another caller as well, at least as the request says."""
        if wanted.timeout is None:
            self.timeout, self.auto_renew = None, False
        elif wanted.auto_renew and self.timeout is not None:
            before = self.renew_until if self.auto_renew else 0.0
            self.renew_for(max_hold, monotonic())
            self.renew_until = max(before, self.renew_until)
            self.timeout, self.auto_renew = max(self.timeout, wanted.timeout), True

    def begin_downgrade(self, record: str) -> None:
        self.shared, self.record = True, record

    def downgraded(self, fence: int, deadline: float) -> None:
        self.permit, self.fence, self.deadline = True, fence, deadline

    def rely(self, *, after_commit: bool = False, required: bool = False) -> None:
        self.after_commit |= after_commit
        self.required |= required

    def bind(self, execution: object, *, after_commit: bool) -> None:
        self.entries, self.execution = 1, weakref.ref(execution)
        self.after_commit |= after_commit

    def enter(self) -> bool:
        """Enter it once more; return False if it can't be entered any more."""
        if not self.entries or not self.valid:
            return False
        self.entries += 1
        return True

    def exit(self) -> bool:
        """Leave one entry; return whether that was the last."""
        self.entries = max(0, self.entries - 1)
        return not self.entries


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)  # 0.29 s are 290 ms


def write_record(lease: float | None = None, max_hold: float | None = None, **origin: Any) -> str:
    """Return the record of a holder in the current thread, which has the lock alone.

    It is the holder's limit, and its other fields as JSON; see ``permits.lua``. ``lease`` and
    ``max_hold`` are given if it is renewed. Readers need them, who may have other settings.
    """
    record = "- " + known_process().record()
    if lease is not None:
        record += f',"auto_renew":true,"lease":{milliseconds(lease)}'
        if max_hold is not None:
            record += f',"max_hold":{milliseconds(max_hold)}'
    if any(origin.values()):
        given = {key: value for key, value in origin.items() if value}
        record += "," + to_json(given)[1:-1]
    return record + "}"


def shared_record(record: str, limit: int | None) -> str:
    return f"{'*' if limit is None else limit} {record.partition(' ')[2]}"


def limit_in(record: str) -> float | None:
    """Return how many may share a lock with the holder of a record; ``None`` for one alone."""
    limit = record.partition(" ")[0]
    return None if limit == "-" else math.inf if limit == "*" else int(limit)


def write_value(token: str, fence: int, record: str) -> bytes:
    """Return the value of a lock that its holder has claimed; see ``base.lua``."""
    return f"{token} {fence} - {record}".encode()


def token_id(token: bytes) -> str:
    """Return the public digest of a token, as the scripts do. The 128 random bits stay secret."""
    return hashlib.sha1(token, usedforsecurity=False).hexdigest()[:16]
