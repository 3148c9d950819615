"""``locks``, ``lock()`` and ``lock_many()``: from the setting ``LOCKS`` to handles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils.module_loading import import_string
from django.views.decorators.debug import sensitive_variables

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.prefixes import OTHER_PREFIX, collisions
from django_redis_lock.backends.settings import KEYS
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.support import arguments
from django_redis_lock.support.arguments import DEFAULT, MOST_AT_ONCE, Default, Sharing

if TYPE_CHECKING:
    from django_redis_lock.primitives.group import LockGroup
    from django_redis_lock.support.arguments import OnUnavailable

DEFAULT_ALIAS = "default"
DEFAULT_BACKEND = "django_redis_lock.backends.redis.RedisLockBackend"
BACKENDS = (
    DEFAULT_BACKEND,
    "django_redis_lock.backends.cluster.RedisClusterLockBackend",
    "django_redis_lock.backends.redlock.RedlockLockBackend",
    "django_redis_lock.backends.getset.GetSetLockBackend",
    "django_redis_lock.backends.locmem.LocMemLockBackend",
    "django_redis_lock.backends.dummy.DummyLockBackend",
)
HOW_TO_WRITE = (
    f'Set LOCKS = {{"default": {{"BACKEND": "{DEFAULT_BACKEND}", '
    '"LOCATION": "redis://127.0.0.1:6379/1"}}, or remove LOCKS to use the default cache.'
)
USES: set[tuple[str, str, bool]] = set()
"""Aliases, what uses them, and whether it shares its lock or bounds its queue: for the checks."""


class LockHandler:
    """The backends in ``LOCKS``, by alias. Unlike Django's caches, all threads share them."""

    space: Any = None  # the LockSpace where a test has its locks, in place of where LOCKS says

    def __init__(self) -> None:
        self._backends: dict[str, BaseLockBackend] = {}
        self._name_makers: dict[str, Callable[[str], str]] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """``LOCKS``, by default one backend on the default cache. Raises ``InvalidLockBackend``."""
        configured = getattr(settings, "LOCKS", None)
        if configured is None:
            return {DEFAULT_ALIAS: {}}
        if not isinstance(configured, Mapping):
            raise InvalidLockBackend(f"LOCKS must be a dict of aliases, not {configured!r}.")
        for alias in configured:
            if alias in KEYS:
                raise InvalidLockBackend(
                    f"LOCKS has {alias} on its first level, where only aliases belong: move its "
                    f"settings into LOCKS['default']. {HOW_TO_WRITE}"
                )
            if not isinstance(alias, str) or "//" in alias or "@" in alias:
                raise InvalidLockBackend(
                    f"LOCKS has the alias {alias!r}: an alias must be a name, such as 'default'. "
                    f"Put a URL into its LOCATION."
                )
        return dict(configured)

    def __getitem__(self, alias: str) -> BaseLockBackend:
        backend = self._backends.get(alias)
        return self._make(alias) if backend is None else backend

    @sensitive_variables()  # the settings contain passwords
    def _make(self, alias: str) -> BaseLockBackend:
        backends = self._backends  # before the settings are read: reset() replaces it
        backend = self.create(alias, self.space)
        others: list[BaseLockBackend] = []
        for other in [one for one in self if one != alias]:
            with suppress(InvalidLockBackend):
                others.append(backends.get(other) or self.create(other, self.space))
        for problem in collisions(backend, others):
            raise InvalidLockBackend(f"{problem} {OTHER_PREFIX}")
        backend = backends.setdefault(alias, backend)  # where two threads make one, both use one
        if self.space is not None:
            self.space.note(backend)
        return backend

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings)

    def all(self) -> list[BaseLockBackend]:
        """Return the backends of all aliases."""
        return [self[alias] for alias in self]

    def made(self) -> list[BaseLockBackend]:
        """Return the backends that are in use."""
        return [*self._backends.values()]

    def create(self, alias: str, space: Any = None) -> BaseLockBackend:
        """Make a new backend for an alias, as LOCKS says. Raises ``InvalidLockBackend``."""
        configured = self.settings
        if alias not in configured:
            there_are = ", ".join(map(repr, configured))
            raise InvalidLockBackend(
                f"LOCKS has no alias {alias!r}. Configured aliases: {there_are or 'none'}."
                + ("" if there_are else f" {HOW_TO_WRITE}")
            )
        params = configured[alias]
        if not isinstance(params, Mapping):
            raise InvalidLockBackend(f"LOCKS[{alias!r}] must be a dict, not {params!r}.")
        path = params.get("BACKEND", DEFAULT_BACKEND)
        kind, why, cause = None, "is not a subclass of BaseLockBackend", None
        try:
            kind = import_string(path)
        except (ImportError, TypeError, AttributeError) as error:
            why, cause = f"can't be imported: {error}", error
        if not (isinstance(kind, type) and issubclass(kind, BaseLockBackend)):
            raise InvalidLockBackend(
                f"LOCKS[{alias!r}]['BACKEND'] is {path!r}, which {why}. Use one of "
                f"{', '.join(BACKENDS)}."
            ) from cause
        params = dict(params)
        if space is not None:
            kind, params = space.move(kind, params)
        return kind(alias, params)

    def make_name(self, using: str, given: str) -> str:
        """Return the name that a lock has on the server, which the cache of an alias may make."""
        arguments.check_types(using)
        if not settings.configured:
            return given  # the settings may be importing this
        if using not in self._name_makers:
            with suppress(InvalidLockBackend, ImportError):  # raised when the lock is acquired
                self._name_makers[using] = self.create(using).name_maker() or str
        return self._name_makers.get(using, str)(given)

    def reset(self) -> None:
        """Close all backends; new ones are made from the current settings when they are needed."""
        former, self._backends, self._name_makers = self._backends, {}, {}
        for backend in [*former.values()]:
            backend.close()


locks = LockHandler()


def lock(
    name: str,
    timeout: float | Default | None = DEFAULT,
    *,
    blocking: bool = True,
    blocking_timeout: float | Default | None = DEFAULT,
    auto_renew: bool | None = None,
    max_hold: float | None = None,
    reentrant: bool = False,
    wait: str | None = None,
    metadata: Mapping[str, str] | None = None,
    using: str = DEFAULT_ALIAS,
    after_commit: bool = True,
    shared: bool = False,
    max_waiters: int | None = None,
    on_unavailable: OnUnavailable = "raise",
) -> Lock:
    """Return a handle for the lock ``name``: a context manager and a decorator, sync and async.

    ``timeout`` is the lease in seconds; an explicit ``None`` never expires. Without it, the lease
    is the alias's TIMEOUT and is renewed in the background while the handle lives. With it, the
    lease is fixed unless ``auto_renew`` is true. A renewed lease ends after ``max_hold`` seconds.

    ``blocking`` is whether to wait, and ``blocking_timeout`` for how many seconds at most, by
    default the alias's BLOCKING_TIMEOUT; ``None`` waits without limit. ``wait`` overrides the
    alias's notification mode: ``"queue"``, ``"blpop"`` or ``"poll"``. ``reentrant`` lets the same
    thread, greenlet or asyncio task enter again without a round trip. ``metadata``, a dict of str,
    is shown with the holder. ``using`` is an alias of LOCKS. A release inside a database
    transaction takes effect when the transaction ends, with ``after_commit=False`` at once.

    ``shared=True`` allows other shared holders at the same time and excludes exclusive ones. All
    wait in one queue, in order of arrival. If ``max_waiters`` callers already wait, the lock is not
    acquired. If the server can't be reached, or refuses, ``on_unavailable="run"`` continues without
    the lock and logs a warning, instead of raising ``LockUnavailable``; ``guarded`` of the handle
    is False then.

    Raises ``ValueError`` or ``TypeError`` for invalid arguments. Sends nothing to the server before
    the lock is acquired.
    """
    if callable(getattr(name, "__func__", name)):  # of a class method, too
        raise TypeError(
            f"@lock needs the name of a lock, not {name!r}. "
            f"Use @lock({getattr(name, '__name__', 'name')!r}) instead of @lock."
        )
    return _handle(
        using,
        name,
        timeout,
        blocking=blocking,
        blocking_timeout=blocking_timeout,
        auto_renew=auto_renew,
        max_hold=max_hold,
        reentrant=reentrant,
        wait=wait,
        metadata=metadata,
        after_commit=after_commit,
        on_unavailable=on_unavailable,
        sharing=Sharing(shared, None, max_waiters),
    )


def semaphore(
    name: str,
    limit: int,
    timeout: float | Default | None = DEFAULT,
    *,
    blocking: bool = True,
    blocking_timeout: float | Default | None = DEFAULT,
    auto_renew: bool | None = None,
    max_hold: float | None = None,
    reentrant: bool = False,
    wait: str | None = None,
    metadata: Mapping[str, str] | None = None,
    using: str = DEFAULT_ALIAS,
    after_commit: bool = True,
    max_waiters: int | None = None,
    on_unavailable: OnUnavailable = "raise",
) -> Lock:
    """Return a handle for one of the ``limit`` permits of the semaphore ``name``.

    Each permit has a lease and a fence. Callers get permits in order of arrival. An operator's
    limit overrides theirs; 0 pauses the semaphore. ``lock(name)`` waits until no permit is held,
    and excludes all. The other arguments and the errors are those of ``lock()``. A backend
    without semaphores raises ``InvalidLockBackend`` when a permit is acquired.
    """
    if limit is None:  # which would let in any number
        raise ValueError(f"limit=None must be a whole number from 0 to {MOST_AT_ONCE}.")
    return _handle(
        using,
        name,
        timeout,
        blocking=blocking,
        blocking_timeout=blocking_timeout,
        auto_renew=auto_renew,
        max_hold=max_hold,
        reentrant=reentrant,
        wait=wait,
        metadata=metadata,
        after_commit=after_commit,
        on_unavailable=on_unavailable,
        sharing=Sharing(True, limit, max_waiters),
    )


def lock_many(
    names: Iterable[str],
    timeout: float | Default | None = DEFAULT,
    *,
    blocking: bool = True,
    blocking_timeout: float | Default | None = DEFAULT,
    auto_renew: bool | None = None,
    max_hold: float | None = None,
    metadata: Mapping[str, str] | None = None,
    using: str = DEFAULT_ALIAS,
    after_commit: bool = True,
    shared: bool | Iterable[str] = False,
    limit: int | Mapping[str, int] | None = None,
    max_waiters: int | None = None,
    on_unavailable: OnUnavailable = "raise",
) -> LockGroup:
    """Return a handle for several locks, of which it acquires all or none.

    The locks are acquired one by one in the order of their names, so callers never deadlock; after
    a wait, all leases begin with the last one. If one is not acquired, the others are released at
    once. Duplicate names count once. ``blocking_timeout`` limits the wait for all locks together.
    ``limit`` acquires a permit of each, as ``semaphore()`` does. Names in ``shared`` are further
    locks, which are shared, and a dict as ``limit`` has further names, with the limit of each. The
    other arguments and the errors are those of ``lock()``.
    """
    if callable(names):
        raise TypeError(
            f"@lock_many needs the names of locks, not {names!r}. "
            f"Use @lock_many(['stock', 'prices']) instead of @lock_many."
        )
    if isinstance(names, str | Mapping) or not isinstance(names, Iterable):
        raise TypeError(f"names={names!r} must be a list of names: for one name, use lock().")
    from django_redis_lock.primitives import group  # unless it is used, it is not needed

    kinds = group.kinds(names, shared, limit, max_waiters)
    make = partial(
        _handle,
        using,
        timeout=timeout,
        blocking=blocking,
        blocking_timeout=blocking_timeout,
        auto_renew=auto_renew,
        max_hold=max_hold,
        metadata=metadata,
        after_commit=after_commit,
        on_unavailable=on_unavailable,
    )
    return group.LockGroup([make(name=name, sharing=kind) for name, kind in kinds])


def _handle(using: str, *given: Any, **options: Any) -> Lock:
    """Return a handle of one lock. The cache of the alias may make its name."""
    made = Lock(partial(locks.__getitem__, using), *given, **options)
    plain = isinstance(using, str) and locks._name_makers.get(using) is str  # which changes none
    return made if plain else made.named_by(partial(locks.make_name, using))


@receiver(setting_changed, dispatch_uid="django_redis_lock")
def _settings_changed(*, setting: str, **kwargs: Any) -> None:
    if setting in ("LOCKS", "CACHES"):
        locks.reset()
