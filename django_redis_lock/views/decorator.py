"""``@locked``: one request at a time through a view, or one for each value in its URL."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, TypeVar, cast

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from django_redis_lock.exceptions import LockError, LockLost, LockNotOwned, LockUnavailable
from django_redis_lock.handler import DEFAULT_ALIAS, locks
from django_redis_lock.primitives.holding import DEFAULT, Default
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.support.functions import finished, is_async, is_generator
from django_redis_lock.views import bodies
from django_redis_lock.views.declined import Declined
from django_redis_lock.views.names import Name, NameMaker
from django_redis_lock.views.refusals import Refusal

logger = logging.getLogger("django_redis_lock")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
View = Callable[..., Any]

BLOCKING_TIMEOUT = 10.0
"""Seconds that a request waits where nothing else is said: a client does not wait for ever."""
MAX_HOLD = 60.0
"""Seconds for which a lock is renewed where nothing is said: a request does not last for ever."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")
"""Those that change nothing (RFC 9110), and so take no lock unless they are named."""


class GuardedRequest(HttpRequest):
    """The request that a guarded view is given, for annotations."""

    lock: Lock | None


class LockedRequest(HttpRequest):
    """The same where only methods that take the lock reach the view: the request has it."""

    lock: Lock


def locked(
    name: Name,
    timeout: float | Default | None = DEFAULT,
    *,
    blocking: bool = True,
    blocking_timeout: float | Default | None = DEFAULT,
    max_hold: float | Default | None = DEFAULT,
    methods: Collection[str] | None = None,
    auto_renew: bool | None = None,
    reentrant: bool = False,
    metadata: Mapping[str, str] | None = None,
    using: str = DEFAULT_ALIAS,
    status: int = 409,
    retry_after: int | None = None,
) -> Callable[[Decorated], Decorated]:
    """Let a view run only while it holds a lock, ``request.lock``, which is released afterwards.

    Decorates a function, a method of a class-based view, what ``as_view()`` returns, or the class
    itself; synchronous or not; views of Django REST framework as well.

    ``name`` is a template that may use the arguments of the URL and the request, such as
    ``"product:{product_id}"`` or ``"cart:{request.user.pk}"``, or a callable that is given the
    request and the arguments of its URL and returns the name.

    ``methods`` are the HTTP methods that take the lock, such as ``["POST"]``; all but GET, HEAD,
    OPTIONS and TRACE if not given. With any other method the view runs without it, and
    ``request.lock`` is ``None``. The request's body is received before the lock is taken.

    A lease that is renewed ends after ``max_hold`` seconds, 60 if not given; ``None``: with the
    view. Then the lock is lost, as ``request.lock.lost`` tells.

    A request that does not get the lock within ``blocking_timeout`` seconds, 10 if not given, is
    answered with ``status``: 409, 423 or 503; and with 503 when the server can't be asked. The
    answer is JSON, or HTML from the template ``django_redis_lock/locked.html``, as the client
    prefers. ``retry_after``: whole seconds for the header Retry-After, which a 503 always has.
    A request of which no valid name can be made is answered with 400.

    The transaction of ATOMIC_REQUESTS begins after the lock was taken, and ends before it is
    released.

    The other arguments are those of ``lock()``. Raises ``ValueError`` or ``TypeError`` where the
    view is defined for arguments that make no sense, and for a placeholder that it has no argument
    for; from the view ``LockLost`` when the lock was lost before the view was done.
    """
    if isinstance(blocking_timeout, Default):
        blocking_timeout = BLOCKING_TIMEOUT if blocking else None
    if isinstance(max_hold, Default):
        renewed = isinstance(timeout, Default) if auto_renew is None else auto_renew
        max_hold = MAX_HOLD if renewed else None
    new_lock = functools.partial(
        Lock,
        lambda: locks[using],
        timeout=timeout,
        blocking=blocking,
        blocking_timeout=blocking_timeout,
        auto_renew=auto_renew,
        reentrant=reentrant,
        metadata=metadata,
        max_hold=max_hold,
    )
    new_lock(name="checks the arguments")
    refusal = Refusal(status, retry_after)
    return _Guard(NameMaker(name), new_lock, _check_methods(methods), refusal).decorate


def _check_methods(methods: Any) -> frozenset[str] | None:
    """Return the methods that take the lock, ``None`` for all but the safe ones."""
    if methods is None:
        return None
    if isinstance(methods, str) or not isinstance(methods, Collection):
        raise TypeError(f"methods={methods!r} must be a list of HTTP methods, such as ['POST'].")
    for method in methods:
        if method not in METHODS:
            raise ValueError(
                f"methods={methods!r} has {method!r}, which is no HTTP method; "
                f"there are {', '.join(METHODS)}."
            )
    if not methods:
        raise ValueError("methods is empty, so the lock would never be taken; leave it out.")
    return frozenset(methods)


class _Guard:
    """What ``locked`` was told, applied to views."""

    def __init__(
        self,
        make_name: NameMaker,
        new_lock: Callable[..., Lock],
        methods: frozenset[str] | None,
        refusal: Refusal,
    ) -> None:
        self._make_name = make_name
        self._new_lock = new_lock
        self._methods = methods
        self._refusal = refusal

    def decorate(self, view: Decorated) -> Decorated:
        """Guard a view, or the class of one. Raises ``TypeError`` and ``ValueError``."""
        if isinstance(view, type):
            return cast("Decorated", self._decorate_class(view))
        if not callable(view):
            raise TypeError(
                f"locked decorates a view, not {view!r}. Write the name of the lock first: "
                f"@locked('product:{{product_id}}')."
            )
        if is_generator(view):
            raise TypeError(f"{view!r} is a generator, which is no view.")
        self._make_name.check(view)
        if is_async(view):

            @functools.wraps(view)
            async def alocked(*args: Any, **kwargs: Any) -> Any:
                return await self._arun(view, args, kwargs)

            return cast("Decorated", alocked)

        declined = Declined.by(view)

        @functools.wraps(view)
        def locked(*args: Any, **kwargs: Any) -> Any:
            if _returns_coroutine(view, args):
                declined.refuse_transactions()
                return self._arun(view, args, kwargs)
            return self._run(view, args, kwargs, declined)

        locked._non_atomic_requests = declined  # type: ignore[attr-defined]
        return cast("Decorated", locked)

    def _decorate_class(self, view: type) -> type:
        dispatch = getattr(view, "dispatch", None)
        if dispatch is None:
            raise TypeError(f"locked decorates a view, and {view!r} has no method dispatch().")
        self._make_name.check(view)
        view.dispatch = self.decorate(dispatch)  # type: ignore[attr-defined]
        return view

    def _run(
        self, view: View, args: tuple[Any, ...], kwargs: dict[str, Any], declined: Declined
    ) -> Any:
        def answered(*args: Any, **kwargs: Any) -> Any:
            return finished(view, view(*args, **kwargs))

        request, rest = _split(view, args)
        if self._runs_without(request):
            return declined.atomic(answered)(*args, **kwargs)
        held = self._prepare(view, request, rest, kwargs)
        try:
            if not held.acquire():
                return self._refusal.locked(request)
        except LockUnavailable as error:
            return self._refusal.unavailable(request, error)
        request.lock = held
        unconfirmed: list[BaseException] = []

        def confirmed(*args: Any, **kwargs: Any) -> Any:
            response = answered(*args, **kwargs)
            try:
                with _Releasing(held):
                    held.ensure_held()  # or the transaction is rolled back
            except LockUnavailable as error:
                unconfirmed.append(error)
                raise
            return response

        try:
            guarded = declined.atomic(confirmed)
            response = (answered if guarded is confirmed else guarded)(*args, **kwargs)
        except BaseException as error:
            with _Releasing(held, error):
                held.release()
            if isinstance(error, LockUnavailable) and error in unconfirmed:
                return self._refusal.unavailable(request, error)  # nothing was written
            raise
        with _Releasing(held, done=True):
            held.release()
        return response

    async def _arun(self, view: View, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        async def answered() -> Any:
            return finished(view, await cast("Coroutine[Any, Any, Any]", view(*args, **kwargs)))

        request, rest = _split(view, args)
        if self._runs_without(request):
            return await answered()
        # The user, for one, comes out of the database; and under WSGI the body has yet to come.
        if self._make_name.reads_request or not bodies.has_arrived(_djangos(request)):
            held = await sync_to_async(self._prepare)(view, request, rest, kwargs)
        else:
            held = self._prepare(view, request, rest, kwargs)
        try:
            acquired = await held.aacquire()
        except LockUnavailable as error:
            return await sync_to_async(self._refusal.unavailable)(request, error)
        if not acquired:
            return await sync_to_async(self._refusal.locked)(request)
        request.lock = held
        try:
            response = await answered()
        except BaseException as error:
            with _Releasing(held, error):
                await held.arelease()
            raise
        with _Releasing(held, done=True):
            await held.arelease()
        return response

    def _runs_without(self, request: Any) -> bool:
        """Whether a request does not need the lock; then its ``lock`` is that of an outer view."""
        if self._methods is None:
            free = request.method in SAFE_METHODS
        else:
            free = request.method not in self._methods
        if free:
            request.lock = getattr(request, "lock", None)
        return free

    def _prepare(
        self, view: View, request: Any, rest: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Lock:
        """Return a handle for a lock that waits for no client. Raises ``BadRequest``."""
        bodies.receive(_djangos(request))
        return self._new_lock(name=self._make_name(view, request, rest, kwargs))


class _Releasing:
    """What becomes of an error of the release: an error of the view is never hidden by it."""

    def __init__(
        self, held: Lock, error: BaseException | None = None, *, done: bool = False
    ) -> None:
        self._held = held
        self._error = error
        self._done = done  # the view's work, and nothing can undo it

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, failure: BaseException | None, trace: Any) -> bool:
        if not isinstance(failure, LockError):
            return False
        if isinstance(failure, LockNotOwned) and not isinstance(failure, LockLost):
            return True  # the view has released it itself, or passed it on
        # The lock was held until the work was done. To say that it failed would make the client do
        # it again; the lease ends by itself.
        in_vain = self._done and isinstance(failure, LockUnavailable)
        if self._error is None and not in_vain:
            return False
        logger.warning("The release of lock %r failed after a view: %s", self._held.name, failure)
        return True


def _split(view: View, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the request, and the arguments after it."""
    for position, request in enumerate(args[:2]):  # in a method it comes after self
        if isinstance(_djangos(request), HttpRequest):
            return request, args[position + 1 :]
    raise TypeError(f"{view!r} was called without a request, so it is no view.")


def _djangos(request: Any) -> Any:
    """Return Django's own request, which that of Django REST framework wraps."""
    return getattr(request, "_request", request)


def _returns_coroutine(view: View, args: tuple[Any, ...]) -> bool:
    """Whether a method that is no coroutine function, such as dispatch(), belongs to an async view.

    ``method_decorator`` hands over a partial of the bound method, below other decorators or not.
    """
    owner = args[0] if args else None
    layer: Any = view
    while layer is not None:
        owner = getattr(getattr(layer, "func", None), "__self__", owner)
        layer = getattr(layer, "__wrapped__", None)
    return bool(getattr(type(owner), "view_is_async", False))
