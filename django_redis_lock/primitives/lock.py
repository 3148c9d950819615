"""The handle of one lock."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Self

from django_redis_lock import signals
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.renewal import REASON_EXPIRED, renewer
from django_redis_lock.exceptions import LockError, LockNotAcquired, LockUnavailable
from django_redis_lock.primitives import held as holds
from django_redis_lock.primitives.handle import Handle, defer
from django_redis_lock.primitives.held import Held, register
from django_redis_lock.protocol import calls, locking
from django_redis_lock.protocol.calls import Steps, ask, withdrawal
from django_redis_lock.protocol.lease import Lease, Request, shared_record, token_id, write_record
from django_redis_lock.support import arguments
from django_redis_lock.support.arguments import DEFAULT, Default, Seconds, check_name, check_timeout
from django_redis_lock.support.process import kind_of_execution

logger = logging.getLogger("django_redis_lock")
DETACHED = "detached"  # the ``state`` among the marks of a detached lock


class Lock(Held, Handle):
    """A handle of one lock, with the vocabulary of redis-py's ``Lock``.

    It holds the lock at most once at a time. Any thread may release it, not only the one that
    acquired it. It is a context manager and a decorator, for synchronous and asynchronous code.
    ``django_redis_lock.lock()`` creates it, and documents the arguments.
    """

    full = False  # max_waiters callers waited already
    waited = False  # it was acquired after a wait
    _again = 0  # how many more times this handle has entered the lock
    sharing = arguments.EXCLUSIVE  # with whom it is shared, and how many may wait
    _wait: str | None = None
    _make_name: Callable[[str], str] | None = None
    given = ""  # the name that the caller gave, from which ``_make_name`` made the lock's

    def __init__(
        self,
        find: Callable[[], BaseLockBackend],
        name: str,
        timeout: Seconds = DEFAULT,
        *,
        blocking: bool = True,
        blocking_timeout: Seconds = DEFAULT,
        auto_renew: bool | None = None,
        reentrant: bool = False,
        wait: str | None = None,
        metadata: Mapping[str, str] | None = None,
        task_id: str | None = None,
        task_name: str | None = None,
        after_commit: bool = True,
        max_hold: float | None = None,
        on_unavailable: arguments.OnUnavailable = "raise",
        sharing: arguments.Sharing = arguments.EXCLUSIVE,
    ) -> None:
        super().__init__(check_name(name), blocking=blocking, blocking_timeout=blocking_timeout)
        if on_unavailable != "raise":
            arguments.check_choice("on_unavailable", on_unavailable, ("raise", "run"))
            self.on_unavailable = on_unavailable
        self._timeout = timeout if isinstance(timeout, Default) else check_timeout(timeout)
        self._auto_renew, self.max_hold = isinstance(timeout, Default), None
        if (auto_renew, max_hold, reentrant, after_commit) != (None, None, False, True):
            arguments.check_types(reentrant=reentrant, after_commit=after_commit)
            renewal = arguments.check_renewal(self._timeout, auto_renew, max_hold)
            self._auto_renew, self.max_hold = renewal
        self._find_backend, self.reentrant, self.after_commit = find, reentrant, after_commit
        if wait is not None:
            arguments.check_choice("wait", wait, arguments.WAITING_SCHEMES)
            self._wait = wait
        if sharing != arguments.EXCLUSIVE:
            self.sharing = arguments.check_sharing(sharing)
        self.origin: dict[str, Any] = {"task_id": task_id, "task_name": task_name}
        if metadata:
            self.origin["metadata"] = arguments.check_metadata(metadata)

    def __repr__(self) -> str:
        lease = self.lease
        if lease is None:
            return f"<{type(self).__name__} {self.name!r}>"
        state = "lost" if self.lost else f"fence {lease.fence}, {lease.remaining:.1f} s left"
        return f"<{type(self).__name__} {self.name!r}: {state}>"

    @property
    def timeout(self) -> float | None:
        """The lease in seconds; ``None`` for a lock that never expires."""
        return self.backend.timeout if isinstance(self._timeout, Default) else self._timeout

    def take_over(self, token_id: str) -> bool:
        """Take the lock from the holder with this ``token_id``, ahead of all waiters.

        Returns False, and changes nothing, if that holder no longer has the lock, or shares it and
        this handle would not. Otherwise that holder loses it. With a ``ticket`` or ``token_id``, a
        lock passes between processes without ever being free. Raises as ``acquire`` does.
        """
        return self.backend.run(self._acquire(None, arguments.check_token_id(token_id)))

    async def atake_over(self, token_id: str) -> bool:
        """Asynchronous version of ``take_over``."""
        return await self.backend.arun(self._acquire(None, arguments.check_token_id(token_id)))

    def detach(self, seconds: float, metadata: Mapping[str, str] | None = None) -> str:
        """Leave the lock locked for some seconds without a holder, and return its ``ticket``.

        Then it is free, unless ``take_over`` is called before. In a database transaction, the
        seconds and the ticket begin at its end. ``metadata`` is added to that of the handle, which
        holds nothing afterwards. Raises ``LockLost``, ``LockNotOwned``, ``LockUnavailable``, which
        leaves the lock held, and ``LockError`` for a lock that was entered more than once.
        """
        return self.backend.run(self.detach_steps(seconds, metadata))

    async def adetach(self, seconds: float, metadata: Mapping[str, str] | None = None) -> str:
        """Asynchronous version of ``detach``."""
        return await self.backend.arun(self.detach_steps(seconds, metadata))

    def downgrade(self) -> None:
        """Change the lock from exclusive to shared, without it being free in between; a new fence.

        In a database transaction that takes effect at its end. The next waiters get it if they
        share it. The lease continues. A shared lock stays as it is. Raises ``LockLost``,
        ``LockNotOwned``, ``LockUnavailable``, after which it may be shared or not and this can be
        called again, and ``LockError`` for a lock that was entered more than once.
        """
        self.backend.run(self._downgrade())

    async def adowngrade(self) -> None:
        """Asynchronous version of ``downgrade``."""
        await self.backend.arun(self._downgrade())

    def locked(self) -> bool:
        """Ask the server whether the lock, or a permit, is held. Raises ``LockUnavailable``."""
        return self.backend.run(self._locked())

    async def alocked(self) -> bool:
        """Asynchronous version of ``locked``."""
        return await self.backend.arun(self._locked())

    def named_by(self, make: Callable[[str], str]) -> Self:
        # Gives the lock the name that is made of the given one now, as for the current tenant. As a
        # decorator it is asked again at each call.
        self._make_name, self.given = make, self.given or self.name
        self.name = check_name(make(self.given))
        return self

    def _fresh(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._attempt, other._again, other.unguarded = None, 0, 0
        other.lease, other._backend, other.deferred = None, None, False
        return other if other._make_name is None else other.named_by(other._make_name)

    def _locks(self) -> Sequence[Held]:
        return [self]

    def _acquire(self, until: float | None, from_token_id: str = "") -> Steps[bool]:
        began, attempt = monotonic(), self._occupy()
        try:
            acquired = yield from self._take(until, from_token_id)
        except LockUnavailable:
            self.note_failure()
            facts = {"waited": monotonic() - began, "reason": "unavailable"}
            yield from self.backend.emit(signals.lock_not_acquired, self.name, lock=self, **facts)
            raise
        finally:
            del attempt
        if acquired is None:
            return True
        backend, waited = self.backend, monotonic() - began
        try:
            if not acquired:
                reason = "full" if self.full else "busy" if until is None else "timeout"
                facts = {"waited": waited, "reason": reason}
                yield from backend.emit(signals.lock_not_acquired, self.name, lock=self, **facts)
            elif signals.lock_acquired.receivers:
                yield from backend.emit(signals.lock_acquired, self.name, lock=self, waited=waited)
        except BaseException as error:  # interrupted in a receiver: the caller gets no lock
            if self.lease is not None and not isinstance(error, GeneratorExit):
                yield from holds.finish([self])
            raise
        return acquired

    def _take(self, until: float | None, from_token_id: str) -> Steps[bool | None]:
        """Return whether the lock was acquired; ``None`` if it was entered again."""
        if self.reentrant and self.lease and self._enter(self.lease):
            self._again += 1
            return None
        backend = self._find_backend()
        if holds.waiting:  # which is rare
            from django_redis_lock.primitives import exits

            former = exits.released_here(self)
            if former is not None and from_token_id in ("", former.ticket):
                yield from exits.retake(self, former)
                return None
        if self.lease is not None:
            self.vacate()
        if self.reentrant and not from_token_id:
            entered = register.find(backend.alias, self.name)
            if entered is not None and self._enter(entered):
                self.lease, self._backend = entered, backend
                return None
        return (yield from self._obtain(backend, until, from_token_id))

    def _enter(self, lease: Lease) -> bool:
        entered = register.enter(lease)
        if entered and lease.shared and not self.sharing.shared:
            register.leave(lease)
            raise self.upgrade_refused()
        lease.rely(after_commit=entered and self.after_commit)
        return entered

    def _obtain(
        self, backend: BaseLockBackend, until: float | None, from_token_id: str
    ) -> Steps[bool]:
        request = self.make_request(backend)
        if self.on_unavailable == "run":
            request.patient = not (yield from self.probe())
        if until is not None:
            request.when_waiting = partial(self._begin_to_wait, backend, until)
        scheme, lease = self._wait or backend.wait, None
        if from_token_id:
            backend.require(backend.can_pass, f"Lock {self.name!r} can't be passed on")
            request.from_token_id = from_token_id
        registry, make = backend.registries.get(scheme), partial(backend.registry_for, scheme)
        try:
            lease = yield from locking.acquire(registry, request, until, make)
            if lease is None:
                self.full = request.full
                return False
            if self.max_hold is not None and lease.timeout is not None:
                lease.renew_for(self.max_hold, lease.deadline - lease.timeout)
            self.hold(lease, backend)
            return True
        finally:
            # Given up, but the server may still grant it.
            if (lease is None or self.lease is not lease) and request.may_be_held:
                renewer.withdraw(withdrawal(request), backend, request.longest)

    def _begin_to_wait(self, backend: BaseLockBackend, until: float) -> Steps[None]:
        self.waited = True
        yield from self._check_own_lease(until)
        yield calls.BeginToWait()
        if signals.lock_waiting.receivers:
            yield from backend.emit(signals.lock_waiting, self.name, lock=self)

    def _check_own_lease(self, until: float) -> Steps[None]:
        """Raise ``LockError`` if the caller itself holds the lock, so that it waits in vain."""
        for lease in register.held_here(self.name):
            upgrade = lease.shared and not self.sharing.shared
            if until < math.inf and not upgrade:
                continue
            one_of_several = lease.shared and self.sharing.limit is not None
            if one_of_several and (yield from self._another_may_release()):
                continue
            # Another alias may mean another lock of this name.
            (left,) = yield from ask(calls.Renew([(lease.name, lease.token, 0)]))
            if left is None or left < -1:
                continue
            if upgrade:
                raise self.upgrade_refused()
            held = f"this {kind_of_execution()} already holds lock {self.name!r}"
            if lease.auto_renew or lease.timeout is None:
                raise self.misuse(
                    f"Deadlock: {held} and would wait for it forever. Pass reentrant=True to every "
                    f"handle of it, or set blocking_timeout."
                )
            logger.warning("Began to wait %.1f s for its own lease: %s", left / 1000, held)

    def _another_may_release(self) -> Steps[bool]:
        """Whether another holder has a permit too, or an operator's limit is 0."""
        _, value, *_ = yield from ask(calls.Inspect([self.name]))
        set_to, _, holders, _ = value if isinstance(value, list) else (None, 0, [], [])
        ours = {token_id(lease.token.encode()).encode() for lease in register.held_here(self.name)}
        return not ours.issuperset(holders[::2]) or (set_to or b"").startswith(b"0 ")

    def make_request(self, backend: BaseLockBackend) -> Request:
        timeout = backend.timeout if isinstance(self._timeout, Default) else self._timeout
        if self.max_hold is not None:
            timeout = min(self.max_hold, math.inf if timeout is None else timeout)
        auto_renew = self._auto_renew and timeout is not None
        record = write_record(timeout if auto_renew else None, self.max_hold, **self.origin)
        request = Request(self.name, os.urandom(16).hex(), timeout, record, auto_renew=auto_renew)
        if self.sharing is not arguments.EXCLUSIVE:
            backend.require_sharing(self.name)
            request.max_waiters = self.sharing.max_waiters
            if self.sharing.shared:
                request.shared = True
                request.record = shared_record(record, self.sharing.limit)
        return request

    def _to_release(self) -> Sequence[Held]:
        lease = self.lease_to_release()
        if not self.reentrant or register.leave(lease):
            return [self]
        lease.rely(required=self.on_unavailable == "raise")
        if self._again:
            self._again -= 1
        else:  # other handles still hold it
            self.lease = self._backend = None
        return []

    def detach_steps(
        self,
        seconds: float,
        metadata: Mapping[str, str] | None = None,
        *,
        late: bool = True,
        state: str = DETACHED,
    ) -> Steps[str]:
        # Unless ``late``, the seconds begin now, also where the detach waits for a transaction.
        if check_timeout(seconds, "seconds") is None:
            raise ValueError("detach() needs a lease: pass a number of seconds, not None.")
        self._lease_entered_once("detached")
        self.backend.require(self.backend.can_pass, f"Lock {self.name!r} can't be passed on")
        # No process holds the lock then, so the death of one must not count as its holder's.
        origin = {**self.origin, "marks": {**self.origin.get("marks", {}), "state": state}}
        if metadata is not None:
            ours = self.origin.get("metadata", {})
            origin["metadata"] = arguments.check_metadata(ours | arguments.check_metadata(metadata))
        ticket, record = self.ticket, write_record(**origin)
        until = math.inf if late else monotonic() + seconds
        detach = partial(_detach, seconds, until, record=record, limit=self.sharing.limit)
        if not defer([self], detach):
            yield from detach([self])
        return ticket

    def _lease_entered_once(self, to_be: str) -> Lease:
        lease = self.lease_to_release()
        self.lease_to_set()
        if lease.entries > 1:
            entered = f"while {lease.entries} reentrant handles hold it"
            advice = "release the inner ones first"
            raise self.misuse(f"Lock {self.name!r} can't be {to_be} {entered}: {advice}.")
        return lease

    def _downgrade(self) -> Steps[None]:
        lease = self._lease_entered_once("downgraded")
        self.backend.require_sharing(self.name)
        if not defer([self], lambda held: self._share_hold(lease), ends=False):
            yield from self._share_hold(lease)

    def _share_hold(self, lease: Lease) -> Steps[None]:
        if not lease.permit:
            record = lease.record if lease.shared else shared_record(lease.record, None)
            left = None if lease.timeout is None else max(lease.remaining, 0.001)
            request = Request(self.name, lease.token, left, record)
            request.shared = True
            lease.begin_downgrade(record)  # it may be shared, if no answer comes
            call = calls.TakeOver(request, token_id(lease.token.encode()))
            try:
                lease.begin_update(call, request.lease_ms)
                shared = call.lease((yield from ask(call)))
            finally:
                lease.end_update(call)
            if shared is None:
                lost = [(self, lease)]
                raise (yield from holds.report_losses(lost, self.backend, REASON_EXPIRED))
            lease.downgraded(shared.fence, shared.deadline)
        if lease.timeout is None:
            yield from holds.set_leases([self], lambda lease: -1)

    def upgrade_refused(self) -> LockError:
        return self.misuse(
            f"Lock {self.name!r} can't be upgraded from shared to exclusive: two upgrading "
            f"{kind_of_execution()}s would deadlock. Release it first (in a transaction: after its "
            f"end), or acquire it exclusively and call downgrade()."
        )

    def _not_acquired(self) -> Steps[LockNotAcquired]:
        wait, limit = self.blocking_timeout, self.sharing.limit
        tried = f" within {wait:g} s:" if self.blocking and wait else " at once:"
        if limit is not None:
            why = yield from self.backend.operations.why_refused(self.name, limit)
            why = why or "no permit was free"
        else:
            own = register.held_here(self.name, self.backend.alias)
            why = f"{f'this {kind_of_execution()}' if own else 'another caller'} holds it"
        paused = why.startswith("paused")
        if self.full:
            tried = ":"
            why = f"its queue is full (max_waiters={self.sharing.max_waiters})"
        text = f"Could not acquire lock {self.name!r}{tried} {why}."
        error = LockNotAcquired(text, name=self.name)
        error.paused = paused
        return error

    def _locked(self) -> Steps[bool]:
        _, value, *_ = yield from ask(calls.Inspect([self.name]))
        return value is not None


def _detach(
    seconds: float, until: float, several: Sequence[Held], *, record: str, limit: int | None
) -> Steps[None]:
    """Leave one lock locked without a holder, ``until`` a moment (monotonic) at the latest."""
    (held,), seconds = several, min(seconds, until - monotonic())
    if seconds < 0.001:
        yield from holds.release(held)
        return
    lease = held.held_lease()
    # Sent under a token of its own, so that nothing meant for this hold can reach it later.
    if lease.shared:
        record = shared_record(record, limit)
    request = Request(held.name, holds.detached(lease.token), seconds, record)
    request.shared = lease.shared
    call = calls.TakeOver(request, token_id(lease.token.encode()))
    renewer.discard(lease)
    try:
        ours = yield from locking.detach(lease, call)
    except BaseException:  # it may not be detached, so the handle still holds it
        if lease.auto_renew or lease.verify_by is not None:
            renewer.add(lease, held.backend, held, renew=lease.auto_renew)
        raise
    backend = held.backend
    lease.begin_release()  # so that nothing enters it any more
    held.let_go(lease)
    if not ours:
        reason = f"{REASON_EXPIRED}, before detach() was called"
        raise (yield from holds.report_losses([(held, lease)], backend, reason))
    facts = {"lock": held.signalled, "held_for": monotonic() - lease.began}
    yield from backend.emit(signals.lock_detached, held.name, **facts)
