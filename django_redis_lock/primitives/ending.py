"""How holds end, of one lock or of several at once: released, or found lost."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_redis_lock import signals
from django_redis_lock.backends.keeping import mark_lost
from django_redis_lock.backends.renewal import renewer
from django_redis_lock.exceptions import LockError, LockLost, LockUnavailable
from django_redis_lock.protocol import audit, calls, conversation
from django_redis_lock.protocol.lease import Lease
from django_redis_lock.support.process import known_process

if TYPE_CHECKING:
    from django_redis_lock.primitives.holding import Handle
    from django_redis_lock.protocol.drivers import Steps

logger = logging.getLogger("django_redis_lock")
Hold = tuple["Handle", Lease]


def give_up(handles: Sequence[Handle]) -> Steps[None]:
    """Release the locks of some handles of one backend.

    Raises ``LockLost`` where one was lost, and then the others are released; ``LockUnavailable``
    where that is not known, and then it can be done again. However it fails, the locks are released
    in the background as soon as the server can be asked, for as long as they last.
    """
    if len(handles) > 1 and not handles[0].backend.supports_many:
        yield from _give_up_in_turn(handles)
        return
    holds = [(handle, handle._held()) for handle in handles]
    backend = handles[0].backend
    asked = []
    try:
        for _, lease in holds:
            lease.given_up = True
            renewer.discard(lease)  # before the release is sent, so nothing renews it afterwards
            # What may have been given up before, unseen, can't be told from what was lost.
            if not lease.lost or lease.release_sent_at is not None:
                asked.append(lease)
        ours = (yield from conversation.release(asked)) if asked else set[str]()
    except LockError:
        _see_through(holds, backend)
        raise  # not known to be released, so the leases are kept to try again
    except BaseException:
        _see_through(holds, backend)
        _forget(holds)
        raise
    _forget(holds)
    lost = []
    for handle, lease in holds:
        if lease.token in ours:
            backend.freed(lease.name)
            if signals.lock_released.receivers:
                held_for = monotonic() - handle._acquired_at
                yield from tell(signals.lock_released, handle, backend, held_for=held_for)
        else:
            lost.append((handle, lease))
    if lost:
        raise (yield from losses(lost, backend, "it expired or was broken before its release"))


def _give_up_in_turn(handles: Sequence[Handle]) -> Steps[None]:
    failure = None
    for handle in handles:
        try:
            yield from give_up([handle])
        except LockError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def finish(handles: Sequence[Handle]) -> Steps[None]:
    """Release locks as ``give_up`` does, where nobody is there to be told of what goes wrong."""
    if not handles:
        return
    backend = handles[0].backend
    try:
        yield from give_up(handles)
    except LockLost:
        pass  # and logged when it was found
    except LockError as error:
        names = ", ".join(repr(handle.name) for handle in handles)
        logger.warning("Lock %s could not be released yet, trying again: %s", names, error)
        for handle in handles:
            if handle._lease is not None:
                handle._forget(handle._lease)
        if isinstance(error, LockUnavailable):
            yield from backend.tell_unavailable(error)


def losses(holds: Sequence[Hold], backend: Any, reason: str) -> Steps[LockLost]:
    """Tell of leases that are lost; return the error about the first."""
    entries = []
    for handle, lease in holds:
        if mark_lost(lease, reason):
            yield from tell(signals.lock_lost, handle, backend)
            entries.append(audit.lost(lease, reason))
    if entries:
        yield from renewer.note_losses(entries, backend)
    name = holds[0][1].name
    return LockLost(f"Lock {name!r} is held no longer: {reason}.", name=name)


def tell(signal: Any, handle: Handle, backend: Any, **news: float) -> Steps[None]:
    """Send a signal about the lock of a handle."""
    if signal.receivers:
        arguments = {"sender": type(backend), "using": backend.alias, "name": handle.name}
        yield calls.Emit(signal, {**arguments, "lock": handle, **news})


def _see_through(holds: Sequence[Hold], backend: Any) -> None:
    for _, lease in holds:
        if lease.process is known_process():  # else this is a child, forked meanwhile
            call = calls.Release(lease.name, lease.token, patient=False)
            renewer.withdraw(call, backend, lease.remaining)


def _forget(holds: Sequence[Hold]) -> None:
    for handle, lease in holds:
        handle._forget(lease)
