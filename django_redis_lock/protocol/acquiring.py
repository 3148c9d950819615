"""What the server is asked to take locks, at once or after a wait in the queue.

Like ``conversation``, each function is a generator of steps.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Callable
from enum import Enum, auto
from time import monotonic
from typing import Any

from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.calls import (
    Acquire,
    Call,
    Claim,
    Glance,
    Listen,
    Pause,
    Post,
    TakeOver,
    Wait,
)
from django_redis_lock.protocol.conversation import GRACE, ask, set_leases, withdrawal
from django_redis_lock.protocol.drivers import Steps
from django_redis_lock.protocol.lease import Lease, Request
from django_redis_lock.protocol.waiting import CLAIM, LOOK_EVERY, Grant, Hub, LocalWaiter

OUTAGE_LIMIT = 10.0
"""Seconds that a waiter tolerates an unavailable server before it raises."""
GIVE_UP_AFTER = 1.0
"""Seconds that a caller with a shorter wait, or none, gives the server to answer."""
_UNCLAIMED = re.compile(rb'^\S+ \d+ {"unclaimed":"(\d{1,16}) ')
"""Opens the value of a lock that was handed off and is not claimed yet; see ``common.lua``."""


def acquire(hub: Hub, request: Request, until: float | None) -> Steps[Lease | None]:
    """Take a lock, waiting until ``until`` (monotonic); ``None`` does not wait.

    Returns the lease, or ``None`` when the wait ran out. If anything interrupts the wait, the
    request is withdrawn: it leaves the queue, and a grant already under way is passed on. If the
    server can't be told, or a call may arrive later than that, ``request.sent`` stays set: the
    server may still carry out the request.
    """
    request.until = _given_up_at(until)

    def attempt() -> Steps[Lease | None]:
        return _try(hub, request) if until is None else _wait(hub, request, until)

    return (yield from _obtain(hub, request, attempt))


def take_over(hub: Hub, request: Request, token_id: str) -> Steps[Lease | None]:
    """Take a lock from the holder with a token id, ahead of the queue.

    Returns the lease, or ``None`` if that holder no longer has the lock. If interrupted, it
    withdraws the request as ``acquire`` does.
    """
    request.until = _given_up_at(None)

    def attempt() -> Steps[Lease | None]:
        call = TakeOver(request, token_id)
        fence = yield from ask(call)
        request.under_way = False
        return None if fence is None else request.granted(fence, _end(call, request.lease_ms))

    return (yield from _obtain(hub, request, attempt))


def _given_up_at(until: float | None) -> float:
    """Return when a caller that would wait ``until`` (monotonic) gives up on a silent server.

    A caller that would wait without limit leaves that to the socket timeout.
    """
    soonest = monotonic() + GIVE_UP_AFTER
    return (soonest if until is None else max(until, soonest)) + GRACE


def _withdrawn(hub: Hub, request: Request, *, patient: bool = False) -> Call:
    return withdrawal(hub, request, patient=patient, until=request.until)


def _obtain(
    hub: Hub, request: Request, attempt: Callable[[], Steps[Lease | None]]
) -> Steps[Lease | None]:
    try:
        while True:
            lease = yield from attempt()
            if lease is None:
                request.sent = False
                return None
            if lease.timeout is not None or not (
                yield from set_leases([lease], [-1], request.until)
            ):
                return lease
    except GeneratorExit:
        raise
    except BaseException as error:
        if isinstance(error, LockError) and not error.name:
            error.name = request.name
        # A server that let a call time out would let the next one time out as well. The request is
        # then withdrawn in the background.
        silent = isinstance(error, LockUnavailable) and error.silent
        if not silent and request.adrift:
            with contextlib.suppress(LockError):
                yield from ask(_withdrawn(hub, request))
                # Over another connection, a call may arrive after its withdrawal.
                request.sent = request.under_way
        raise


def _try(hub: Hub, request: Request) -> Steps[Lease | None]:
    call = Acquire(request, "")
    answer = yield from ask(call)
    if not isinstance(answer, int):
        hub.heard(answer[2])
    return _lease(call, answer)


def _wait(hub: Hub, request: Request, until: float) -> Steps[Lease | None]:
    if not hub.listens_for(request.name) or hub.server_ms() is None:
        # Most locks are free; only a held one is worth a subscription. And a queue entry says since
        # when it waits, which takes the server's clock.
        lease = yield from _try(hub, request)
        if lease is not None:
            return lease
        yield from ask(Listen(hub, request.name, until=request.until))
    request.join_queue(hub.server_ms())
    waiter = LocalWaiter(request)
    try:
        hub.join(waiter)
        return (yield from _wait_in_queue(hub, request, waiter, until))
    except LockError:
        hub.look_soon(request.name)  # another waiter here, which has not seen what this one did
        raise
    finally:
        hub.leave(waiter)


def _wait_in_queue(
    hub: Hub, request: Request, waiter: LocalWaiter, until: float
) -> Steps[Lease | None]:
    watch = waiter.watch
    held_at: tuple[float, int] | None = None  # local and server clock when last found held
    for_all = False  # whether it looks on behalf of all waiters of the lock in this process
    while True:
        news = watch.news
        asked_ms = None if held_at is None else watch.asked_ms
        call, answer = yield from _look(hub, request, until, asked_ms)
        lease = _lease(call, answer)
        not_in_queue = isinstance(answer, int) or (lease is None and answer[3] % 3 == 1)
        if held_at is not None and not_in_queue and hub.in_queue:
            # The queue was lost or dropped, and our place with it: the others have to look too.
            hub.nudge(request.name)
        if lease is not None:
            left = -1 if lease.deadline == math.inf else int(lease.remaining * 1000)
            watch.plan(call.sent_at + hub.next_look(left), news)  # for the others
            return lease
        minus_fence, ttl_ms, now_ms, kind = answer
        hub.heard(now_ms)
        watch.answered(now_ms)
        held_at = call.sent_at, now_ms
        watch.asked_at = call.sent_at
        # A waiter that glances found the lock free, and may have got it for another one.
        pause = 0.0 if for_all and hub.glances else hub.next_look(ttl_ms, foreign=kind >= 3)
        due = call.sent_at + pause
        if hub.glances and not for_all:  # it did not see for which waiter here the lock is
            due = min(due, watch.due)
        watch.plan(due, news)
        yield from _found_held(request)
        reason = yield from _sleep(hub, waiter, until)
        if reason is _Awake.GRANTED:
            assert waiter.grant is not None
            grant, waiter.grant = waiter.grant, None
            lease = _granted(request, grant, *held_at)
            # One older than the holder's was taken back, and looks young if a clock was set back.
            if grant.fence > -minus_fence and (yield from _claim(hub, lease, grant, request.until)):
                return lease
        elif reason is _Awake.OVER:
            yield from ask(_withdrawn(hub, request, patient=True))
            return None
        for_all = reason is _Awake.TURN


def _found_held(request: Request) -> Steps[None]:
    if request.when_waiting is not None:
        begin, request.when_waiting = request.when_waiting, None
        yield from begin()
    if request.when_held is not None:
        yield request.when_held


class _Awake(Enum):
    """Why a waiter stopped sleeping."""

    GRANTED = auto()
    NUDGED = auto()  # it has to look
    TURN = auto()  # it looks on behalf of all waiters of the lock
    OVER = auto()


def _sleep(hub: Hub, waiter: LocalWaiter, until: float) -> Steps[_Awake]:
    while True:
        yield Wait(hub, waiter, min(until, waiter.watch.due))
        waiter.stirred = False
        if waiter.grant is not None:
            return _Awake.GRANTED
        if waiter.nudged:
            waiter.nudged = False
            return _Awake.NUDGED
        if monotonic() >= until:
            return _Awake.OVER
        if waiter.watch.claim():
            waiter.looks = True
            if not hub.glances or (yield from _glance_shows_need(hub, waiter)):
                return _Awake.TURN


def _glance_shows_need(hub: Hub, waiter: LocalWaiter) -> Steps[bool]:
    """Read the holder on behalf of all local waiters; return whether to ask for the lock."""
    watch = waiter.watch
    news, before, began = watch.news, watch.glanced_at, monotonic()
    if began - watch.asked_at > LOOK_EVERY:
        return True  # the queue has to be kept alive
    try:
        value = yield from ask(Glance(waiter.name, until=waiter.until))
    except LockUnavailable:
        return True
    watch.glanced_at = began
    if hub.may_have_missed(monotonic() - before):
        hub.nudge(waiter.name)  # some turns may have come and gone
    if value is None:
        return True
    token = value.partition(b" ")[0].decode(errors="replace")
    if not hub.nudge_one(token) and _is_overdue(hub, value):
        return True
    watch.plan(began + hub.next_look(-1), news)
    return bool(token == waiter.token)


def _is_overdue(hub: Hub, value: bytes) -> bool:
    """Whether a lock was handed off and not claimed in time, so that it can be taken back."""
    found = _UNCLAIMED.search(value)
    now_ms = hub.server_ms()
    return found is not None and (now_ms is None or now_ms >= int(found[1]))


def _look(
    hub: Hub, request: Request, until: float, asked_ms: int | None
) -> Steps[tuple[Acquire, Any]]:
    """Ask for the lock. A request that waits already tolerates an outage for a while."""
    give_up = min(until, monotonic() + OUTAGE_LIMIT)
    pause = 0.05
    while True:
        try:
            if not hub.listens_for(request.name):
                yield from ask(Listen(hub, request.name, until=request.until))
            call = Acquire(request, hub.channel_of(request.name), asked_ms)
            return call, (yield from ask(call))
        except LockUnavailable:
            if asked_ms is None or monotonic() >= give_up:
                raise
        yield Pause(min(pause * random.uniform(0.5, 1.5), max(0.0, give_up - monotonic())))
        pause = min(pause * 2, 1.0)


def _lease(call: Acquire, answer: Any) -> Lease | None:
    request = call.request
    request.under_way = False
    if isinstance(answer, int):
        return request.granted(answer, _end(call, request.lease_ms))
    fence, ttl_ms = answer[0], answer[1]
    return request.granted(fence, _end(call, ttl_ms)) if fence > 0 else None


def _end(call: Call, left_ms: int) -> float:
    return call.sent_at + left_ms / 1000 if left_ms >= 0 else math.inf


def _granted(request: Request, grant: Grant, local: float, server_ms: int) -> Lease:
    """Return the lease of a grant, its end set early rather than late.

    The message may have waited unread for long. So the lease is not counted from its receipt alone,
    but also from when it was given: the server's clock read ``server_ms`` at ``local``.
    """
    lease = grant.lease_ms / 1000
    given_at = local + (grant.now_ms - server_ms) / 1000
    return request.granted(grant.fence, min(grant.received_at, given_at) + lease)


def _claim(hub: Hub, lease: Lease, grant: Grant, until: float = math.inf) -> Steps[bool]:
    """Claim a lock that was handed off, without waiting for the answer.

    Returns False if so much time has passed that the server may take the lock back before it
    receives the claim; then the server has to be asked.
    """
    if not hub.takes_back or lease.passed:
        return not lease.passed
    seconds = grant.lease_ms / 1000
    in_time = min(CLAIM, seconds)
    lease.verify_by = lease.deadline - seconds + in_time
    if lease.verify_by - monotonic() < in_time / 2:
        return False
    try:
        end_ms = grant.now_ms + grant.lease_ms
        yield Post(Claim(lease.name, lease.token, end_ms, until=until))
    except LockUnavailable:
        return False
    return True
