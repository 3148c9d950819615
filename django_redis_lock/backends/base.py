"""What every backend offers, and the settings that every backend takes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.core import checks

from django_redis_lock import signals
from django_redis_lock.backends import settings
from django_redis_lock.backends.operator_settings import read_operators
from django_redis_lock.exceptions import InvalidLockBackend, LockUnavailable
from django_redis_lock.protocol.calls import Emit
from django_redis_lock.protocol.drivers import Port
from django_redis_lock.support.arguments import check_name, check_timeout, check_wait
from django_redis_lock.support.threads import InThread, cached_property_atomic

if TYPE_CHECKING:
    from django_redis_lock.backends.operations import Operations
    from django_redis_lock.protocol.records import AuditEntry, Holder, Limit, Waiter
    from django_redis_lock.protocol.waiting import WaiterRegistry

logger = logging.getLogger("django_redis_lock")
Result = TypeVar("Result")


class BaseLockBackend(Port):
    """One alias of ``LOCKS``: where its locks are kept, and their defaults.

    A subclass carries out the calls of the protocol (``call`` and ``acall``) and makes the
    registries of its waiters (``make_registry``).
    """

    options: ClassVar[Collection[str]] = ()  # the keys that OPTIONS may have
    schemes: ClassVar[Collection[str]] = ()  # of waiting, if a call may choose among several
    wait = "queue"  # the notification mode where a call gives none
    page_size: ClassVar[int] = 200
    """How many locks ``holders()`` reads in one round trip."""
    can_share: ClassVar[bool] = True  # whether a lock can be shared, and its queue be bounded
    can_pass: ClassVar[bool] = True  # to another handle, as the server knows who holds a lock
    runs_scripts: ClassVar[bool] = False  # beside those of locks, for Celery's tasks and beats
    excludes: ClassVar[str] = ""  # whom alone its locks exclude, if not all callers
    indexes = 1  # how many servers or shards list the locks

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        self.alias, self.params = alias, params
        self.registries: dict[str, WaiterRegistry] = {}  # of waiters, by notification mode
        self.failed_until: dict[Hashable, float] = {}
        """When (monotonic) callers that may run unguarded give a server its usual time again."""
        settings.check_keys(params, settings.KEYS, f"LOCKS[{alias!r}]")
        try:
            self.timeout = check_timeout(params.get("TIMEOUT", 30), "TIMEOUT")
            """The lease in seconds where a call gives none; ``None`` for no expiry."""
            self.blocking_timeout = check_wait(params.get("BLOCKING_TIMEOUT"), "BLOCKING_TIMEOUT")
            """How many seconds to wait where a call does not say; ``None`` for no limit."""
        except (TypeError, ValueError) as error:
            raise InvalidLockBackend(f"LOCKS[{alias!r}]: {error}") from None
        self.key_prefix = settings.read_key_prefix(params, alias)
        self.lock_keys = f"{self.key_prefix}:"  # with which the key of each lock begins
        self.operators = read_operators(params.get("OPERATORS"), alias)
        options = settings.read_options(params, self.options, alias, type(self).__name__)
        self.configure(params.get("LOCATION"), options)

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        """Read LOCATION and OPTIONS, without connecting. Raises ``InvalidLockBackend``."""

    def databases(self) -> set[Hashable]:
        """Return where the keys are, as far as the settings show; equal values are one database."""
        return set()

    def name_maker(self) -> Callable[[str], str] | None:
        """Return the function that makes a lock's name of the given one, or ``None``."""
        return None

    def check(self) -> list[checks.CheckMessage]:
        """Return the system check messages about this entry."""
        return []

    def open(self) -> None:
        """Import and make what calls need, without connecting. Raises ``InvalidLockBackend``.

        The first call does it otherwise. But a child that is forked while a thread imports a module
        can never import it, so a process that forks does it before it starts threads.
        """
        self.registry_for(self.wait)

    def close(self) -> None:
        """Close connections and stop threads; the backend can be used again afterwards."""
        for registry in [*self.registries.values()]:
            registry.close()

    def failed(self, error: BaseException) -> tuple[Emit, ...]:
        """Send ``lock_unavailable`` as ``emit`` does, if the server was."""
        if not isinstance(error, LockUnavailable):
            return ()
        return self.emit(signals.lock_unavailable, error.name, error=error)

    def emit(self, signal: signals.LockSignal, name: str, **facts: Any) -> tuple[Emit, ...]:
        """Send a signal about a lock: at once, or by the step to take if a receiver may block."""
        arguments = {"sender": type(self), "using": self.alias, "name": name, **facts}
        if signal.may_block:
            return (Emit(signal, arguments),)
        for receiver in signal.quick:  # a further call would take as long as the receiver
            try:
                receiver(signal=signal, **arguments)
            except Exception:
                logger.exception("Receiver %r of a signal failed", receiver)
        return ()

    def make_registry(self, scheme: str) -> WaiterRegistry:
        raise NotImplementedError

    def registry_for(self, scheme: str) -> WaiterRegistry:
        """Return the registry of a notification mode, or raise ``InvalidLockBackend``."""
        scheme = scheme if scheme in self.schemes else self.wait
        registry = self.registries.get(scheme)
        if registry is None:  # where two threads make one, both use the same
            made = InThread(partial(self._import_and_make, scheme)).result()
            registry = self.registries.setdefault(scheme, made)
        return registry

    def _import_and_make(self, scheme: str) -> WaiterRegistry:
        # What waiters need is imported here, where no signal handler can interrupt the import.
        from django_redis_lock.protocol.heartbeats import Heart
        from django_redis_lock.protocol.waiting import PollingRegistry

        registry = self.make_registry(scheme)
        if registry.heart is None and not isinstance(registry, PollingRegistry):
            registry.heart = Heart(registry, self)
        return registry

    def freed(self, name: str) -> None:
        """Notify the waiters of this process that it has released a lock."""
        for registry in [*self.registries.values()]:
            registry.freed(name)

    def renewal_group(self, name: str) -> Hashable:
        """Return the same for all locks whose leases one round trip can renew."""
        return None

    # What operators do.

    @cached_property_atomic
    def operations(self) -> Operations:
        """The steps of the methods below."""
        return InThread(self._import_operations).result()

    def _import_operations(self) -> Operations:  # where no signal handler can interrupt the import
        from django_redis_lock.backends.operations import Operations

        return Operations(self)

    def holder(self, name: str) -> Holder | None:
        """Return the holder of a lock, or ``None``. Raises ``LockUnavailable``."""
        return next(iter(self.run(self.operations.read([check_name(name)]))), None)

    async def aholder(self, name: str) -> Holder | None:
        """Return the holder of a lock, or ``None``. Raises ``LockUnavailable``."""
        return next(iter(await self.arun(self.operations.read([check_name(name)]))), None)

    def holders(self, pattern: str = "*") -> Iterator[Holder]:
        """Yield the holders of all locks whose name matches a shell pattern; case matters.

        The names are read first, then the locks in pages, the latest lease end first. Each holder
        is as current as its page. Raises ``LockUnavailable``.
        """
        yield from self.holders_of(self.read_index(pattern))

    async def aholders(self, pattern: str = "*") -> AsyncIterator[Holder]:
        """Yield the holders of locks, as ``holders`` does."""
        index = await self.arun(self.operations.read_index(pattern))
        for names in self.operations.pages(index):
            for holder in await self.arun(self.operations.read(names)):
                yield holder

    def read_index(self, pattern: str = "*", queues: bool = False) -> dict[str, float]:
        """Return the names of the held locks with the ends of their leases, the latest first.

        The ends are milliseconds by the server's clock, infinite for a lease with no expiry. What
        another program did to a lock does not show. With ``queues``, the names are those of queues
        without a held lock. Raises ``LockUnavailable``.
        """
        return self.run(self.operations.read_index(pattern, queues=queues))

    def holders_of(self, names: Iterable[str]) -> Iterator[Holder]:
        """Yield the holders of some locks, not of free ones.

        Raises ``LockUnavailable``, and ``ValueError`` for an invalid name.
        """
        for page in self.operations.pages(map(check_name, names)):
            yield from self.run(self.operations.read(page))

    def waiting(self, name: str, limit: int | None = None) -> list[Waiter]:
        """Return the waiters for a lock, the longest waiting first.

        ``limit`` is the most that are returned. A waiter whose process has died or is stopped is
        omitted after 3 seconds. Raises ``LockUnavailable``.
        """
        return self.run(self.operations.read_queue(name, limit))

    async def awaiting(self, name: str, limit: int | None = None) -> list[Waiter]:
        """Return the waiters for a lock, as ``waiting`` does."""
        return await self.arun(self.operations.read_queue(name, limit))

    def history(self, name: str | None = None, limit: int = 100) -> list[AuditEntry]:
        """Return the audit of a lock, or of all locks, the newest entry first.

        It lists forced releases, and locks that a Celery worker freed. About a thousand entries
        are kept, unless ``OPERATORS`` sets another number. Raises ``LockUnavailable``.
        """
        return self.run(self.operations.read_history(name, limit))

    async def ahistory(self, name: str | None = None, limit: int = 100) -> list[AuditEntry]:
        """Return the audit, as ``history`` does."""
        return await self.arun(self.operations.read_history(name, limit))

    def force_release(
        self, name: str, token_id: str | None = None, *, by: str = "", reason: str = ""
    ) -> Holder | None:
        """Force the release of a lock, which goes to the next waiter.

        With ``token_id`` (a ``Holder.token_id``), only that holder loses it. Returns the former
        holder, or ``None`` if nothing was released. The former holder notices the loss at its next
        renewal or ``ensure_held()``; its release raises ``LockLost``.

        The audit records it with ``by`` (the operator) and ``reason`` (at most 500 characters). A
        server that refuses to write the audit does not release the lock. ``REASON_REQUIRED`` of
        ``OPERATORS`` is for people, and does not apply here.

        Raises ``LockUnavailable``; if its ``not_applied`` is true, nothing was released.
        """
        return self.run(self.operations.force_release(name, token_id, by=by, reason=reason))

    async def aforce_release(
        self, name: str, token_id: str | None = None, *, by: str = "", reason: str = ""
    ) -> Holder | None:
        """Force the release of a lock, as ``force_release`` does."""
        return await self.arun(self.operations.force_release(name, token_id, by=by, reason=reason))

    def require_sharing(self, name: str) -> None:
        """Raise ``InvalidLockBackend`` if the locks can't be shared, nor their queues bounded."""
        lacks = f"Lock {name!r} can't use shared, limit or max_waiters"
        self.require(self.can_share, lacks)

    def require(self, ability: bool, otherwise: str) -> None:
        """Raise ``InvalidLockBackend`` that begins with a text if the backend lacks an ability."""
        if not ability:
            raise InvalidLockBackend(
                f"{otherwise}: LOCKS[{self.alias!r}] is a {type(self).__name__}, which does not "
                f"support that. Use an alias with RedisLockBackend."
            )

    def set_limit(self, name: str, limit: int | None, *, by: str = "") -> None:
        """Set how many permits of a semaphore there are, ``None`` to leave that to its callers.

        It overrides the callers' limits until it is cleared. If it is raised, waiters get permits
        at once. If it is lowered, existing holders stay, and new callers wait until fewer permits
        are held. 0 pauses the semaphore. ``by`` (the operator) is shown with the limit.
        Raises ``LockUnavailable``, ``InvalidLockBackend`` where locks can't be shared, and
        ``ValueError`` or ``TypeError`` for invalid arguments.
        """
        self.run(self.operations.set_limit(name, limit, by))

    async def aset_limit(self, name: str, limit: int | None, *, by: str = "") -> None:
        """Set how many permits there are, as ``set_limit`` does."""
        await self.arun(self.operations.set_limit(name, limit, by))

    def limits(self) -> list[Limit]:
        """Return the limits that were set, by name. Raises ``LockUnavailable``."""
        return self.run(self.operations.read_limits())

    async def alimits(self) -> list[Limit]:
        """Return the limits that were set, as ``limits`` does."""
        return await self.arun(self.operations.read_limits())

    def free(self, name: str, token_id: str, *, reason: str = "") -> Holder | None:
        """Do as ``force_release`` for a dead holder; audit and signal say that it was freed."""
        return self.run(self.operations.force_release(name, token_id, reason=reason, freed=True))

    def event_of(self, entry_id: bytes, pairs: list[bytes]) -> Hashable:
        """Return a key that two audit entries share only if they record the same event."""
        return entry_id, *pairs
