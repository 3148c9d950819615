"""``@locked``: one request at a time through a view, or one for each value in its URL."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, cast

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from django_redis_lock.calls import finished, is_async, is_generator
from django_redis_lock.exceptions import LockError, LockLost, LockNotOwned, LockUnavailable
from django_redis_lock.handler import DEFAULT_ALIAS, lock
from django_redis_lock.holding import DEFAULT, Default
from django_redis_lock.lock import Lock
from django_redis_lock.viewnames import Name, NameMaker

logger = logging.getLogger("django_redis_lock")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
View = Callable[..., Any]

STATUSES = (409, 423, 503)
"""What a request can be told that did not get the lock."""
UNAVAILABLE = 503
BLOCKING_TIMEOUT = 10.0
"""Seconds that a request waits where nothing else is said: a client does not wait for ever."""
RETRY_AFTER = 5
"""Seconds after which to come again when the server could not be asked, unless said otherwise."""
TEMPLATE = "django_redis_lock/locked.html"


class LockedRequest(HttpRequest):
    """The request that a guarded view is given, for annotations: it has the lock."""

    lock: Lock


def locked(
    name: Name,
    timeout: float | Default | None = DEFAULT,
    *,
    blocking: bool = True,
    blocking_timeout: float | Default | None = DEFAULT,
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
    if status not in STATUSES:
        raise ValueError(
            f"status={status!r} says nothing about locks; it can be "
            f"{', '.join(map(str, STATUSES))}."
        )
    if retry_after is not None and (
        isinstance(retry_after, bool) or not isinstance(retry_after, int) or retry_after < 1
    ):
        raise ValueError(f"retry_after={retry_after!r} must be whole seconds, 1 or more.")
    if isinstance(blocking_timeout, Default):
        blocking_timeout = BLOCKING_TIMEOUT if blocking else None
    new_lock = functools.partial(
        lock,
        timeout=timeout,
        blocking=blocking,
        blocking_timeout=blocking_timeout,
        auto_renew=auto_renew,
        reentrant=reentrant,
        metadata=metadata,
        using=using,
    )
    new_lock("checks the arguments")
    return _Guard(NameMaker(name), new_lock, status, retry_after).decorate


class _Guard:
    """What ``locked`` was told, applied to views."""

    def __init__(
        self,
        make_name: NameMaker,
        new_lock: Callable[[str], Lock],
        status: int,
        retry_after: int | None,
    ) -> None:
        self._make_name = make_name
        self._new_lock = new_lock
        self._status = status
        self._retry_after = retry_after

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

        declined = _Declined.by(view)

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
        self, view: View, args: tuple[Any, ...], kwargs: dict[str, Any], declined: _Declined
    ) -> Any:
        request, held = self._prepare(view, args, kwargs)
        try:
            if not held.acquire():
                return self._refusal(request, self._status)
        except LockUnavailable as error:
            return self._unavailable(request, error)
        request.lock = held
        unconfirmed: list[BaseException] = []

        def answered(*args: Any, **kwargs: Any) -> Any:
            return finished(view, view(*args, **kwargs))

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
                return self._unavailable(request, error)  # nothing was written
            raise
        with _Releasing(held, done=True):
            held.release()
        return response

    async def _arun(self, view: View, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._make_name.reads_request:  # whose user, for one, comes out of the database
            request, held = await sync_to_async(self._prepare)(view, args, kwargs)
        else:
            request, held = self._prepare(view, args, kwargs)
        try:
            acquired = await held.aacquire()
        except LockUnavailable as error:
            return await sync_to_async(self._unavailable)(request, error)
        if not acquired:
            return await sync_to_async(self._refusal)(request, self._status)
        request.lock = held
        try:
            coroutine = cast("Coroutine[Any, Any, Any]", view(*args, **kwargs))
            response = finished(view, await coroutine)
        except BaseException as error:
            with _Releasing(held, error):
                await held.arelease()
            raise
        with _Releasing(held, done=True):
            await held.arelease()
        return response

    def _prepare(
        self, view: View, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Lock]:
        """Return the request, and a handle for its lock. Raises ``BadRequest``."""
        for position, request in enumerate(args[:2]):  # in a method it comes after self
            if isinstance(getattr(request, "_request", request), HttpRequest):
                name = self._make_name(view, request, args[position + 1 :], kwargs)
                return request, self._new_lock(name)
        raise TypeError(f"{view!r} was called without a request, so it is no view.")

    def _unavailable(self, request: Any, error: LockUnavailable) -> HttpResponse:
        logger.error("A view could not take its lock: %s", error)
        return self._refusal(request, UNAVAILABLE, available=False)

    def _refusal(self, request: Any, status: int, *, available: bool = True) -> HttpResponse:
        if available:
            code, reason = "locked", _("Somebody else is doing this right now.")
        else:
            code, reason = "unavailable", _("This can't be done at the moment.")
        advice = _("Please try again in a moment.")
        response: HttpResponse = JsonResponse(
            {"error": code, "detail": f"{reason} {advice}"}, status=status
        )
        if request.get_preferred_type(["application/json", "text/html"]) == "text/html":
            context = {"status": status, "error": code, "reason": reason, "advice": advice}
            try:
                page = render_to_string(TEMPLATE, context, getattr(request, "_request", request))
                response = HttpResponse(page, status=status)
            except TemplateDoesNotExist:
                logger.warning("There is no template %s: set APP_DIRS, or write one.", TEMPLATE)
        patch_vary_headers(response, ["Accept", "Accept-Language"])
        retry_after = self._retry_after or (RETRY_AFTER if status == UNAVAILABLE else None)
        if retry_after is not None:
            response["Retry-After"] = str(retry_after)
        return response


class _Declined(set[str]):
    """The databases for which a view declines the transaction of ATOMIC_REQUESTS.

    Django finds all of them here, and so leaves the transactions to us, who begin them once the
    lock is held. What the view and the decorators above ours really decline is remembered.
    """

    left_to_view = False
    """Whether the view has a lock of its own, after which the transactions are to begin."""

    @classmethod
    def by(cls, view: View) -> _Declined:
        """Return what a view declines."""
        given = getattr(view, "_non_atomic_requests", ())
        declined = cls(given)
        declined.left_to_view = isinstance(given, cls)
        return declined

    def __contains__(self, alias: object) -> bool:
        return True

    def _wanted(self) -> list[str]:
        if self.left_to_view:
            return []
        really = set(self)
        return [
            alias
            for alias, settings in connections.settings.items()
            if settings["ATOMIC_REQUESTS"] and alias not in really
        ]

    def atomic(self, view: View) -> View:
        """Return the view in a transaction of each database that it does not decline."""
        for alias in self._wanted():
            view = transaction.atomic(using=alias)(view)
        return view

    def refuse_transactions(self) -> None:
        """Raise ``RuntimeError``, as Django does, where an asynchronous view would need one."""
        if self._wanted():
            raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")


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
