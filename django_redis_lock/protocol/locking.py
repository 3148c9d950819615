"""What the server is asked, to take, hold and release locks, and how its answers are read."""

from __future__ import annotations

import contextlib
import math
from asyncio import CancelledError
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import GRACE, Call, Steps, TakeOver, ask
from django_redis_lock.protocol.drivers import TIDY_FOR
from django_redis_lock.protocol.lease import Lease, Request

if TYPE_CHECKING:
    from django_redis_lock.protocol.waiting import WaiterRegistry

GIVE_UP_AFTER = 1.0  # seconds that a caller with a shorter or no wait gives the server to answer


def acquire(
    registry: WaiterRegistry | None, request: Request, until: float | None, make: Any = None
) -> Steps[Lease | None]:
    """Return a lease if one is granted by ``until`` (monotonic), or at once if that is ``None``.

    Without a ``registry``, one is made when the lock is found held. An interruption withdraws the
    request, which stays ``sent`` if the server can't be reached, or a call may arrive after that.
    """
    # A caller that would wait without limit leaves it to the socket timeout when to give up.
    soonest = monotonic() + GIVE_UP_AFTER
    request.until = (soonest if until is None else max(until, soonest)) + GRACE
    try:
        while True:
            lease = yield from _attempt(registry, request, until, make)
            if lease is None:
                request.sent = False
                return None
            if lease.timeout is None and (yield from set_leases([lease], [-1], request.until)):
                continue  # it was lost meanwhile
            return lease
    except BaseException as error:
        if isinstance(error, LockError) and not error.name:
            error.name = request.name
        # A server that let a call time out would let the next one time out as well.
        silent = isinstance(error, LockUnavailable) and error.silent
        if not (silent or isinstance(error, GeneratorExit)) and request.may_be_held:
            until = max(request.until, monotonic() + GRACE)
            if not isinstance(error, LockError | CancelledError):
                # If it interrupted this code, and not a step, the driver does not know of it.
                until = monotonic() + TIDY_FOR
            with contextlib.suppress(LockError):
                yield calls.withdrawal(request, until=until)
                # Over another connection, a call may arrive after its withdrawal.
                request.sent = request.under_way
        raise


def _attempt(
    registry: WaiterRegistry | None, request: Request, until: float | None, make: Any
) -> Steps[Lease | None]:
    if request.from_token_id:
        takeover = TakeOver(request, request.from_token_id, until=request.until)
        return takeover.lease((yield from ask(takeover)))
    if until is None or registry is None or not registry.receives(request.name):
        # Most locks are free; only a held one is worth a subscription.
        final, patient = until is None, request.patient
        call = calls.Acquire(request, "", until=request.until, final=final, patient=patient)
        lease = call.lease((yield from ask(call)))
        if lease is not None or until is None:
            return lease
    return (yield from (registry or make()).wait_in_queue(request, until))


def release(lease: Lease) -> Steps[bool]:
    """Release a lock; return whether it was still held, or an earlier sending may have done it."""
    first = lease.left_at
    if not lease.begin_release():
        return False
    call = calls.Release(lease.name, lease.token, shared=lease.permit)
    try:
        held = yield from ask(call)
    except BaseException as error:
        if not isinstance(
            error, LockError | GeneratorExit
        ):  # interrupted or cancelled: complete it
            with contextlib.suppress(LockError):
                yield calls.Release(lease.name, lease.token, shared=lease.permit, patient=False)
        raise
    lease.released()
    if held == 2:
        lease.pass_to_message()
    if not held and lease.detached_as:
        yield from ask(calls.Release(lease.name, lease.detached_as, shared=lease.permit))
    return bool(held) or _done_before(call, first, lease)


def _done_before(call: Call, first: float | None, lease: Lease) -> bool:
    """Whether an earlier sending, the first at ``first``, may have released a valid lease."""
    earlier = call.first_sent_at if first is None and call.resent else first
    return earlier is not None and earlier < lease.deadline


def detach(lease: Lease, call: TakeOver) -> Steps[bool]:
    """Replace the token of a lease by another; return whether it was held, as ``release`` does."""
    first = lease.left_at
    if lease.lost and first is None:
        return False
    try:
        fence = yield from ask(call)
    finally:
        lease.detach_sent(call.first_sent_at, call.request.token)
    return fence is not None or _done_before(call, first, lease)


def set_leases(
    leases: Sequence[Lease], lease_ms: Sequence[int], until: float = math.inf
) -> Steps[list[Lease]]:
    """Set what is left of leases (-1: no end, 0: only ask); return those that are lost."""
    pairs = list(zip(leases, lease_ms, strict=True))
    call = calls.Renew([(lease.name, lease.token, ms) for lease, ms in pairs], until=until)
    try:
        for lease, ms in pairs:
            lease.begin_update(call, ms)
        answers = yield from ask(call)
    except LockError as error:
        error.name = error.name or leases[0].name
        raise
    finally:
        for lease in leases:
            lease.end_update(call)
    for lease, left_ms in zip(leases, answers, strict=True):
        lease.renewed(left_ms, call.sent_at)
    return [lease for lease in leases if lease.lost]
