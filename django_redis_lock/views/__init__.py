"""``@locked``: a view that runs while it holds a lock."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from django_redis_lock.exceptions import LockNotAcquired, LockNotOwned, LockUnavailable
from django_redis_lock.handler import DEFAULT_ALIAS, USES, locks
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.support import arguments, django_private
from django_redis_lock.support.arguments import DEFAULT, EXCLUSIVE, Default, Sharing
from django_redis_lock.support.django_private import View
from django_redis_lock.support.functions import finished, is_async, is_generator
from django_redis_lock.views import body
from django_redis_lock.views.names import Args, Kwargs, Name, NameMaker
from django_redis_lock.views.transactions import NonAtomicAliases

logger = logging.getLogger("django_redis_lock")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Answer = Callable[[Any, Exception], HttpResponse]

BLOCKING_TIMEOUT = 10.0  # seconds that a request waits if neither the view nor the alias says so
MAX_HOLD = 60.0  # seconds for which a lock is renewed by default
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
STATUSES = (409, 423, 503)  # to choose from when another request holds the lock
RETRY_AFTER = 5  # seconds when the server is unavailable and the view gives none
TEMPLATE = "django_redis_lock/locked.html"


class GuardedRequest(HttpRequest):
    """The request passed to a guarded view, for annotations."""

    lock: Lock | None
    """``None`` if ``methods`` lets the request's method pass without the lock."""


class LockedRequest(HttpRequest):
    """The request of a view that only methods which take the lock can reach."""

    lock: Lock


class ViewLock(Lock):
    """A lock for a request, which by default does not wait without limit."""

    @property
    def blocking_timeout(self) -> float | None:
        wait = super().blocking_timeout
        by_default = wait is None and isinstance(self._blocking_timeout, Default)
        return BLOCKING_TIMEOUT if by_default else wait

    def __bool__(self) -> bool:
        return True  # unlike the None of a request without a lock

    unconfirmed: LockUnavailable | None = None
    """Why it is unknown whether it was held at the end of the transaction."""

    def confirm(self) -> None:
        """Do as ``ensure_held()``, unless the view has released the lock or may run without."""
        try:
            self.ensure_held()
        except LockUnavailable as error:
            if self.on_unavailable != "run":
                self.unconfirmed = error
                raise
        except LockNotOwned as error:
            if type(error) is not LockNotOwned:  # but lost
                raise

    def _tolerates(self, error: BaseException | None, failure: BaseException) -> bool:
        if isinstance(failure, LockUnavailable):  # the work is done, the lease expires
            logger.warning("Could not release lock %r after a view: %s", self.name, failure)
            return True
        released = type(failure) is LockNotOwned  # or detached, by the view
        return released or super()._tolerates(error, failure)


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
    shared: bool = False,
    limit: int | None = None,
    max_waiters: int | None = None,
    on_unavailable: Literal["raise", "run"] = "raise",
    status: int = 409,
    retry_after: int | None = None,
    answer: Answer | None = None,
) -> Callable[[Decorated], Decorated]:
    """Run a view, of whatever kind, only while it holds a lock, which is ``request.lock``.

    ``name`` is a template over the request and the URL's arguments, such as
    ``"cart:{request.user.pk}"``, or a callable that takes them and returns the name. Only
    ``methods`` take the lock, by default all. A lease is renewed for ``max_hold`` seconds, by
    default 60, and then lost.

    A request that does not get the lock within ``blocking_timeout`` seconds, by default 10, or at
    once if ``max_waiters`` wait for it already, is answered with ``status``: 409, 423 or 503. If
    the server is unavailable, it is answered with 503, or with ``on_unavailable="run"`` runs
    without the lock. ``answer(request, error)`` returns another response. ``limit`` is that of
    ``semaphore()``, and the other arguments are those of ``lock()``.

    Raises ``ValueError`` or ``TypeError`` for invalid arguments when the view is defined. The view
    raises ``LockLost`` if the lock was lost before it returned.
    """
    arguments.check_types(using)
    arguments.check_choice("status", status, STATUSES)
    if retry_after is not None:
        arguments.check_number("retry_after", retry_after, 1)
    if answer is not None and (not callable(answer) or is_async(answer)):
        raise TypeError(f"answer={answer!r} must be a function that is not asynchronous.")
    if methods is not None and (not methods or not set(METHODS).issuperset(methods)):
        known = ", ".join(METHODS)
        raise ValueError(f"methods={methods!r} must be a list of one or more of {known}.")
    if shared and limit is not None:
        raise ValueError("shared and limit exclude each other: pass only one of them.")
    if isinstance(max_hold, Default):
        renewed = isinstance(timeout, Default) if auto_renew is None else auto_renew
        max_hold = MAX_HOLD if renewed else None
    new_lock = functools.partial(
        ViewLock,
        lambda: locks[using],
        timeout=timeout,
        blocking=blocking,
        blocking_timeout=blocking_timeout,
        auto_renew=auto_renew,
        reentrant=reentrant,
        metadata=metadata,
        max_hold=max_hold,
        on_unavailable=on_unavailable,
        sharing=Sharing(shared or limit is not None, limit, max_waiters),
    )
    new_lock(name="checks the arguments")
    guarded = None if methods is None else frozenset(methods)
    return _Guard(NameMaker(name, using), new_lock, guarded, status, retry_after, answer).decorate


@dataclass(frozen=True)
class _Guard:
    _make_name: NameMaker
    _new_lock: functools.partial[ViewLock]
    _methods: frozenset[str] | None
    _status: int
    _retry_after: int | None
    _make_answer: Answer | None

    def decorate(self, view: Decorated) -> Decorated:
        if not callable(view):  # the request, if the decorator was given a view as its name
            raise TypeError(
                f"locked() decorates a view, not {view!r}. "
                f"Write @locked('product:{{product_id}}') instead of @locked."
            )
        if is_generator(view):
            raise TypeError(f"{view!r} is a generator, not a view.")
        self._make_name.check(view)
        if isinstance(view, type):
            if not hasattr(view, "dispatch"):
                raise TypeError(f"locked() decorates views only: {view!r} has no dispatch().")
            view.dispatch = self.decorate(view.dispatch)
            return cast("Decorated", view)
        path = f"{view.__module__}.{getattr(view, '__qualname__', type(view).__qualname__)}"
        shares = self._new_lock.keywords["sharing"] != EXCLUSIVE
        USES.add((self._make_name.using, f"The view {path}", shares))
        if is_async(view):

            @functools.wraps(view)
            async def alocked(*args: Any, **kwargs: Any) -> Any:
                return await self._arun(view, args, kwargs)

            return cast("Decorated", alocked)

        databases = NonAtomicAliases(view)

        @functools.wraps(view)
        def locked(*args: Any, **kwargs: Any) -> Any:
            if getattr(type(_owner(view, args)), "view_is_async", False):
                if databases.wanted():  # as Django does
                    raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")
                return self._arun(view, args, kwargs)
            return self._run(view, args, kwargs, databases)

        django_private.set_non_atomic_databases(locked, databases)
        return cast("Decorated", locked)

    def _run(self, view: View, args: Args, kwargs: Kwargs, databases: NonAtomicAliases) -> Any:
        request, rest = _split(view, args)
        held: ViewLock | None = None

        def answered(*args: Any, **kwargs: Any) -> Any:
            response = finished(view, view(*args, **kwargs))
            if held is not None and databases.wanted():
                held.confirm()  # an error rolls the transaction back
            return response

        try:
            with ExitStack() as stack:
                if not self._runs_without(request):
                    try:
                        held = stack.enter_context(self._prepare(view, request, rest, kwargs))
                    except (BadRequest, LockNotAcquired, LockUnavailable) as error:
                        return self._refuse(view, args, kwargs, error)
                    request.lock = held
                return databases.atomic(answered)(*args, **kwargs)
        except LockUnavailable as error:
            if held is None or error is not held.unconfirmed:
                raise
            return self._refuse(view, args, kwargs, error)  # nothing was written

    async def _arun(self, view: View, args: Args, kwargs: Kwargs) -> Any:
        request, rest = _split(view, args)
        async with AsyncExitStack() as stack:
            if not self._runs_without(request):
                # The name may need the database (request.user); under WSGI the body may yet arrive.
                slow = self._make_name.reads_request or not body.has_arrived(_djangos(request))
                prepare = functools.partial(self._prepare, view, request, rest, kwargs)
                try:
                    held = await sync_to_async(prepare)() if slow else prepare()
                    request.lock = await stack.enter_async_context(held)
                except (BadRequest, LockNotAcquired, LockUnavailable) as error:
                    return await sync_to_async(self._refuse)(view, args, kwargs, error)
            return finished(view, await cast("Coroutine[Any, Any, Any]", view(*args, **kwargs)))

    def _runs_without(self, request: Any) -> bool:
        if self._methods is None or request.method in self._methods:
            return False
        if not hasattr(request, "lock"):  # an outer guard may have taken one
            request.lock = None
        return True

    def _prepare(self, view: View, request: Any, rest: Args, kwargs: Kwargs) -> ViewLock:
        """Receive the body and return a handle for the lock. Raises ``BadRequest``."""
        body.receive(_djangos(request))
        return self._new_lock(name=self._make_name(view, request, rest, kwargs))

    def _refuse(self, view: View, args: Args, kwargs: Kwargs, error: Exception) -> Any:
        """Return the response for a request without its lock, or raise what Django answers."""
        request, rest = _split(view, args)
        unavailable = isinstance(error, LockUnavailable)
        level = logging.ERROR if unavailable else logging.INFO
        logger.log(level, "A view could not acquire its lock: %s", error)
        api = request if request is not _djangos(request) else _api_view(view, args)
        status, code = (503, "unavailable") if unavailable else (self._status, "locked")
        reason = _("This is busy right now.")
        if unavailable or getattr(error, "paused", False):
            reason = _("This can't be done at the moment.")
        wait = self._retry_after or (RETRY_AFTER if status == 503 else None)

        def respond(request: Any, *args: Any, **kwargs: Any) -> Any:
            if self._make_answer is not None:
                return finished(self._make_answer, self._make_answer(request, error))
            if api is None and isinstance(error, BadRequest):
                raise error
            if api is None:
                return _respond(request, status, code, reason, wait)
            from rest_framework.exceptions import APIException, ParseError

            failure: Any = ParseError()
            if not isinstance(error, BadRequest):
                failure = APIException(f"{reason} {_('Please try again in a moment.')}", code)
                failure.status_code, failure.wait = status, wait
            raise failure from error  # the framework catches it

        if api is None or api is request:
            return respond(request)
        inside = NonAtomicAliases(view).atomic(functools.partial(_dispatch, api, respond))
        return inside(request, *rest, **kwargs)


def _respond(request: Any, status: int, code: str, reason: str, wait: int | None) -> HttpResponse:
    advice = _("Please try again in a moment.")
    data = {"error": code, "detail": f"{reason} {advice}"}
    response: HttpResponse = JsonResponse(data, status=status)
    if request.get_preferred_type(["application/json", "text/html"]) == "text/html":
        context = {"status": status, "error": code, "reason": reason, "advice": advice}
        try:
            page = render_to_string(TEMPLATE, context, request)
            response = HttpResponse(page, status=status)
        except TemplateDoesNotExist:
            logger.warning("Could not find template %s: set APP_DIRS, or write it.", TEMPLATE)
    patch_vary_headers(response, ["Accept", "Accept-Language"])
    if wait is not None:
        response["Retry-After"] = str(wait)
    return response


def _api_view(view: Any, args: Args) -> Any:
    """Return the object of a view of Django REST framework; ``None`` for another view."""
    api, kind = _owner(view, args), getattr(view, "cls", view)
    if hasattr(kind, "initialize_request"):  # what as_view() and api_view() return
        api = kind(**view.initkwargs)
        api.action_map = getattr(view, "actions", None)
    return api if hasattr(api, "initialize_request") else None


def _dispatch(api: Any, respond: View, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what Django REST framework answers if its view does no more than ``respond``."""
    from rest_framework.views import APIView

    method = request.method.lower()
    if method in api.http_method_names:
        setattr(api, method, respond)
    return APIView.dispatch(api, request, *args, **kwargs)


def _split(view: View, args: Args) -> tuple[Any, Args]:
    """Return the request and the arguments after it."""
    for position, request in enumerate(args[:2]):  # a method takes self first
        if isinstance(_djangos(request), HttpRequest):
            return request, args[position + 1 :]
    raise TypeError(f"{view!r} was called without a request, so it is not a view.")


def _djangos(request: Any) -> Any:
    """Return Django's request, which Django REST framework wraps in its own."""
    return getattr(request, "_request", request)


def _owner(view: View, args: Args) -> Any:
    """Return the object of a class-based view that a method, such as ``dispatch()``, belongs to.

    ``method_decorator`` passes a partial of the bound method, which other decorators may wrap.
    """
    owner = args[0] if args else None
    layer: Any = view
    while layer is not None:
        owner = getattr(getattr(layer, "func", None), "__self__", owner)
        layer = getattr(layer, "__wrapped__", None)
    return owner
