"""What a waiter asks the server, from joining the queue of a lock until it has the lock.

Like ``locking``, each function is a generator of steps.
"""

from __future__ import annotations

import random
from time import monotonic
from typing import Any

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Steps, ask
from django_redis_lock.protocol.heartbeats import OUTAGE_LIMIT
from django_redis_lock.protocol.lease import Lease, Request
from django_redis_lock.protocol.waiting import CLAIM, Grant, Hub, LocalWaiter


def wait_in_queue(hub: Hub, request: Request, until: float) -> Steps[Lease | None]:
    """Join the queue of a lock; return the lease, or ``None`` if it was not granted ``until``."""
    waiter = LocalWaiter(request)
    try:
        yield from _listen(hub, request)
        hub.join(waiter)
        return (yield from _wait_for_turn(hub, request, waiter, until))
    finally:
        hub.leave(waiter)


def _listen(hub: Hub, request: Request) -> Steps[None]:
    if not hub.receives(request.name):
        yield from ask(calls.Listen(hub, request.name, until=request.until))


def _wait_for_turn(
    hub: Hub, request: Request, waiter: LocalWaiter, until: float
) -> Steps[Lease | None]:
    while True:
        call, answer = yield from _ask(hub, request, until)
        lease = call.lease(answer)
        if lease is not None:
            return lease
        minus_fence, ttl_ms, now_ms, kind, *position = answer
        if kind % 3 == 0 and request.max_waiters is not None:
            request.when_full()
            return None
        request.position = position[0] if position else 0
        hub.note_server_ms(now_ms, call.sent_at)
        hub.waits(waiter, ttl_ms, foreign=kind >= 3)
        if request.when_waiting is not None:
            begin, request.when_waiting = request.when_waiting, None
            yield from begin()
        over = yield from _sleep(hub, request, waiter, until)
        if waiter.grant is not None:
            grant, waiter.grant = waiter.grant, None
            lease = _granted(hub, request, grant)
            # One older than the holder's was taken back, and looks young if a clock was set back.
            if grant.fence > -minus_fence and (yield from _claim(hub, lease, grant, request.until)):
                return lease
        elif over:
            hub.leave(waiter)  # what a heartbeat asks for it meanwhile, that withdraws
            yield from ask(calls.withdrawal(request, patient=True, until=request.until))
            return None


def _sleep(hub: Hub, request: Request, waiter: LocalWaiter, until: float) -> Steps[bool]:
    """Sleep until the waiter has a grant, or has to ask; return True if the wait ran out."""
    while True:
        check = request.before_sleep
        yield calls.Wait(hub, waiter, until if check is None else min(until, check()))
        if waiter.error is not None:
            raise LockUnavailable(waiter.error, name=request.name)
        if waiter.grant is not None:
            return False
        if waiter.must_ask or monotonic() >= waiter.turn_at:
            waiter.must_ask = False
            return False
        if monotonic() >= until:
            return True


def _ask(hub: Hub, request: Request, until: float) -> Steps[tuple[calls.Acquire, Any]]:
    """Ask for the lock. A request that waits already tolerates an outage for a while."""
    give_up = min(until, monotonic() + OUTAGE_LIMIT)
    pause = 0.05
    while True:
        try:
            yield from _listen(hub, request)
            request.waits_in = hub.waits_in(request.name)
            call = calls.Acquire(request, request.waits_in, until=request.until)
            return call, (yield from ask(call))
        except LockUnavailable:
            if not request.position or monotonic() >= give_up:
                raise
        yield calls.Pause(min(pause * random.uniform(0.5, 1.5), max(0.0, give_up - monotonic())))
        pause = min(pause * 2, 1.0)


def _granted(hub: Hub, request: Request, grant: Grant) -> Lease:
    """Return the lease of a grant, its end set early rather than late.

    The message may have waited unread for long. So the lease is not counted from its receipt alone,
    but also from when it was given, as far as the last reading of the server's clock tells.
    """
    server_ms = hub.server_ms(grant.received_at)
    age_ms = 0 if server_ms is None else max(0, server_ms - grant.now_ms)
    return Lease(request, grant.fence, grant.received_at + (grant.lease_ms - age_ms) / 1000)


def _claim(hub: Hub, lease: Lease, grant: Grant, until: float) -> Steps[bool]:
    """Claim a lock that was handed off, without waiting for the answer.

    Returns False if so much time has passed that the server may take the lock back before it
    receives the claim, or if no thread can verify the lock; then the server has to be asked.
    """
    if not hub.must_claim or lease.passed:
        return not lease.passed
    if hub.heart is not None and not hub.heart.runs:
        return False
    seconds = grant.lease_ms / 1000
    in_time = min(CLAIM, seconds)
    lease.verify_by = lease.deadline - seconds + in_time
    if lease.verify_by - monotonic() < in_time / 2:
        return False
    try:
        end_ms = grant.now_ms + grant.lease_ms
        claim = calls.Claim(
            lease.name, lease.token, grant.fence, end_ms, shared=lease.shared, until=until
        )
        yield claim
    except LockUnavailable:
        return False
    return True
