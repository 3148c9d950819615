"""What a handle holds and what it does, as steps for either driver."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from django_redis_lock import signals
from django_redis_lock.backends.renewal import renewer, set_leases
from django_redis_lock.exceptions import LockError, LockNotOwned
from django_redis_lock.primitives import gate
from django_redis_lock.primitives.ending import finish, give_up, losses, tell
from django_redis_lock.primitives.reentrance import enter_again, find_held, forget, leave, remember
from django_redis_lock.protocol import acquiring, calls, conversation
from django_redis_lock.protocol.lease import Lease, Request, milliseconds
from django_redis_lock.protocol.records import token_id, write_record
from django_redis_lock.protocol.waiting import check_scheme
from django_redis_lock.support.arguments import (
    check_max_hold,
    check_metadata,
    check_name,
    check_timeout,
    check_wait,
)
from django_redis_lock.support.process import current_process

if TYPE_CHECKING:
    from django_redis_lock.backends.base import BaseLockBackend
    from django_redis_lock.protocol.drivers import Steps

DETACHED = "detached"
"""The ``state`` in the metadata of a lock that was detached with no other."""


class Default:
    """Stands for a value that was not given."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default()


class Handle:
    """The state of a lock's handle, and the steps of each of its operations."""

    def __init__(
        self,
        find_backend: Callable[[], BaseLockBackend],
        name: str,
        timeout: float | Default | None = DEFAULT,
        *,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        auto_renew: bool | None = None,
        reentrant: bool = False,
        wait: str | None = None,
        metadata: Mapping[str, str] | None = None,
        task_id: str | None = None,
        task_name: str | None = None,
        after_commit: bool = True,
        max_hold: float | None = None,
    ) -> None:
        self.name = check_name(name)
        self._find_backend = find_backend
        self._timeout = timeout if isinstance(timeout, Default) else check_timeout(timeout)
        self.blocking = blocking
        self.blocking_timeout = check_wait(blocking_timeout)
        if not blocking and blocking_timeout is not None:
            raise _meaningless(blocking_timeout)
        self._auto_renew = isinstance(timeout, Default) if auto_renew is None else auto_renew
        if self._auto_renew and self._timeout is None:
            raise ValueError(
                "auto_renew=True has no meaning with timeout=None, a lock that never expires."
            )
        self._max_hold = check_max_hold(max_hold)
        if self._max_hold is not None and not self._auto_renew:
            raise ValueError(
                f"max_hold={max_hold!r} has no meaning with timeout={timeout!r}, a lease that is "
                f"not renewed; leave it out, or add auto_renew=True."
            )
        self.reentrant = reentrant
        self._wait = check_scheme(wait)
        self._origin: dict[str, Any] = {"task_id": task_id, "task_name": task_name}
        if metadata:
            self._origin["metadata"] = check_metadata(metadata)
        self._vacant = [None]  # whoever pops the one item may acquire; a pop is atomic
        self._lease: Lease | None = None
        self._backend: BaseLockBackend | None = None
        self._acquired_at = 0.0
        self._again = 0  # how often this handle itself was entered again
        self.after_commit = after_commit
        self._put_off = False  # released, and kept until a transaction has ended

    def _fresh(self) -> Self:
        """Return another handle made with the same arguments."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._vacant, other._lease, other._backend, other._again = [None], None, None, 0
        other._put_off = False
        return other

    def __repr__(self) -> str:
        lease = self._lease
        if lease is None:
            return f"<{type(self).__name__} {self.name!r}>"
        state = "lost" if self.lost else f"fence {lease.fence}, {lease.remaining:.1f} s left"
        return f"<{type(self).__name__} {self.name!r}: {state}>"

    @property
    def backend(self) -> BaseLockBackend:
        """The backend that keeps this lock."""
        return self._backend or self._find_backend()

    @property
    def timeout(self) -> float | None:
        """The lease in seconds; ``None`` for a lock that never expires."""
        return self.backend.timeout if isinstance(self._timeout, Default) else self._timeout

    @property
    def fence(self) -> int:
        """The fencing number of this hold, greater than that of every earlier holder.

        Raises ``LockNotOwned`` when the lock is not held.
        """
        return self._held().fence

    @property
    def token_id(self) -> str:
        """The digest by which this hold is known to others, as in ``Holder.token_id``.

        Raises ``LockNotOwned`` when the lock is not held.
        """
        return token_id(self._held().token.encode())

    @property
    def ticket(self) -> str:
        """The ``token_id`` that the lock will have once this handle has detached it.

        Known beforehand, so that it can be sent to whoever is to take the lock over. Raises
        ``LockNotOwned`` when the lock is not held.
        """
        return token_id(_detached(self._held().token).encode())

    @property
    def remaining(self) -> float:
        """Seconds of lease left by the local monotonic clock; 0.0 when the lock is not held.

        Infinite for a lock that never expires. No round trip.
        """
        lease = self._lease
        return 0.0 if lease is None or lease.lost or _inherited(lease) else lease.remaining

    @property
    def lost(self) -> bool:
        """Whether the lock is known to be lost: a renewal was refused, or the lease has passed.

        No round trip.
        """
        lease = self._lease
        return lease is not None and (lease.lost or lease.passed)

    def _held(self) -> Lease:
        """Return the lease, lost or not. Raises ``LockNotOwned`` where there is none."""
        lease = self._lease
        if lease is None:
            raise LockNotOwned(f"This handle does not hold lock {self.name!r}.", name=self.name)
        if _inherited(lease):
            raise LockNotOwned(
                f"Lock {self.name!r} is held by the parent process {lease.process.pid}; "
                f"a forked child does not own its parent's locks.",
                name=self.name,
            )
        return lease

    def _in_hand(self) -> Lease:
        """Return the lease, as ``_held`` does, unless it was released already."""
        lease = self._held()
        if self._put_off:
            raise LockNotOwned(
                f"Lock {self.name!r} was released already, and is given up when the transaction "
                f"ends.",
                name=self.name,
            )
        return lease

    def _kept(self) -> Lease:
        """Return the lease, as ``_held`` does, unless its release was begun."""
        lease = self._held()
        if lease.given_up:
            raise LockNotOwned(
                f"Lock {self.name!r} was released already, and the server is told as soon as it "
                f"can be.",
                name=self.name,
            )
        return lease

    def _until(
        self, blocking: bool | None, blocking_timeout: float | Default | None
    ) -> float | None:
        """Return until when to wait (monotonic), ``None`` for not at all."""
        wait = self.blocking_timeout
        if not isinstance(blocking_timeout, Default):
            if blocking is False and blocking_timeout is not None:
                raise _meaningless(blocking_timeout)
            wait = check_wait(blocking_timeout)
        if not (self.blocking if blocking is None else blocking) or wait == 0:
            return None
        return math.inf if wait is None else monotonic() + wait

    def _acquire(self, until: float | None, from_token_id: str = "") -> Steps[bool]:
        """Take the lock, waiting ``until``; or take it over from the holder of a token."""
        began = monotonic()
        try:
            self._vacant.pop()
        except IndexError:
            raise LockError(
                f"This handle is acquiring lock {self.name!r} already; make one for each caller.",
                name=self.name,
            ) from None
        try:
            if self.reentrant and self._lease and enter_again(self._lease):
                self._again += 1
                return True
            backend = self._find_backend()
            if not (self._put_off and gate.current().waiting(backend, self.name)):
                self._vacate()
            again = self.reentrant and not from_token_id
            entered = find_held(backend, self.name) if again else None
            if entered is not None and enter_again(entered):
                lease: Lease | None = entered
            else:
                lease = yield from self._obtain(backend, until, from_token_id)
            self._lease = lease
            self._backend = backend if lease else None
        finally:
            self._vacant.append(None)
        self._acquired_at = monotonic()
        signal = signals.lock_acquired if lease else signals.lock_not_acquired
        if lease is None or lease is not entered:
            try:
                yield from tell(signal, self, backend, waited=self._acquired_at - began)
            except GeneratorExit:
                raise
            except BaseException:  # cancelled or interrupted in a receiver: the caller gets no lock
                yield from self.finish(self.parts())
                raise
        return lease is not None

    def _vacate(self) -> None:
        """Make sure that the handle holds nothing that acquiring would overwrite."""
        lease = self._lease
        if lease is None:
            return
        if not (_inherited(lease) or self.lost or lease.given_up):
            raise LockError(
                f"This handle holds lock {self.name!r} already, and goes on holding it. Make one "
                f"for each caller, or let one caller enter again with reentrant=True.",
                name=self.name,
            )
        self._forget(lease)

    def _obtain(
        self, backend: BaseLockBackend, until: float | None, from_token_id: str
    ) -> Steps[Lease | None]:
        request = self._request(backend)
        hub = backend.hub_for(self._wait)
        former = None if from_token_id else gate.current().waiting(backend, self.name)
        if former is not None:
            from_token_id = former.token_id
        lease = None
        try:
            lease = yield from (
                acquiring.take_over(hub, request, from_token_id)
                if from_token_id
                else acquiring.acquire(hub, request, until)
            )
            if former is not None:
                if lease is None:
                    reason = "it expired or was broken before the transaction ended"
                    raise (yield from losses([(former, former._held())], backend, reason))
                former._forget(former._held())
            if lease is not None:
                self._keep(lease, backend)
            return lease
        finally:
            # Given up, and the server could not be told.
            if request.adrift and (lease is None or self._lease is not lease):
                call = conversation.withdrawal(hub, request)
                renewer.withdraw(call, backend, request.longest)

    def _request(self, backend: BaseLockBackend) -> Request:
        timeout = backend.timeout if isinstance(self._timeout, Default) else self._timeout
        if self._max_hold is not None:
            timeout = min(self._max_hold, math.inf if timeout is None else timeout)
        auto_renew = self._auto_renew and timeout is not None
        lease_ms = None if timeout is None else milliseconds(timeout)
        hold_ms = None if self._max_hold is None else milliseconds(self._max_hold)
        record = write_record(
            auto_renew=auto_renew, lease_ms=lease_ms, max_hold_ms=hold_ms, **self._origin
        )
        return Request(self.name, os.urandom(16).hex(), timeout, record, auto_renew=auto_renew)

    def _keep(self, lease: Lease, backend: BaseLockBackend) -> None:
        if self._max_hold is not None and lease.timeout is not None:
            lease.renew_until = lease.deadline - lease.timeout + self._max_hold
        self._look_after(lease, backend)
        if self.reentrant:
            remember(lease, backend)
        self._lease, self._backend = lease, backend

    def _look_after(self, lease: Lease, backend: BaseLockBackend) -> None:
        if lease.auto_renew or lease.verify_by is not None:
            renewer.add(lease, backend, self, renew=lease.auto_renew)

    def _forget(self, lease: Lease) -> None:
        if self.reentrant:
            forget(lease)
        renewer.discard(lease)
        self._lease = self._backend = None
        self._put_off = False

    def _release(self) -> Steps[None]:
        lease = self._in_hand()
        if self.reentrant and not leave(lease):
            if self._again:
                self._again -= 1
            else:
                self._lease = self._backend = None
            return
        if not lease.lost and gate.current().puts_off(self):
            self._put_off = True
            return
        yield from give_up([self])

    def parts(self) -> list[Handle]:
        """Return this handle where it holds its lock."""
        return [] if self._lease is None else [self]

    def confirm(self, parts: list[Handle]) -> Steps[None]:
        """Ask the server whether the lock is still held. Raises ``LockLost``."""
        if parts:
            yield from self._ensure_held()

    def finish(self, parts: list[Handle]) -> Steps[None]:
        """Give the lock up; what goes wrong is logged, and tried again for as long as it helps."""
        yield from finish(parts)

    def _detach(self, seconds: float, metadata: Mapping[str, str] | None) -> Steps[str]:
        lease = self._in_hand()
        self._kept()
        if check_timeout(seconds, "seconds") is None:
            raise ValueError("A lock is detached for some seconds, for nobody could release it.")
        if lease.entries > 1:
            raise LockError(
                f"Lock {self.name!r} was entered {lease.entries} times and can't be detached.",
                name=self.name,
            )
        origin = dict(self._origin)
        if metadata is not None:
            both = {**origin.get("metadata", {}), **check_metadata(metadata)}
            origin["metadata"] = check_metadata(both)
        # No process has it from here on, so none that ends is to be taken for its holder's death.
        origin["metadata"] = {"state": DETACHED, **origin.get("metadata", {})}
        record = write_record(auto_renew=False, **origin)
        request = Request(self.name, _detached(lease.token), seconds, record)
        # Sent under a token of its own, so that nothing meant for this hold can reach it later.
        call = calls.TakeOver(request, token_id(lease.token.encode()))
        renewer.discard(lease)
        try:
            # What may have been detached before, unseen, can't be told from what was lost.
            ask = not lease.lost or lease.release_sent_at is not None
            detached = ask and (yield from conversation.detach(lease, call))
        except BaseException:  # not known to be detached, so it is kept
            self._look_after(lease, self.backend)
            raise
        backend = self.backend
        self._forget(lease)
        if not detached:
            reason = "it expired or was broken before it was detached"
            raise (yield from losses([(self, lease)], backend, reason))
        return token_id(request.token.encode())

    def _extend(self, seconds: float | None, *, replace_ttl: bool) -> Steps[bool]:
        lease = self._kept()
        if lease.timeout is None:
            raise LockError(
                f"Lock {self.name!r} never expires, so its lease can't be set.", name=self.name
            )
        seconds = lease.timeout if seconds is None else check_timeout(seconds, "additional_time")
        assert seconds is not None
        yield from self._set_lease(lease, seconds if replace_ttl else lease.remaining + seconds)
        return True

    def _ensure_held(self) -> Steps[None]:
        yield from self._set_lease(self._kept(), 0)

    def _set_lease(self, lease: Lease, seconds: float) -> Steps[None]:
        """Set the lease, or only look at it for 0 seconds. Raises ``LockLost``."""
        if lease.lost or (yield from set_leases([lease], [milliseconds(seconds)])):
            raise (yield from losses([(self, lease)], self.backend, "it expired or was broken"))

    def _owned(self) -> Steps[bool]:
        try:
            yield from self._ensure_held()
        except LockNotOwned:
            return False
        return True

    def _locked(self) -> Steps[bool]:
        _, value, *_ = yield from conversation.ask(calls.Inspect([self.name]))
        return value is not None


def _detached(token: str) -> str:
    """Return the token under which a lock is detached."""
    return hashlib.sha256(f"detached {token}".encode()).hexdigest()[:32]


def _inherited(lease: Lease) -> bool:
    """Whether a parent process acquired it."""
    return lease.process is not current_process()


def _meaningless(blocking_timeout: Any) -> ValueError:
    return ValueError(
        f"blocking_timeout={blocking_timeout!r} has no meaning with blocking=False; "
        f"leave one of them out."
    )
