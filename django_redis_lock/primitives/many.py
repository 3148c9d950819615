"""Several locks that are taken and released together, as steps for either driver.

All of them are taken in one call if all are free. If not they are taken one after another, in the
order of their names, each in its line; whoever waits holds only locks that come before the one it
waits for. So no two callers wait for each other, and nobody is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Self

from django_redis_lock import signals
from django_redis_lock.backends.renewal import renewer, set_leases
from django_redis_lock.exceptions import LockError, LockNotOwned
from django_redis_lock.primitives import gate
from django_redis_lock.primitives.ending import finish, give_up, losses, tell
from django_redis_lock.primitives.holding import Handle
from django_redis_lock.protocol import acquiring, calls
from django_redis_lock.protocol.lease import Lease, milliseconds
from django_redis_lock.support.arguments import check_timeout

if TYPE_CHECKING:
    from django_redis_lock.backends.base import BaseLockBackend
    from django_redis_lock.primitives.lock import Lock
    from django_redis_lock.protocol.drivers import Steps


class Group:
    """The handles of several locks, one each, and the steps of what is done to all of them."""

    def __init__(self, members: Sequence[Lock]) -> None:
        self._members = {member.name: member for member in members}
        self._vacant = [None]  # whoever pops the one item may acquire; a pop is atomic
        self._first = members[0]
        self.name = ", ".join(self._members)
        self._busy = ""  # the lock that was not to be had

    def _fresh(self) -> Self:
        """Return another handle made with the same arguments."""
        return type(self)([member._fresh() for member in self._members.values()])

    @property
    def backend(self) -> BaseLockBackend:
        """The backend that keeps the locks."""
        return self._first.backend

    @property
    def after_commit(self) -> bool:
        """Whether a release inside of a database transaction waits until that has ended."""
        return self._first.after_commit

    def parts(self) -> list[Handle]:
        """Return the handle of each lock that is held."""
        return [member for member in self._members.values() if member._lease is not None]

    def _in_hand(self) -> list[Handle]:
        """Return the handle of each lock that is held, lost or not. Raises ``LockNotOwned``."""
        parts = self.parts()
        if not parts:
            raise LockNotOwned(
                f"This handle holds none of its locks, {self._names()}.", name=self._first.name
            )
        for member in parts:
            member._in_hand()
        return parts

    def _all_held(self) -> list[Handle]:
        """Return the handle of each lock. Raises ``LockNotOwned`` where one is not held."""
        for member in self._members.values():
            member._held()
        return list(self._members.values())

    def _names(self) -> str:
        return ", ".join(map(repr, self._members))

    def _acquire(self, until: float | None) -> Steps[bool]:
        try:
            self._vacant.pop()
        except IndexError:
            raise LockError(
                f"This handle is acquiring its locks already, {self._names()}; make one for each "
                f"caller.",
                name=self._first.name,
            ) from None
        try:
            taken_back = self._taken_back()
            for member in self._members.values():
                if not (member._put_off and member in taken_back):
                    member._vacate()
            try:
                taken = yield from self._obtain(taken_back, until)
            except GeneratorExit:
                raise
            except BaseException:
                yield from self._undo(taken_back)
                raise
            if not taken:
                yield from self._undo(taken_back)
            return taken
        finally:
            self._vacant.append(None)

    def _taken_back(self) -> list[Lock]:
        """Return the handles of locks whose release in this transaction waits for its end."""
        waiting, backend = gate.current().waiting, self.backend
        return [member for member in self._members.values() if waiting(backend, member.name)]

    def _obtain(self, taken_back: list[Lock], until: float | None) -> Steps[bool]:
        for member in taken_back:
            yield from member._acquire(None)
        others = [member for member in self._members.values() if member not in taken_back]
        if not others:
            return True
        if self.backend.supports_many:
            busy = yield from self._take_all(others)
            if busy is None:
                return True
            if until is None:
                self._busy = busy.name
                yield from tell(signals.lock_not_acquired, busy, self.backend, waited=0.0)
                return False
        while True:
            if not (yield from self._take_in_turn(others, until)):
                return False
            if (yield from self._begin_leases(others)):
                return True
            # One was lost while another was waited for.
            yield from self.finish([member for member in others if member._lease is not None])

    def _take_all(self, members: list[Lock]) -> Steps[Lock | None]:
        """Take the locks in one call; return the handle of one that is held, and then take none."""
        backend, began = self.backend, monotonic()
        requests = [member._request(backend) for member in members]
        try:
            leases = yield from acquiring.acquire_many(requests)
            if isinstance(leases, int):
                return members[leases]
            for member, lease in zip(members, leases, strict=True):
                member._keep(lease, backend)
        finally:
            pairs = zip(members, requests, strict=True)
            adrift = [request for member, request in pairs if request.adrift and not member._lease]
            if adrift:  # given up, and the server could not be told
                call = calls.ReleaseMany([(item.name, item.token) for item in adrift])
                renewer.withdraw(call, backend, adrift[0].longest)
        for member in members:
            member._acquired_at = monotonic()
            waited = member._acquired_at - began
            yield from tell(signals.lock_acquired, member, backend, waited=waited)
        return None

    def _take_in_turn(self, members: list[Lock], until: float | None) -> Steps[bool]:
        """Take one lock after another, and keep those that are held from running out."""
        for member in members:
            if not (yield from member._acquire(until)):
                self._busy = member.name
                return False
            lease = member._held()
            if not lease.auto_renew and lease.timeout is not None:
                renewer.add(lease, self.backend, member)
        return True

    def _begin_leases(self, members: list[Lock]) -> Steps[bool]:
        """Let the leases begin now, all together; return False where one is lost."""
        leases = [member._held() for member in members]
        for lease in leases:
            if not lease.auto_renew:
                renewer.discard(lease)
        whole = [-1 if item.timeout is None else milliseconds(item.timeout) for item in leases]
        return not (yield from set_leases(leases, whole))

    def _undo(self, taken_back: list[Lock]) -> Steps[None]:
        """Give up what was taken; what was taken back waits for its transaction again."""
        for member in taken_back:
            if member._lease is not None and not member._put_off:
                yield from member._release()
        yield from self.finish([member for member in self.parts() if member not in taken_back])

    def _release(self) -> Steps[None]:
        parts = self._in_hand()
        if not any(member.lost for member in parts) and gate.current().puts_off(self):
            for member in parts:
                member._put_off = True
            return
        yield from give_up(parts)

    def finish(self, parts: list[Handle]) -> Steps[None]:
        """Give locks up; what goes wrong is logged, and tried again for as long as it helps."""
        yield from finish(parts)

    def confirm(self, parts: list[Handle]) -> Steps[None]:
        """Ask the server whether the locks are still held. Raises ``LockLost``."""
        yield from self._set_leases(parts, lambda lease: 0)

    def _extend(self, seconds: float | None, *, replace_ttl: bool) -> Steps[bool]:
        parts = self._in_hand()
        if parts[0]._held().timeout is None:
            raise LockError(
                f"The locks {self._names()} never expire, so their leases can't be set.",
                name=self._first.name,
            )
        if seconds is not None:
            check_timeout(seconds, "additional_time")

        def lease_ms(lease: Lease) -> int:
            more = lease.timeout if seconds is None else seconds
            assert more is not None
            return milliseconds(more if replace_ttl else lease.remaining + more)

        yield from self._set_leases(parts, lease_ms)
        return True

    def _set_leases(self, parts: list[Handle], lease_ms: Callable[[Lease], int]) -> Steps[None]:
        leases = [member._kept() for member in parts]
        if leases:
            yield from set_leases(leases, [lease_ms(lease) for lease in leases])
        lost = [pair for pair in zip(parts, leases, strict=True) if pair[1].lost]
        if lost:
            raise (yield from losses(lost, self.backend, "it expired or was broken"))
