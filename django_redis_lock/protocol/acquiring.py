"""What the server is asked to take locks, at once or after a wait in the queue.

Like ``conversation``, each function is a generator of steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from time import monotonic

from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.calls import Acquire, Call, TakeOver
from django_redis_lock.protocol.conversation import GRACE, ask, set_leases, withdrawal
from django_redis_lock.protocol.drivers import Steps
from django_redis_lock.protocol.lease import Lease, Request
from django_redis_lock.protocol.queueing import end_of, lease_of, wait_in_queue
from django_redis_lock.protocol.waiting import Hub

GIVE_UP_AFTER = 1.0
"""Seconds that a caller with a shorter wait, or none, gives the server to answer."""


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
        return None if fence is None else request.granted(fence, end_of(call, request.lease_ms))

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
        hub.note_server_ms(answer[2])
    return lease_of(call, answer)


def _wait(hub: Hub, request: Request, until: float) -> Steps[Lease | None]:
    if not hub.may_join(request.name):
        # Most locks are free; only a held one is worth a subscription.
        lease = yield from _try(hub, request)
        if lease is not None:
            return lease
    return (yield from wait_in_queue(hub, request, until))
