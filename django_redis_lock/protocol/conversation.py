"""What the server is asked to keep and release locks, and how its answers are read.

No I/O happens here: each function is a generator of steps, which ``drivers`` carries out. The model
is psycopg 3, which writes the PostgreSQL protocol once in this way.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from time import monotonic
from typing import Any

from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.calls import (
    Call,
    Pause,
    Release,
    Renew,
    TakeOver,
)
from django_redis_lock.protocol.drivers import Steps
from django_redis_lock.protocol.lease import Lease, Request
from django_redis_lock.protocol.waiting import Hub

RETRY_PAUSES = (0.0, 0.05, 0.2, 0.5)
"""Seconds before each further sending of a call that the server did not answer."""
RETRY_FOR = 2.0
"""Seconds after which a call is not sent again; a server that lets calls time out is down."""
GRACE = 0.3
"""Seconds that the server gets to answer once the wait of a caller has ended."""


def ask(call: Call) -> Steps[Any]:
    """Carry out a call, sending it again for a short time if the server can't be reached."""
    began = monotonic()
    # A caller that is late may have been stopped for a while; that proves nothing about the server.
    call.until = max(call.until, began + GRACE)
    pauses = iter(RETRY_PAUSES if call.patient else ())
    while True:
        unproven = call.first_sent_at is not None
        try:
            return (yield call)
        except LockUnavailable as error:
            error.undone = error.undone and not (unproven or call.resent)
            if error.undone:
                call.first_sent_at = None  # as if it had not been sent
            pause = next(pauses, None)
            now = monotonic()
            error.silent = now - began > RETRY_FOR or now >= call.until
            if pause is None or error.silent or not error.passing or now + pause >= call.until:
                raise
        yield Pause(pause)


def withdrawal(
    hub: Hub, request: Request, *, patient: bool = False, until: float = math.inf
) -> Release:
    """Return the call that withdraws a request, whatever became of it."""
    entry = request.entry(hub.channel_of(request.name))
    return Release(request.name, request.token, entry, patient=patient, until=until)


def release(lease: Lease) -> Steps[bool]:
    """Release a lock; return whether it was still held.

    If an earlier sending may have been carried out, a lock that is no longer held was probably
    released by it. So it counts as released if the lease was valid at that sending.
    """
    first = lease.release_sent_at
    if first is None:
        lease.release_sent_at = monotonic()
    call = Release(lease.name, lease.token)
    try:
        held = yield from ask(call)
    except GeneratorExit:
        raise
    except BaseException as error:
        if not isinstance(error, LockError):  # interrupted or cancelled: complete it
            with contextlib.suppress(LockError):
                yield Release(lease.name, lease.token, patient=False)
        raise
    return bool(held) or _done_before(call, first, lease)


def _done_before(call: Call, first: float | None, lease: Lease) -> bool:
    """Whether an earlier sending, the first at ``first``, may have released a valid lease."""
    earlier = call.first_sent_at if first is None and call.resent else first
    return earlier is not None and earlier < lease.deadline


def detach(lease: Lease, call: TakeOver) -> Steps[bool]:
    """Replace the token of a lease by another; return False if it was no longer held.

    If the reply to an earlier sending was lost, another process may have taken the lock over
    already. So it counts as detached if the lease was valid at that sending.
    """
    first = lease.release_sent_at
    try:
        fence = yield from ask(call)
    finally:
        if lease.release_sent_at is None:
            lease.release_sent_at = call.first_sent_at
    return fence is not None or _done_before(call, first, lease)


def set_leases(
    leases: Sequence[Lease], lease_ms: Sequence[int], until: float = math.inf
) -> Steps[list[Lease]]:
    """Set what is left of leases (-1: no end, 0: only look); return those that are lost.

    The caller gives up ``until`` (monotonic). A lease that is made shorter counts as that short
    from the call on, even if no answer comes.
    """
    pairs = list(zip(leases, lease_ms, strict=True))
    call = Renew([(lease.name, lease.token, ms) for lease, ms in pairs], until=until)
    now = monotonic()
    try:
        for lease, ms in pairs:
            lease.version += 1
            lease.being_set |= {call}
            if ms > 0:
                lease.deadline = min(lease.deadline, now + ms / 1000)
            lease.longest = max(lease.longest, math.inf if ms < 0 else ms / 1000)
        answers = yield from ask(call)
    except LockError as error:
        error.name = error.name or leases[0].name
        raise
    finally:
        for lease in leases:
            lease.being_set -= {call}
    for lease, left_ms in zip(leases, answers, strict=True):
        lease.renewed(left_ms, call.sent_at)
    return [lease for lease in leases if lease.lost]
