"""What is done to the leases of one or several held locks: set, confirmed, released, found lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from django_redis_lock import signals
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.renewal import mark_lost, renewer
from django_redis_lock.exceptions import LockError, LockLost, LockUnavailable
from django_redis_lock.primitives.held import Held
from django_redis_lock.protocol import calls, conversation
from django_redis_lock.protocol.drivers import Steps
from django_redis_lock.protocol.lease import Lease
from django_redis_lock.support.process import known_process

logger = logging.getLogger("django_redis_lock")
Hold = tuple[Held, Lease]


def confirm(held: Sequence[Held]) -> Steps[None]:
    """Ask the server whether the locks are still held. Raises ``LockLost``."""
    yield from set_leases(held, lambda lease: 0)


def set_leases(held: Sequence[Held], lease_ms: Callable[[Lease], int]) -> Steps[None]:
    """Set what is left of each lease (ms), or only look at it for 0. Raises ``LockLost``."""
    leases = [each._lease_to_set() for each in held]
    if not all(lease.lost for lease in leases):
        yield from renew_in_time(leases, [lease_ms(lease) for lease in leases])
    lost = [hold for hold in zip(held, leases, strict=True) if hold[1].lost]
    if lost:
        raise (yield from report_losses(lost, held[0].backend, "it expired or was broken"))


def renew_in_time(leases: Sequence[Lease], lease_ms: Sequence[int]) -> Steps[list[Lease]]:
    """Set what is left of leases and tell the renewer; return those that are lost."""
    try:
        return (yield from conversation.set_leases(leases, lease_ms))
    finally:  # the server may have set them even if no answer came
        renewer.was_set(leases, lease_ms)


def release(held: Held) -> Steps[None]:
    """Release a lock.

    Raises ``LockLost``, and ``LockUnavailable`` where it is not known whether it was lost; then it
    can be called again. However it fails, the lock is released in the background as soon as the
    server answers, unless it expires before.
    """
    lease, backend = held._held(), held.backend
    try:
        lease.given_up = True
        renewer.discard(lease)  # before the release is sent, so nothing renews it afterwards
        # An earlier release may have been carried out without an answer; then it is no loss.
        asked = not lease.lost or lease.release_sent_at is not None
        ours = asked and (yield from conversation.release(lease))
    except LockError:
        _release_in_background(held, lease)
        raise  # the handle keeps its lease, so that the caller can try again
    except BaseException:
        _release_in_background(held, lease)
        held._forget(lease)
        raise
    held._forget(lease)
    if not ours:
        reason = "it expired or was broken before its release"
        raise (yield from report_losses([(held, lease)], backend, reason))
    backend.freed(lease.name)
    if signals.lock_released.receivers:
        held_for = monotonic() - held._acquired_at
        yield from emit(signals.lock_released, held, backend, held_for=held_for)


def release_all(held: Sequence[Held]) -> Steps[None]:
    """Release locks of one backend, one after another; raise the first error at the end.

    Once the server does not answer, or if this is interrupted, the others are released in the
    background.
    """
    failure: LockError | None = None
    left = [*held]
    try:
        while left:
            each = left.pop(0)
            try:
                yield from release(each)
            except LockError as error:
                failure = failure or error
                if isinstance(error, LockUnavailable) and error.silent:
                    break
    except BaseException:
        for each in left:
            _give_up(each)._forget(each._held())
        raise
    for each in left:  # these handles keep their leases, so that the caller can try again
        _give_up(each)
    if failure is not None:
        raise failure


def finish(held: Sequence[Held], *, later: bool = False) -> Steps[None]:
    """Release locks where no caller can be told of a failure; it is logged instead.

    With ``later`` that is left to the background, as the server does not answer now.
    """
    if later:
        for each in held:
            _give_up(each)._forget(each._held())
        return
    try:
        yield from release_all(held)
    except LockLost:
        pass  # and logged when it was found
    except LockError as error:
        names = ", ".join(repr(each.name) for each in held)
        logger.warning("Lock %s could not be released yet, trying again: %s", names, error)
        if isinstance(error, LockUnavailable):
            yield from held[0].backend.tell_unavailable(error)
    for each in held:
        if each._lease is not None:
            each._forget(each._lease)


def report_losses(holds: Sequence[Hold], backend: BaseLockBackend, reason: str) -> Steps[LockLost]:
    """Log and signal lost leases; return the error about the first of them."""
    for each, lease in holds:
        if mark_lost(lease, reason):
            yield from emit(signals.lock_lost, each, backend)
    name = holds[0][1].name
    return LockLost(f"Lock {name!r} is no longer held: {reason}.", name=name)


def emit(
    signal: signals.LockSignal, held: Held, backend: BaseLockBackend, **news: Any
) -> tuple[calls.Emit, ...]:
    """Send a signal about a lock: at once, or by the step to take if a receiver may block."""
    if signal.may_block:
        return (emission(signal, held, backend, **news),)
    for receiver in signal.quick:  # here, as each further call would take as long as the receiver
        try:
            receiver(
                signal=signal,
                sender=type(backend),
                using=backend.alias,
                name=held.name,
                lock=held,
                **news,
            )
        except Exception:
            signal.log_failure(receiver)
    return ()


def emission(
    signal: signals.LockSignal, held: Held, backend: BaseLockBackend, **news: Any
) -> calls.Emit:
    """Return the step that sends a signal about a lock."""
    arguments = {"sender": type(backend), "using": backend.alias, "name": held.name}
    return calls.Emit(signal, {**arguments, "lock": held, **news})


def _give_up(held: Held) -> Held:
    """Leave the release of a lock to the background."""
    lease = held._held()
    lease.given_up = True
    renewer.discard(lease)
    _release_in_background(held, lease)
    return held


def _release_in_background(held: Held, lease: Lease) -> None:
    if lease.process is known_process():  # else this is a child, forked in the meantime
        call = calls.Release(lease.name, lease.token, patient=False)
        renewer.withdraw(call, held.backend, lease.longest)
