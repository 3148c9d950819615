"""What every backend offers, and the settings that every backend takes."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from django.core import checks

from django_redis_lock.backends.operations import LockOperations
from django_redis_lock.backends.settings import (
    SETTINGS,
    check_keys,
    read_key_prefix,
    read_options,
    read_timeout,
)
from django_redis_lock.support.arguments import check_wait
from django_redis_lock.support.process import made_once
from django_redis_lock.transport.threads import InThread

if TYPE_CHECKING:
    from django_redis_lock.backends.operator_settings import Operators
    from django_redis_lock.protocol.waiting import Hub


class BaseLockBackend(LockOperations):
    """One entry of ``LOCKS``: where its locks are kept, and their defaults.

    A subclass carries out the calls of the protocol (``call`` and ``acall``) and makes the hubs of
    its waiters (``make_hub``).
    """

    options: ClassVar[Collection[str]] = ()
    """The keys that ``OPTIONS`` may have."""

    schemes: ClassVar[Collection[str]] = ()
    """The waiting schemes that a call may choose; a backend with only one has none."""
    wait = "queue"
    """The waiting scheme where a call gives none."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        self.alias = alias
        self.params = params
        self.hubs: dict[str, Hub] = {}
        """Where callers have waited, by waiting scheme."""
        check_keys(params, SETTINGS, f"LOCKS[{alias!r}]")
        self.timeout = read_timeout(params.get("TIMEOUT", 30), f"LOCKS[{alias!r}]")
        """The lease in seconds where a call gives none; ``None`` for a lease without end."""
        self.blocking_timeout = read_timeout(
            params.get("BLOCKING_TIMEOUT"), f"LOCKS[{alias!r}]", "BLOCKING_TIMEOUT", check_wait
        )
        """How many seconds to wait where a call does not say; ``None`` for no limit."""
        self.key_prefix = read_key_prefix(params.get("KEY_PREFIX", "lock"), alias)
        self.lock_keys = f"{self.key_prefix}:"
        """What the key of each lock begins with."""
        if params.get("OPERATORS") is not None:
            self.operators  # noqa: B018 - reports a wrong value now
        options = read_options(params.get("OPTIONS"), self.options, alias, type(self).__name__)
        self.configure(params.get("LOCATION"), options)

    @made_once
    def operators(self) -> Operators:
        """What the entry sets for the command and the admin page."""
        from django_redis_lock.backends.operator_settings import read_operators

        return read_operators(self.params.get("OPERATORS"), self.alias)

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        """Read LOCATION and OPTIONS, without connecting. Raises ``InvalidLockBackend``."""

    def databases(self) -> set[Hashable]:
        """Return where the keys are, as far as the settings tell; equal values are one database."""
        return set()

    def check(self) -> list[checks.CheckMessage]:
        """Return the system check messages about this entry."""
        return []

    def open(self) -> None:
        """Import and make what calls need, without connecting. Raises ``InvalidLockBackend``.

        The first call does it otherwise. A process that forks does it before it starts threads
        that call: a child that is forked while a thread imports a module can never import it.
        """
        self.hub_for(self.wait)

    def close(self) -> None:
        """Close connections and stop threads; the backend can be used again afterwards."""
        for hub in [*self.hubs.values()]:
            hub.close()

    def make_hub(self, scheme: str) -> Hub:
        """Return a hub of a waiting scheme; most backends have only one kind."""
        raise NotImplementedError

    def hub_for(self, scheme: str) -> Hub:
        """Return the hub of a waiting scheme, made when a caller first waits by it.

        Raises ``InvalidLockBackend`` for a scheme that can't be used.
        """
        scheme = scheme if scheme in self.schemes else self.wait
        hub = self.hubs.get(scheme)
        if hub is None:  # where two threads make one, both use the same
            made = InThread(partial(self._import_and_make, scheme)).result()
            hub = self.hubs.setdefault(scheme, made)
        return hub

    def _import_and_make(self, scheme: str) -> Hub:
        # What waiters need is imported here, where no signal handler can interrupt the import.
        import django_redis_lock.protocol.queueing  # noqa: F401

        return self.make_hub(scheme)

    def freed(self, name: str) -> None:
        """Notify the waiters of this process that it has released a lock."""
        for hub in [*self.hubs.values()]:
            hub.freed(name)

    def together(self, name: str) -> Hashable:
        """Return the same for all locks whose leases one round trip can renew."""
        return None
