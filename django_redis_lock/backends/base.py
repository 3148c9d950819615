"""What every backend offers, and the settings that every backend takes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from django.core import checks

from django_redis_lock import signals
from django_redis_lock.backends.index import Index, in_pages, names_of, read_page
from django_redis_lock.backends.operator_settings import read_operators
from django_redis_lock.exceptions import InvalidLockBackend, LockUnavailable
from django_redis_lock.protocol.administration import force_release, read_history
from django_redis_lock.protocol.audit import FREED, AuditEntry
from django_redis_lock.protocol.calls import (
    Call,
    Emit,
    Inspect,
    ReadIndex,
    ReadQueue,
)
from django_redis_lock.protocol.conversation import ask
from django_redis_lock.protocol.drivers import Steps, arun, run
from django_redis_lock.protocol.records import Holder, Waiter, read_holder, read_waiter
from django_redis_lock.protocol.waiting import Hub
from django_redis_lock.support.arguments import check_limit, check_name, check_timeout

Result = TypeVar("Result")


_PREFIX = re.compile(r"[^\s\"\\]+")
"""What can stand between the quotes of a JSON text as it is, for there it stands in the record of a
lock that was handed over."""


class BaseLockBackend:
    """One entry of ``LOCKS``: where its locks are kept and what they are like by default.

    A subclass carries out the calls of the protocol (``call``, ``acall``) and owns a hub.
    """

    supports_fencing: ClassVar[bool] = True
    """Whether ``fence`` rises from holder to holder."""
    supports_queue: ClassVar[bool] = True
    """Whether waiters are served in the order in which they came."""
    supports_listing: ClassVar[bool] = True
    """Whether ``holders()`` shows the held locks."""
    supports_passing: ClassVar[bool] = True
    """Whether ``take_over()`` and ``detach()`` pass a lock on."""
    supports_records: ClassVar[bool] = True
    """Whether the server knows who holds a lock, so that a ``Holder`` tells it."""
    supports_many: bool = False
    """Whether several locks can be taken, and released, in one call."""
    settings: ClassVar[Collection[str]] = (
        "BACKEND",
        "LOCATION",
        "TIMEOUT",
        "KEY_PREFIX",
        "OPTIONS",
        "OPERATORS",
    )
    """The keys that an entry may have."""
    options: ClassVar[Collection[str]] = ()
    """The keys that ``OPTIONS`` may have."""
    page_size: ClassVar[int] = 500
    """How many locks ``holders()`` reads in one round trip."""

    hub: Hub

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        self.alias = alias
        self.params = params
        unknown = sorted(set(params) - set(self.settings))
        if unknown:
            raise InvalidLockBackend(
                f"LOCKS[{alias!r}] has no setting {unknown[0]!r}; "
                f"there are {', '.join(self.settings)}."
            )
        self.timeout = self._default_timeout(params.get("TIMEOUT", 30))
        """The lease in seconds where a call names none; ``None`` for a lease without end."""
        self.key_prefix = self._key_prefix(params.get("KEY_PREFIX", "lock"))
        self.lock_keys = f"{self.key_prefix}:"
        """What the key of each lock begins with."""
        self.operators = read_operators(params.get("OPERATORS"), alias)
        """What the command and the admin page are told about its locks."""
        options = params.get("OPTIONS") or {}
        if not isinstance(options, Mapping):
            raise InvalidLockBackend(
                f"LOCKS[{alias!r}]['OPTIONS'] must be a dict, not {options!r}."
            )
        options = dict(options)
        unknown = sorted(set(options) - set(self.options))
        if unknown:
            raise InvalidLockBackend(
                f"LOCKS[{alias!r}]['OPTIONS'] has no option {unknown[0]!r} "
                f"with {type(self).__name__}; "
                + (f"it takes {', '.join(self.options)}." if self.options else "it takes none.")
            )
        self.configure(params.get("LOCATION"), options)

    def _default_timeout(self, value: Any) -> float | None:
        try:
            return check_timeout(value, "TIMEOUT")
        except (TypeError, ValueError) as error:
            raise InvalidLockBackend(f"LOCKS[{self.alias!r}]: {error}") from None

    def _key_prefix(self, value: Any) -> str:
        if not isinstance(value, str) or not value.isprintable() or not _PREFIX.fullmatch(value):
            raise InvalidLockBackend(
                f"LOCKS[{self.alias!r}]['KEY_PREFIX'] is {value!r}; it must be a str of printable "
                f"characters without blanks, double quotes and backslashes, such as 'lock'."
            )
        return value

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        """Take in LOCATION and OPTIONS; no connection is made. Raises ``InvalidLockBackend``."""

    def databases(self) -> set[Hashable]:
        """Return where its keys are, as far as the settings tell; equal values are one database."""
        return set()

    def check(self) -> list[checks.CheckMessage]:
        """Return the system check messages about this entry."""
        return []

    def open(self) -> None:
        """Import and make what calls need; no connection is made. Raises ``InvalidLockBackend``.

        Calls do it where it was not done. A process that forks does it before it starts a thread
        that calls: a child forked while a thread imports can never import the same module.
        """

    def close(self) -> None:
        """Let go of connections and threads; the backend can be used again afterwards."""
        self.hub.close()

    # Carrying out the protocol.

    def hub_for(self, wait: str | None) -> Hub:
        """Return where those wait who chose a waiting scheme; most backends have just one."""
        return self.hub

    def freed(self, name: str) -> None:
        """Take in that this process has released a lock."""
        self.hub.freed(name)

    def call(self, call: Call) -> Any:
        """Carry out one call. Raises ``LockUnavailable``."""
        raise NotImplementedError

    async def acall(self, call: Call) -> Any:
        """Carry out one call under asyncio. Raises ``LockUnavailable``."""
        return self.call(call)

    def post(self, call: Call) -> None:
        """Send a call whose reply nobody needs, and don't wait for it. Raises ``LockUnavailable``.

        Here it is waited for; a backend that can do better does.
        """
        self.call(call)

    async def apost(self, call: Call) -> None:
        """Send a call whose reply nobody needs, as ``post`` does."""
        await self.acall(call)

    def together(self, name: str) -> Hashable:
        """Return the same for all locks whose leases can be renewed in one round trip."""
        return None

    def run(self, steps: Steps[Result]) -> Result:
        """Carry out steps of the protocol, blocking."""
        try:
            return run(self, steps)
        except LockUnavailable as error:
            run(self, self.tell_unavailable(error))
            raise

    async def arun(self, steps: Steps[Result]) -> Result:
        """Carry out steps of the protocol under asyncio."""
        try:
            return await arun(self, steps)
        except LockUnavailable as error:
            await arun(self, self.tell_unavailable(error))
            raise

    def tell_unavailable(self, error: LockUnavailable) -> Steps[None]:
        """Tell of an operation that ended because the server could not be asked."""
        signal = signals.lock_unavailable
        if signal.receivers:
            arguments = {"sender": type(self), "using": self.alias, "name": error.name}
            yield Emit(signal, {**arguments, "error": error})

    # For operators.

    def holder(self, name: str) -> Holder | None:
        """Return who holds a lock. Raises ``LockUnavailable``."""
        return next(iter(self.run(self._read([check_name(name)]))), None)

    async def aholder(self, name: str) -> Holder | None:
        """Return who holds a lock. Raises ``LockUnavailable``."""
        return next(iter(await self.arun(self._read([check_name(name)]))), None)

    def holders(self, pattern: str = "*") -> Iterator[Holder]:
        """Yield the holders of all locks whose name matches a shell pattern.

        ``*``, ``?`` and ``[...]`` have their usual meaning, and case matters. The names are read
        first, then the locks a page at a time, the latest lease end first; so what is yielded was
        true when its page was read.
        Raises ``LockUnavailable``.
        """
        for names in in_pages(names_of(self.read_index(pattern)), self.page_size):
            yield from self.run(self._read(names))

    async def aholders(self, pattern: str = "*") -> AsyncIterator[Holder]:
        """Yield what ``holders`` yields."""
        index = self._new_index(pattern)
        while index.more:
            await self.arun(self._turn_page(index))
        for names in in_pages(names_of(index), self.page_size):
            for holder in await self.arun(self._read(names)):
                yield holder

    def read_index(self, pattern: str = "*") -> Index:
        """Return the names of the held locks with the ends of their leases; see ``latest()`` of it.

        The ends are in ms of the server's clock, infinite for a lease without end. The locks
        themselves are not read: of a hundred thousand this takes a fraction of a second. What
        another program did to a lock does not show here. Raises ``LockUnavailable``.
        """
        index = self._new_index(pattern)
        while index.more:
            self.run(self._turn_page(index))
        return index

    def holders_of(self, names: Iterable[str]) -> Iterator[Holder]:
        """Yield the holders of some locks, without those that nobody holds.

        Raises ``LockUnavailable``, and ``ValueError`` for a name that no lock can have.
        """
        for page in in_pages(map(check_name, names), self.page_size):
            yield from self.run(self._read(page))

    def waiting(self, name: str, limit: int | None = None) -> list[Waiter]:
        """Return who waits for a lock, the longest waiting first. Raises ``LockUnavailable``.

        With a ``limit`` it is the first so many. A waiter whose process has died is shown until its
        turn comes, or nobody looks after the line any more.
        """
        return self.run(self._read_queue(name, limit))

    async def awaiting(self, name: str, limit: int | None = None) -> list[Waiter]:
        """Return who waits for a lock, as ``waiting`` does."""
        return await self.arun(self._read_queue(name, limit))

    def history(self, name: str | None = None, limit: int = 100) -> list[AuditEntry]:
        """Return what the audit tells of a lock, or of all, the newest entry first.

        Each lock that was taken with ``force_release()`` has an entry, each that a Celery worker
        freed, and each that its holder found lost. About a thousand of the first are kept, and as
        many of the others; ``OPERATORS`` can say another number. Raises ``LockUnavailable``.
        """
        return self.run(read_history(self, name, limit))

    async def ahistory(self, name: str | None = None, limit: int = 100) -> list[AuditEntry]:
        """Return what the audit tells, as ``history`` does."""
        return await self.arun(read_history(self, name, limit))

    def force_release(
        self, name: str, token_id: str | None = None, *, by: str = "", reason: str = ""
    ) -> Holder | None:
        """Take a lock from its holder and give it to the next waiter.

        With a ``token_id`` (a ``Holder.token_id``) only that holder loses it. Returns the holder
        that lost it, or ``None`` when nobody did. The former holder learns of it at its next
        renewal or ``ensure_held()``; its release raises ``LockLost``.

        It is written into the audit, with ``by`` (who does it) and ``reason``, of 500 characters
        at the most; a server that may not write there does not release the lock. A reason is not
        asked for here, whatever ``OPERATORS`` say: that is for people, and this for programs.

        Raises ``LockUnavailable``; with ``undone`` where it is known that nothing was released.
        """
        return self.run(force_release(self, name, token_id, by=by, reason=reason))

    async def aforce_release(
        self, name: str, token_id: str | None = None, *, by: str = "", reason: str = ""
    ) -> Holder | None:
        """Take a lock from its holder, as ``force_release`` does."""
        return await self.arun(force_release(self, name, token_id, by=by, reason=reason))

    def free(self, name: str, token_id: str, *, reason: str = "") -> Holder | None:
        """Release a lock for its holder, who is dead.

        It is a ``force_release()``, but told as ``freed`` in the audit and with ``lock_freed``.
        """
        return self.run(force_release(self, name, token_id, reason=reason, event=FREED))

    def _read_queue(self, name: str, limit: int | None) -> Steps[list[Waiter]]:
        if limit is not None:
            check_limit(limit, "waiters")
        now_ms, *queue = yield from ask(ReadQueue(check_name(name), limit))
        queue = queue[:limit]  # several servers may have told more
        return [read_waiter(item, name=name, using=self.alias, now_ms=now_ms) for item in queue]

    def event_of(self, entry_id: bytes, pairs: list[bytes]) -> Hashable:
        """Return the same for two entries of the audit only if they are one event, told twice."""
        return entry_id, *pairs

    def _read(self, names: list[str]) -> Steps[list[Holder]]:
        now_ms, *rest = yield from ask(Inspect(names))
        found = zip(names, rest[0::3], rest[1::3], rest[2::3], strict=True)
        return [
            read_holder(
                value, name=name, using=self.alias, ttl_ms=ttl_ms, waiters=waiters, now_ms=now_ms
            )
            for name, value, ttl_ms, waiters in found
            if value is not None
        ]

    def _new_index(self, pattern: str) -> Index:
        return Index(pattern)

    def _turn_page(self, index: Index) -> Steps[None]:
        size = 10 * self.page_size  # of names alone
        answer = yield from ask(ReadIndex(index.start, index.after, size))
        index.add(read_page(answer), size)
