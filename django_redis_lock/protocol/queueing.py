"""What a waiter asks the server, from joining the queue of a lock until it has the lock.

Like ``locking``, each function is a generator of steps.
"""

from __future__ import annotations

import math
import random
import re
from enum import Enum, auto
from time import monotonic
from typing import Any

from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Steps, ask
from django_redis_lock.protocol.lease import Lease, Request
from django_redis_lock.protocol.waiting import CLAIM, POLL_EVERY, Grant, Hub, LocalWaiter

OUTAGE_LIMIT = 10.0
"""Seconds that a waiter tolerates an unavailable server before it raises."""
_UNCLAIMED = re.compile(rb'^\S+ \d+ {"unclaimed":"(\d{1,16}) ')
"""Opens the value of a lock that was handed off and is not claimed yet; see ``common.lua``."""


def wait_in_queue(hub: Hub, request: Request, until: float) -> Steps[Lease | None]:
    """Join the queue of a lock; return the lease, or ``None`` if it was not granted ``until``."""
    yield from _listen(hub, request)
    request.join_queue(hub.server_ms())
    waiter = LocalWaiter(request)
    try:
        hub.join(waiter)
        return (yield from _wait_for_turn(hub, request, waiter, until))
    except LockError:
        hub.poll_soon(request.name)  # another waiter here, which has not seen what this one did
        raise
    finally:
        hub.leave(waiter)


def _listen(hub: Hub, request: Request) -> Steps[None]:
    if not hub.receives(request.name):
        yield from ask(calls.Listen(hub, request.name, until=request.until))


def _wait_for_turn(
    hub: Hub, request: Request, waiter: LocalWaiter, until: float
) -> Steps[Lease | None]:
    schedule = waiter.schedule
    held_at: tuple[float, int] | None = None  # local and server clock when last found held
    for_all = False  # whether it polls on behalf of all waiters of the lock in this process
    while True:
        version = schedule.version
        answered_ms = None if held_at is None else schedule.answered_ms
        call, answer = yield from _poll(hub, request, until, answered_ms)
        lease = call.lease(answer)
        not_in_queue = isinstance(answer, int) or (lease is None and answer[3] % 3 == 1)
        if held_at is not None and not_in_queue and hub.in_order:
            # The queue was lost or dropped, and our position with it: the others have to poll too.
            hub.notify_all(request.name)
        if lease is not None:
            _plan_for_others(hub, waiter, lease, call.sent_at, version, for_all=for_all)
            return lease
        minus_fence, ttl_ms, now_ms, kind = answer
        if kind % 3 == 0 and request.max_waiters is not None:
            request.when_full()
            return None
        held_at = call.sent_at, now_ms
        hub.note_server_ms(now_ms)
        schedule.polled(*held_at)
        due = call.sent_at + _pause(hub, ttl_ms, kind, for_all=for_all)
        if hub.peeks and not for_all:  # it did not see for which waiter here the lock is
            due = min(due, schedule.due)
        schedule.plan(due, version)
        if request.when_waiting is not None:
            begin, request.when_waiting = request.when_waiting, None
            yield from begin()
        reason = yield from _sleep(hub, request, waiter, until)
        if reason is _Awake.GRANTED:
            assert waiter.grant is not None
            grant, waiter.grant = waiter.grant, None
            lease = _granted(request, grant, *held_at)
            # One older than the holder's was taken back, and looks young if a clock was set back.
            if grant.fence > -minus_fence and (yield from _claim(hub, lease, grant, request.until)):
                return lease
        elif reason is _Awake.OVER:
            yield from ask(calls.withdrawal(request, patient=True, until=request.until))
            return None
        for_all = reason is _Awake.TURN


def _plan_for_others(
    hub: Hub, waiter: LocalWaiter, lease: Lease, sent_at: float, version: int, *, for_all: bool
) -> None:
    """Have the others poll when this lease ends, or for the next permit that has ended."""
    if not lease.shared:
        left = -1 if lease.deadline == math.inf else int(lease.remaining * 1000)
        waiter.schedule.plan(sent_at + hub.next_poll(left), version)
    elif for_all:
        hub.poll_soon(lease.name)


def _pause(hub: Hub, ttl_ms: int, kind: int, *, for_all: bool) -> float:
    """Return after how many seconds to poll again.

    A waiter that peeks for all found the lock free, and may have got it for another one. Without an
    end it is not new, or nobody may have a permit.
    """
    if for_all and hub.peeks and ttl_ms >= 0:
        return 0.0
    return hub.next_poll(ttl_ms, foreign=kind >= 3)


class _Awake(Enum):
    """Why a waiter does not sleep any more: the first of these that is so."""

    GRANTED = auto()  # it claims the lock that it was given
    NOTIFIED = auto()  # it polls, as something has happened that may concern it alone
    OVER = auto()
    TURN = auto()  # it polls for all waiters of the lock in this process, as that is due


def _sleep(hub: Hub, request: Request, waiter: LocalWaiter, until: float) -> Steps[_Awake]:
    while True:
        check = request.before_sleep
        yield calls.Wait(hub, waiter, until if check is None else min(until, check()))
        if waiter.grant is not None:
            return _Awake.GRANTED
        if waiter.must_poll:
            waiter.must_poll = False
            return _Awake.NOTIFIED
        if monotonic() >= until:
            return _Awake.OVER
        if waiter.schedule.take_turn(waiter) and (
            not hub.peeks or (yield from _peek_shows_need(hub, waiter))
        ):
            return _Awake.TURN


def _peek_shows_need(hub: Hub, waiter: LocalWaiter) -> Steps[bool]:
    """Read the holder on behalf of all local waiters; return whether to ask for the lock."""
    schedule = waiter.schedule
    version, began = schedule.version, monotonic()
    if began - schedule.polled_at > POLL_EVERY:
        return True  # else the queue expires
    try:
        value = yield from _peek(waiter, waiter.shared)
    except LockUnavailable:
        return True
    if (monotonic() - schedule.peeked(began)) * 1000 > hub.claim_ms:
        hub.notify_all(waiter.name)  # some turns may have come and gone
    if value is None or value == []:
        return True
    holders = value[::2] if isinstance(value, list) else [value.partition(b" ")[0]]
    tokens = [token.decode(errors="replace") for token in holders]
    here = [token for token in tokens if hub.notify(token)]
    if not here and _is_overdue(hub, value):
        return True
    schedule.plan(began + hub.next_poll(-1), version)
    return waiter.token in tokens


def _peek(waiter: LocalWaiter, shared: bool, *, again: bool = False) -> Steps[Any]:
    try:
        return (yield from ask(calls.Peek(waiter.name, shared, until=waiter.until)))
    except LockUnavailable:
        raise
    except LockError:  # shared by others while it waits to have it alone, or the reverse
        return b"" if again else (yield from _peek(waiter, not shared, again=True))


def _is_overdue(hub: Hub, value: Any) -> bool:
    """Whether a lock was handed off and not claimed in time, or a permit has ended."""
    now_ms = hub.server_ms()
    if isinstance(value, list):
        ends = [float(end) for end in value[1::2]]
    else:
        ends = [float(found[1]) for found in [_UNCLAIMED.search(value)] if found]
    return any(now_ms is None or now_ms >= end for end in ends)


def _poll(
    hub: Hub, request: Request, until: float, answered_ms: int | None
) -> Steps[tuple[calls.Acquire, Any]]:
    """Ask for the lock. A request that waits already tolerates an outage for a while."""
    give_up = min(until, monotonic() + OUTAGE_LIMIT)
    pause = 0.05
    while True:
        try:
            yield from _listen(hub, request)
            request.channel = hub.channel_of(request.name)
            call = calls.Acquire(request, request.channel, answered_ms, until=request.until)
            return call, (yield from ask(call))
        except LockUnavailable:
            if answered_ms is None or monotonic() >= give_up:
                raise
        yield calls.Pause(min(pause * random.uniform(0.5, 1.5), max(0.0, give_up - monotonic())))
        pause = min(pause * 2, 1.0)


def _granted(request: Request, grant: Grant, local: float, server_ms: int) -> Lease:
    """Return the lease of a grant, its end set early rather than late.

    The message may have waited unread for long. So the lease is not counted from its receipt alone,
    but also from when it was given: the server's clock read ``server_ms`` at ``local``.
    """
    lease = grant.lease_ms / 1000
    given_at = local + (grant.now_ms - server_ms) / 1000
    return Lease(request, grant.fence, min(grant.received_at, given_at) + lease)


def _claim(hub: Hub, lease: Lease, grant: Grant, until: float) -> Steps[bool]:
    """Claim a lock that was handed off, without waiting for the answer.

    Returns False if so much time has passed that the server may take the lock back before it
    receives the claim; then the server has to be asked.
    """
    if not hub.must_claim or lease.passed:
        return not lease.passed
    seconds = grant.lease_ms / 1000
    in_time = min(CLAIM, seconds)
    lease.verify_by = lease.deadline - seconds + in_time
    if lease.verify_by - monotonic() < in_time / 2:
        return False
    try:
        end_ms = grant.now_ms + grant.lease_ms
        yield calls.Claim(lease.name, lease.token, end_ms, shared=lease.shared, until=until)
    except LockUnavailable:
        return False
    return True
