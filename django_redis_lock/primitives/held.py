"""A lock as a handle holds it: what is known of its lease, and what is done to it."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from django_redis_lock import signals
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.renewal import REASON_EXPIRED, renewer, report_loss
from django_redis_lock.exceptions import LockError, LockLost, LockNotOwned, LockUnavailable
from django_redis_lock.protocol import calls, locking
from django_redis_lock.protocol.calls import Steps
from django_redis_lock.protocol.lease import Lease, State, token_id
from django_redis_lock.support import process
from django_redis_lock.support.arguments import OnUnavailable

logger = logging.getLogger("django_redis_lock")
FAILED_FOR = 0.5  # seconds after a failure for which callers that may run unguarded only probe
PROBE_FOR = 0.005  # seconds that the server gets to answer a probe


class Held:
    """The part of a handle that holds the lease of one lock."""

    name: str
    reentrant: bool
    after_commit: bool
    on_unavailable: OnUnavailable
    _find_backend: Callable[[], BaseLockBackend]

    lease: Lease | None = None
    _backend: BaseLockBackend | None = None
    _acquired_by: Held | None = None  # the handle that acquired the hold, if it was another
    deferred = False  # released or detached, but held until a transaction ends
    unguarded = 0  # how many blocks run without the lock, because the server was unavailable

    @property
    def backend(self) -> BaseLockBackend:
        return self._backend or self._find_backend()

    @property
    def signalled(self) -> Held:  # the handle that signals name
        return self if self._acquired_by is None else self._acquired_by

    @property
    def fence(self) -> int | Any:
        """The fence of this hold, greater than that of every earlier holder.

        ``None`` if the block runs unguarded, without the lock. Raises ``LockNotOwned``.
        """
        return self.held_lease().fence if self.is_held_here or not self.unguarded else None

    @property
    def token_id(self) -> str:
        """The digest that identifies this hold in ``Holder.token_id``. Raises ``LockNotOwned``."""
        return token_id(self.held_lease().token.encode())

    @property
    def ticket(self) -> str:
        """The ``token_id`` that the lock will have once this handle has detached it.

        Known in advance, it can be sent to the next holder. Raises ``LockNotOwned``.
        """
        return token_id(detached(self.held_lease().token).encode())

    @property
    def remaining(self) -> float:
        """Seconds left of the lease by the local clock; 0.0 if the lock is not held.

        Infinite for a lock that never expires. Makes no round trip.
        """
        lease = self.lease
        if lease is None or lease.lost or lease.process is not process.current_process():
            return 0.0
        return lease.remaining

    @property
    def lost(self) -> bool:
        """Whether the lock is known to be lost: not renewed, or expired. Makes no round trip."""
        lease = self.lease
        return lease is not None and (lease.lost or lease.passed)

    @property
    def is_held_here(self) -> bool:
        """Whether this process holds it: neither released nor detached nor lost. No round trip."""
        return self.lease is not None and self.lease.valid and not self.deferred

    def held_lease(self) -> Lease:
        lease = self.lease
        if lease is None:
            why = ": the block runs without it, as the server failed" * bool(self.unguarded)
            raise self._not_owned(f"is not held by this handle{why}")
        if lease.process is not process.current_process():
            pid = lease.process.pid
            raise self._not_owned(f"is held by the parent process {pid}, not by its forked child")
        return lease

    def lease_to_release(self) -> Lease:
        lease = self.held_lease()
        if self.deferred:
            raise self._not_owned("was released already, with effect when the transaction ends")
        return lease

    def lease_to_set(self) -> Lease:
        lease = self.held_lease()
        if lease.state is State.RELEASING:
            raise self._not_owned("was released already; that is being retried in the background")
        return lease

    def _not_owned(self, why: str) -> LockNotOwned:
        return LockNotOwned(f"Lock {self.name!r} {why}.", name=self.name)

    def misuse(self, text: str) -> LockError:
        return LockError(text, name=self.name)

    def vacate(self) -> None:  # so that acquiring overwrites nothing that is still held
        lease = self.lease
        if lease is None:
            return
        if lease.valid:
            again = "" if self.reentrant else ", or pass reentrant=True"
            raise self.misuse(
                f"This handle already holds lock {self.name!r}, and keeps it. Create a handle for "
                f"each caller{again}."
            )
        self.let_go(lease)

    def hold(self, lease: Lease, backend: BaseLockBackend, by: Held | None = None) -> None:
        # First, so that whatever interrupts the rest finds the lock to give up.
        self.lease, self._backend, self.deferred, self._acquired_by = lease, backend, False, by
        if lease.auto_renew or lease.verify_by is not None:
            renewer.add(lease, backend, self if by is None else by, renew=lease.auto_renew)
        register.add(self, lease, backend.alias)

    def let_go(self, lease: Lease) -> None:
        renewer.discard(lease)
        self.lease, self._backend, self.deferred = None, None, False

    def note_failure(self) -> None:
        """Let callers that may run unguarded only probe the server for some time."""
        failed, server = self.backend.failed_until, self.backend.renewal_group(self.name)
        if (now := monotonic()) >= failed.get(server, 0.0):
            failed[server] = now + FAILED_FOR

    def probe(self) -> Steps[bool]:
        """Raise soon if a server that failed lately still does; return if it may refuse writes."""
        if self.unguarded and not self.reentrant:  # a release would be of either's
            raise self.misuse(
                f"This handle already runs without lock {self.name!r}: create one for each caller."
            )
        failed, server = self.backend.failed_until, self.backend.renewal_group(self.name)
        if (ends := failed.get(server)) is None:
            return False
        now = monotonic()
        until = now + PROBE_FOR
        if now >= ends:  # one caller at a time gives it its usual time again
            failed[server], until = now + FAILED_FOR, math.inf
        # With -1 the replicas have to answer, too.
        yield calls.Renew([(self.name, "probe", -1)], patient=False, until=until)
        failed.pop(server, None)
        return until < math.inf


Hold = tuple[Held, Lease]
Leave = Callable[[Sequence[Held]], Steps[Any]]  # carries out an exit; a ``LockError`` is logged
waiting: weakref.WeakSet[Any] = weakref.WeakSet()  # exits that wait for a transaction to end


def confirm(held: Sequence[Held]) -> Steps[None]:
    """Ask the server whether the locks are still held. Raises ``LockLost``."""
    yield from set_leases(held, lambda lease: 0)


def set_leases(held: Sequence[Held], lease_ms: Callable[[Lease], int]) -> Steps[None]:
    """Set what is left of each lease (ms), or only ask for it with 0. Raises ``LockLost``."""
    leases = [each.lease_to_set() for each in held]
    if not all(lease.lost for lease in leases):
        yield from renew_in_time(leases, [*map(lease_ms, leases)])
    if lost := [hold for hold in zip(held, leases, strict=True) if hold[1].lost]:
        raise (yield from report_losses(lost, held[0].backend, REASON_EXPIRED))


def renew_in_time(leases: Sequence[Lease], lease_ms: Sequence[int]) -> Steps[list[Lease]]:
    """Set what is left of leases, and when they are renewed; return those that are lost."""
    try:
        return (yield from locking.set_leases(leases, lease_ms))
    finally:  # the server may have set them even if no answer came
        renewer.was_set(leases, lease_ms)


def release(held: Held) -> Steps[None]:
    """Release a lock, in the background if that fails. Raises ``LockLost``, ``LockUnavailable``."""
    lease, backend = held.held_lease(), held.backend
    try:
        renewer.discard(lease)  # before the release is sent, so nothing renews it afterwards
        ours = yield from locking.release(lease)
    except BaseException as error:
        _give_up(held, lease)
        if not isinstance(error, LockError):  # else the caller can try again
            held.let_go(lease)
        raise
    held.let_go(lease)
    if not ours:
        reason = f"{REASON_EXPIRED}, before release() was called"
        raise (yield from report_losses([(held, lease)], backend, reason))
    if backend.registries:
        backend.freed(lease.name)
    if signals.lock_released.receivers:
        facts = {"lock": held.signalled, "held_for": monotonic() - lease.began}
        yield from backend.emit(signals.lock_released, lease.name, **facts)


def release_all(held: Sequence[Held]) -> Steps[None]:
    """Release locks of one backend, the rest in the background after an interruption or a silence.

    The first error is raised at the end.
    """
    failures: list[LockError] = []
    left = [*held]
    try:
        while left:
            each = left.pop(0)
            try:
                yield from release(each)
            except LockError as error:
                failures = failures or [error]
                if isinstance(error, LockUnavailable) and error.silent:
                    break
    except BaseException:
        abandon(left)
        raise
    for each in left:  # these handles still have their leases, so that the caller can try again
        _give_up(each, each.held_lease())
    if failures:
        raise failures.pop()  # which the frame that it refers to must not refer to


def finish(held: Sequence[Held]) -> Steps[None]:
    """Release locks where no caller can handle a failure; it is logged instead."""
    try:
        yield from release_all(held)
    except LockLost:
        pass  # and logged when it was found
    except LockError as error:
        names = ", ".join(repr(each.name) for each in held)
        logger.warning("Could not release lock %s; retrying in the background: %s", names, error)
        if isinstance(error, LockUnavailable):
            yield from held[0].backend.failed(error)
    for each in held:
        if each.lease is not None:
            each.let_go(each.lease)


def report_losses(holds: Sequence[Hold], backend: BaseLockBackend, reason: str) -> Steps[LockLost]:
    """Log and signal lost leases; return the error about the first of them."""
    for each, lease in holds:
        yield from report_loss(backend, lease, each.signalled, reason)
    first = holds[0][1]
    return LockLost(f"Lock {first.name!r} is no longer held: {first.why_lost}.", name=first.name)


def abandon(held: Sequence[Held]) -> None:
    """Leave the release of locks to the background; the handles hold nothing afterwards."""
    for each in held:
        if each.lease is not None:
            _give_up(each, each.lease)
            each.let_go(each.lease)


def _give_up(held: Held, lease: Lease) -> None:
    lease.begin_release()
    renewer.discard(lease)
    if lease.process is process.known_process():  # else this is a child, forked in the meantime
        for token in filter(None, (lease.token, lease.detached_as)):
            call = calls.Release(lease.name, token, shared=lease.permit, patient=False)
            renewer.withdraw(call, held.backend, lease.longest)


class Register:
    """The leases of the locks that each thread, greenlet or asyncio task of this process holds."""

    def __init__(self) -> None:
        self.after_fork()
        process.forget_after_fork(self)

    def after_fork(self) -> None:
        self.mutex = threading.RLock()
        # By name, id of the execution, alias, and whether it may be entered again.
        self._leases: dict[tuple[str, int, str, bool | str], weakref.ref[Lease]] = {}

    def add(self, held: Held, lease: Lease, alias: str) -> None:
        execution = process.current_execution()
        lease.bind(execution, after_commit=held.after_commit)
        key = lease.name, id(execution), alias, held.reentrant or lease.token
        # As a ``WeakValueDictionary`` does it, but without running any Python code.
        self._leases[key] = weakref.ref(lease, partial(self._leases.pop, key))

    def find(self, alias: str, name: str) -> Lease | None:
        """Return the lease that the current execution seems to hold; ``enter`` checks it."""
        reference = self._leases.get((name, id(process.current_execution()), alias, True))
        return None if reference is None else reference()

    def of_hold(self, hold: str) -> Lease | None:
        """Return the lease of this process whose lock has a ``token_id``, as far as is known."""
        leases = (reference() for reference in [*self._leases.values()])
        found = (each for each in leases if each and token_id(each.token.encode()) == hold)
        return next(found, None)

    def held_here(self, name: str, *aliases: str) -> list[Lease]:
        """Return the valid leases of the current execution on locks of a name, and of aliases."""
        leases = [
            reference()
            for key, reference in self._leases.copy().items()  # atomic, unlike a list of items
            if key[0] == name and (not aliases or key[2] in aliases)
        ]
        return [each for each in leases if each is not None and _is_mine(each) and each.valid]

    def enter(self, lease: Lease) -> bool:
        """Enter a lock once more; return False unless the current execution holds it."""
        with self.mutex:  # the id by which the lease was found may be that of a later execution
            return _is_mine(lease) and lease.enter()

    def leave(self, lease: Lease) -> bool:
        """Leave a lock; return whether that was the last entry, so that it must be released."""
        with self.mutex:
            return lease.exit()


register = Register()


def _is_mine(lease: Lease) -> bool:
    execution = None if lease.execution is None else lease.execution()
    return execution is process.current_execution()


def detached(token: str) -> str:
    return hashlib.sha256(f"detached {token}".encode()).hexdigest()[:32]
