"""What is asked of the server to take, keep and release a lock, and how its answers are read.

No I/O happens here. Each function is a generator that yields steps (ask this, wait for that) and
is sent their results; ``drivers`` carries the steps out, with blocking calls or under asyncio. The
model is psycopg 3, which writes the PostgreSQL protocol once in this way.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Callable, Generator, Sequence
from enum import Enum, auto
from time import monotonic
from typing import Any

from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.calls import (
    Acquire,
    AcquireMany,
    Call,
    Claim,
    Glance,
    Listen,
    Pause,
    Post,
    Release,
    ReleaseMany,
    Renew,
    Step,
    TakeOver,
    Wait,
)
from django_redis_lock.protocol.lease import Lease, Request
from django_redis_lock.protocol.waiting import CLAIM, LOOK_EVERY, Grant, Hub, Waiter

RETRY_PAUSES = (0.0, 0.05, 0.2, 0.5)
"""Seconds before each further sending of a call that the server did not answer."""
RETRY_FOR = 2.0
"""Seconds after which a call is not sent again; a server that lets calls time out is down."""
_UNCLAIMED = re.compile(rb'^\S+ \d+ {"unclaimed":"(\d{1,16}) ')
"""Opens the value of a lock that was handed over and has yet to be claimed; see ``common.lua``."""
PATIENCE = 10.0
"""Seconds for which a waiter bears an unavailable server before it raises."""


Acquiring = Generator[Step, Any, Lease | None]


def ask(call: Call | Listen) -> Generator[Step, Any, Any]:
    """Carry out a call, sending it again for a short while where the server can't be reached."""
    began = monotonic()
    pauses = iter(RETRY_PAUSES if call.patient else ())
    while True:
        unproven = isinstance(call, Call) and call.first_sent_at is not None
        try:
            return (yield call)
        except LockUnavailable as error:
            if isinstance(call, Call):
                error.undone = error.undone and not (unproven or call.resent)
                if error.undone:
                    call.first_sent_at = None  # as if it had not been sent
            pause = next(pauses, None)
            error.silent = monotonic() - began > RETRY_FOR
            if pause is None or error.silent or not error.passing:
                raise
        yield Pause(pause)


def acquire(hub: Hub, request: Request, until: float | None) -> Acquiring:
    """Take a lock, waiting until ``until`` (monotonic), or not at all for ``None``.

    Returns the lease, or ``None`` when the wait ran out. Whatever interrupts the wait, the
    request is withdrawn: it leaves the line, and a grant that crossed is passed on. Where the
    server can't be told, ``request.sent`` stays set, for it may carry out the request yet.
    """
    if until is None:
        return (yield from _obtain(hub, request, lambda: _try(hub, request)))
    return (yield from _obtain(hub, request, lambda: _wait(hub, request, until)))


def take_over(hub: Hub, request: Request, token_id: str) -> Acquiring:
    """Take a lock from the holder of a token, before all who wait.

    Returns the lease, or ``None`` when that holder has it no more. Interrupted, it withdraws the
    request as ``acquire`` does.
    """
    return (yield from _obtain(hub, request, lambda: _try_to_take_over(request, token_id)))


def _obtain(hub: Hub, request: Request, attempt: Callable[[], Acquiring]) -> Acquiring:
    try:
        while True:
            lease = yield from attempt()
            if lease is None:
                request.sent = False
                return None
            if request.timeout is not None:
                return lease
            if (yield from set_lease(lease, -1)):
                return lease
    except GeneratorExit:
        raise
    except BaseException as error:
        if isinstance(error, LockError) and not error.name:
            error.name = request.name
        if request.adrift and not _from_silence(error):
            with contextlib.suppress(LockError):
                yield from ask(withdrawal(hub, request))
                request.sent = False
        raise


def _from_silence(error: BaseException) -> bool:
    """Whether the server let a call time out, as it would the next.

    Nobody is to wait for that twice: the request is withdrawn in the background.
    """
    return isinstance(error, LockUnavailable) and error.silent


def _try(hub: Hub, request: Request) -> Acquiring:
    call = Acquire(request, "")
    answer = yield from ask(call)
    if not isinstance(answer, int):
        hub.heard(answer[2])
    return _lease(call, answer)


def _try_to_take_over(request: Request, token_id: str) -> Acquiring:
    call = TakeOver(request, token_id)
    fence = yield from ask(call)
    return None if fence is None else request.granted(fence, call.sent_at + request.lease_ms / 1000)


def _wait(hub: Hub, request: Request, until: float) -> Acquiring:
    if not hub.listens_for(request.name) or hub.server_ms() is None:
        # Most locks are free; only one that isn't is worth a subscription. And whoever joins a
        # line says since when, which takes the server's clock.
        lease = yield from _try(hub, request)
        if lease is not None:
            return lease
        yield from ask(Listen(hub, request.name))
    request.stand_in_line(hub.server_ms())
    waiter = hub.join(request)
    try:
        return (yield from _wait_in_line(hub, request, waiter, until))
    finally:
        hub.leave(waiter)


def _wait_in_line(hub: Hub, request: Request, waiter: Waiter, until: float) -> Acquiring:
    busy: tuple[float, int] | None = None  # local and server clock when last found held
    for_all = False  # whether this is one of the looks that the waiters of the lock share
    while True:
        news = waiter.watch.news
        call, answer = yield from _look(hub, request, until, waiting=busy is not None)
        lease = _lease(call, answer)
        out_of_line = isinstance(answer, int) or (lease is None and answer[3] % 3 == 1)
        if busy is not None and out_of_line and hub.in_line:
            # Our place was gone, so the line was lost or dropped: the others have to look too.
            hub.nudge(request.name)
        if lease is not None:
            left = -1 if lease.deadline == math.inf else int(lease.remaining * 1000)
            waiter.watch.plan(call.sent_at + hub.next_look(left), news)  # for the others
            return lease
        _, ttl_ms, now_ms, kind = answer
        hub.heard(now_ms)
        busy = call.sent_at, now_ms
        watch = waiter.watch
        watch.asked_at = call.sent_at
        # Where one is to glance, this one found the lock free, and may have got it for another.
        pause = 0.0 if for_all and hub.glances else hub.next_look(ttl_ms, foreign=kind >= 3)
        watch.plan(call.sent_at + pause, news)
        watch.looks += for_all
        reason = yield from _sleep(hub, waiter, until)
        if reason is _Awake.GRANTED:
            assert waiter.grant is not None
            grant, waiter.grant = waiter.grant, None
            lease = _granted(request, grant, *busy)
            if (yield from _claim(hub, lease, grant)):
                return lease
        elif reason is _Awake.OVER:
            yield from ask(withdrawal(hub, request, patient=True))
            return None
        for_all = reason is _Awake.TURN


class _Awake(Enum):
    """Why a waiter sleeps no more."""

    GRANTED = auto()
    NUDGED = auto()  # it has to look
    TURN = auto()  # to look for all who wait for its lock
    OVER = auto()


def _sleep(hub: Hub, waiter: Waiter, until: float) -> Generator[Step, Any, _Awake]:
    while True:
        if hub.retries is not None and waiter.watch.looks - waiter.joined_at >= hub.retries:
            until = monotonic()
        yield Wait(hub, waiter, min(until, waiter.watch.due))
        waiter.stirred = False
        if waiter.grant is not None:
            return _Awake.GRANTED
        if waiter.nudged:
            waiter.nudged = False
            return _Awake.NUDGED
        if monotonic() >= until:
            return _Awake.OVER
        if waiter.watch.claim() and (
            not hub.glances or (yield from _glance_shows_need(hub, waiter))
        ):
            return _Awake.TURN


def _glance_shows_need(hub: Hub, waiter: Waiter) -> Generator[Step, Any, bool]:
    """Read who holds the lock, for all who wait for it here; return whether to ask for it."""
    watch = waiter.watch
    news, before, began = watch.news, watch.glanced_at, monotonic()
    if began - watch.asked_at > LOOK_EVERY:
        return True  # the line has to be kept alive
    try:
        value = yield from ask(Glance(waiter.name))
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
    watch.looks += 1
    watch.plan(began + hub.next_look(-1), news)
    return bool(token == waiter.token)


def _is_overdue(hub: Hub, value: bytes) -> bool:
    """Whether a lock was handed over and not claimed in time, so that it can be taken back."""
    found = _UNCLAIMED.search(value)
    now_ms = hub.server_ms()
    return found is not None and (now_ms is None or now_ms >= int(found[1]))


def _look(
    hub: Hub, request: Request, until: float, *, waiting: bool
) -> Generator[Step, Any, tuple[Acquire, Any]]:
    """Ask for the lock; one who waits already bears an unavailable server for a while."""
    give_up = min(until, monotonic() + PATIENCE)
    pause = 0.05
    while True:
        try:
            if not hub.listens_for(request.name):
                yield from ask(Listen(hub, request.name))
            call = Acquire(request, hub.channel_of(request.name))
            return call, (yield from ask(call))
        except LockUnavailable:
            if not waiting or monotonic() >= give_up:
                raise
        yield Pause(min(pause * random.uniform(0.5, 1.5), max(0.0, give_up - monotonic())))
        pause = min(pause * 2, 1.0)


def _lease(call: Acquire, answer: Any) -> Lease | None:
    request = call.request
    if isinstance(answer, int):
        return request.granted(answer, call.sent_at + request.lease_ms / 1000)
    fence, ttl_ms = answer[0], answer[1]
    if not fence:
        return None
    return request.granted(fence, math.inf if ttl_ms < 0 else call.sent_at + ttl_ms / 1000)


def _granted(request: Request, grant: Grant, local: float, server_ms: int) -> Lease:
    """Return the lease of a grant, its end set early rather than late.

    The message may have waited unread for long, so the lease is not counted from its receipt
    alone but also from when it was given, by what the server's clock read at ``local``.
    """
    lease = grant.lease_ms / 1000
    given_at = local + (grant.now_ms - server_ms) / 1000
    return request.granted(grant.fence, min(grant.received_at, given_at) + lease)


def _claim(hub: Hub, lease: Lease, grant: Grant) -> Generator[Step, Any, bool]:
    """Tell the server that a lock which was handed over is taken, without waiting for its answer.

    Returns False where the grant was slept through, or so much of the time for this has passed that
    the lock may be taken back before the server hears of it; then the server has to be asked.
    """
    if not hub.takes_back or lease.passed:
        return not lease.passed
    seconds = grant.lease_ms / 1000
    in_time = min(CLAIM, seconds)
    lease.verify_by = lease.deadline - seconds + in_time
    if lease.verify_by - monotonic() < in_time / 2:
        return False
    try:
        yield Post(Claim(lease.name, lease.token, grant.now_ms + grant.lease_ms))
    except LockUnavailable:
        return False
    return True


def withdrawal(hub: Hub, request: Request, *, patient: bool = False) -> Release:
    """Return the call that takes a request back, whatever became of it."""
    entry = request.entry(hub.channel_of(request.name))
    return Release(request.name, request.token, entry, patient=patient)


def acquire_many(requests: Sequence[Request]) -> Generator[Step, Any, list[Lease] | int]:
    """Take all locks or none, waiting for none; return the leases, or the number of one held.

    Interrupted, it withdraws the requests as ``acquire`` does.
    """
    try:
        while True:
            call = AcquireMany(requests)
            answer = yield from ask(call)
            if isinstance(answer, int):
                for request in requests:
                    request.sent = False
                return answer - 1
            numbers = zip(requests, answer[::2], answer[1::2], strict=True)
            leases = [
                request.granted(fence, call.sent_at + ms / 1000 if ms >= 0 else math.inf)
                for request, fence, ms in numbers
            ]
            endless = [lease for lease in leases if lease.timeout is None]
            if not endless or not (yield from set_leases(endless, [-1] * len(endless))):
                return leases
    except GeneratorExit:
        raise
    except BaseException as error:
        if isinstance(error, LockError) and not error.name:
            error.name = requests[0].name
        if not _from_silence(error):
            with contextlib.suppress(LockError):
                yield from ask(ReleaseMany([(item.name, item.token) for item in requests]))
                for request in requests:
                    request.sent = False
        raise


def release(leases: Sequence[Lease]) -> Generator[Step, Any, set[str]]:
    """Release locks in one call; return the tokens of those that were ours.

    Where an earlier sending may have been carried out, finding a lock not ours is what success
    looks like, so it counts as released if the lease was good when that was sent.
    """
    now = monotonic()
    begun = []
    for lease in leases:
        begun.append(lease.release_sent_at)
        if lease.release_sent_at is None:
            lease.release_sent_at = now
    call = _release_of(leases)
    try:
        answer = yield from ask(call)
    except GeneratorExit:
        raise
    except BaseException as error:
        if not isinstance(error, LockError):  # interrupted or cancelled: see it through
            with contextlib.suppress(LockError):
                yield _release_of(leases, patient=False)
        raise
    ours = set()
    answers = [answer] if isinstance(call, Release) else answer
    for lease, first, mine in zip(leases, begun, answers, strict=True):
        earlier = call.first_sent_at if first is None and call.resent else first
        if mine or (earlier is not None and earlier < lease.deadline):
            ours.add(lease.token)
    return ours


def _release_of(leases: Sequence[Lease], *, patient: bool = True) -> Release | ReleaseMany:
    if len(leases) == 1:
        return Release(leases[0].name, leases[0].token, patient=patient)
    return ReleaseMany([(lease.name, lease.token) for lease in leases], patient=patient)


def detach(lease: Lease, call: TakeOver) -> Generator[Step, Any, bool]:
    """Put another token in the place of a lease's; return False when it was not ours any more.

    Where the reply to an earlier sending was lost, whoever has the ticket may have the lock by now,
    so it counts as detached if the lease was good when that was sent.
    """
    first = lease.release_sent_at
    try:
        fence = yield from ask(call)
    finally:
        if lease.release_sent_at is None:
            lease.release_sent_at = call.first_sent_at
    if first is None and call.resent:
        first = call.first_sent_at
    return fence is not None or (first is not None and first < lease.deadline)


def set_lease(lease: Lease, lease_ms: int) -> Generator[Step, Any, bool]:
    """Set what is left of a lease (-1: no end, 0: only look); return False when it is lost."""
    return not (yield from set_leases([lease], [lease_ms]))


def set_leases(
    leases: Sequence[Lease], lease_ms: Sequence[int]
) -> Generator[Step, Any, list[Lease]]:
    """Set what is left of several leases, as ``set_lease`` does; return those that are lost."""
    pairs = zip(leases, lease_ms, strict=True)
    call = Renew([(lease.name, lease.token, ms) for lease, ms in pairs])
    try:
        answers = yield from ask(call)
    except LockError as error:
        error.name = error.name or leases[0].name
        raise
    for lease, left_ms in zip(leases, answers, strict=True):
        lease.version += 1
        lease.renewed(left_ms, call.sent_at)
    return [lease for lease in leases if lease.lost]
