"""``@locked``: a view that runs while it holds a lock."""

from __future__ import annotations

import functools
import inspect
import io
import logging
import re
import shutil
import string
import sys
import tempfile
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import IO, Any, Literal, NoReturn, TypeVar, cast

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import BadRequest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse, UnreadablePostError
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from django_redis_lock.exceptions import LockError, LockNotAcquired, LockNotOwned, LockUnavailable
from django_redis_lock.handler import DEFAULT_ALIAS, USES, locks
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.support import arguments, django_private
from django_redis_lock.support.arguments import DEFAULT, EXCLUSIVE, Default, Sharing, check_name
from django_redis_lock.support.functions import finished, is_async, is_generator

logger = logging.getLogger("django_redis_lock")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
View = Callable[..., Any]
Name = str | Callable[..., str]
Answer = Callable[[Any, Exception], HttpResponse]

BLOCKING_TIMEOUT = 10.0
"""Seconds that a request waits where neither the view nor the alias says how long."""
MAX_HOLD = 60.0
"""Seconds for which a lock is renewed by default."""
REQUEST = "request"
"""The name of the request in templates, whatever the view calls it."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
STATUSES = (409, 423, 503)
"""The statuses to choose from when another request holds the lock."""
UNAVAILABLE = 503
RETRY_AFTER = 5
"""Seconds for Retry-After when the server is unavailable and the view gives none."""
TEMPLATE = "django_redis_lock/locked.html"


class ViewLock(Lock):
    """A lock for a request, which by default does not wait without limit."""

    @property
    def blocking_timeout(self) -> float | None:
        wait = super().blocking_timeout
        by_default = wait is None and isinstance(self._blocking_timeout, Default)
        return BLOCKING_TIMEOUT if by_default else wait

    def __bool__(self) -> bool:
        return True  # unlike NoLock

    def confirm(self) -> None:
        """Do as ``ensure_held()``, unless the view has released the lock or may run without."""
        try:
            self.ensure_held()
        except LockError as error:
            optional = self.on_unavailable == "run" and isinstance(error, LockUnavailable)
            if not optional and type(error) is not LockNotOwned:
                raise

    def _leave_after(self, error: BaseException | None, failure: BaseException) -> None:
        if isinstance(failure, LockUnavailable):
            # The lock was held until the work was done. An error would make the client repeat the
            # request; the lease ends by itself.
            logger.warning("The release of lock %r failed after a view: %s", self.name, failure)
        elif type(failure) is not LockNotOwned:  # after the view released or detached it
            super()._leave_after(error, failure)


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
    """Run a view only while it holds a lock, which is ``request.lock``.

    Decorates functions, methods, classes and the result of ``as_view()``, synchronous or
    asynchronous, and those of Django REST framework.

    ``name`` is a template over the URL's arguments and the request, such as
    ``"product:{product_id}"`` or ``"cart:{request.user.pk}"``; or a callable that takes the request
    and the URL's arguments and returns the name. Only ``methods`` take the lock, by default all.
    A lease is renewed for ``max_hold`` seconds, by default 60, and then lost.

    A request that does not get the lock within ``blocking_timeout`` seconds, by default 10, or at
    once if ``max_waiters`` wait for it already, is answered with ``status``: 409, 423 or 503; and
    with 503 when the server is unavailable; or with ``on_unavailable="run"``, the view runs without
    the lock then. ``answer(request, error)`` returns another response. With ``limit``, so many
    requests hold it at once, as with ``semaphore()``. The other arguments are those of ``lock()``.

    The request's body is received before the lock is taken, so that a slow client holds no lock;
    the transaction of ATOMIC_REQUESTS begins after that. Raises ``ValueError`` or ``TypeError`` for
    invalid arguments when the view is defined. The view raises ``LockLost`` if the lock was lost
    before it returned.
    """
    _refuse_view(name)
    arguments.check_types(using)
    if status not in STATUSES:
        raise ValueError(
            f"status={status!r} is not a status for a lock that is held; choose from "
            f"{', '.join(map(str, STATUSES))}."
        )
    if retry_after is not None and (type(retry_after) is not int or retry_after < 1):
        raise ValueError(f"retry_after={retry_after!r} must be whole seconds, 1 or more.")
    if answer is not None and (not callable(answer) or is_async(answer)):
        raise TypeError(f"answer={answer!r} must be a function, and can't be asynchronous.")
    if shared and limit is not None:
        raise ValueError("shared and limit exclude each other; leave one of them out.")
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
    methods = _check_methods(methods)
    return _Guard(NameMaker(name, using), new_lock, methods, status, retry_after, answer).decorate


def _check_methods(methods: Any) -> frozenset[str] | None:
    if methods is None:
        return None
    if isinstance(methods, str) or not isinstance(methods, Collection):
        raise TypeError(f"methods={methods!r} must be a list of HTTP methods, such as ['POST'].")
    if not methods or not set(METHODS).issuperset(methods):
        raise ValueError(f"methods={methods!r} must be one or more of {', '.join(METHODS)}.")
    return frozenset(methods)


@dataclass(frozen=True)
class _Guard:
    _make_name: NameMaker
    _new_lock: functools.partial[ViewLock]
    _methods: frozenset[str] | None
    _status: int
    _retry_after: int | None
    _make_answer: Answer | None

    def decorate(self, view: Decorated, /, *args: Any, **kwargs: Any) -> Decorated:
        if args or kwargs or not callable(view):  # with those of a URL, it is called as a view
            raise _no_name_and_view(self._make_name.source, view)
        if is_generator(view):
            raise TypeError(f"{view!r} is a generator, not a view.")
        self._make_name.check(view)
        if isinstance(view, type):
            if not hasattr(view, "dispatch"):
                raise TypeError(f"locked() decorates a view, and {view!r} has no dispatch().")
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

        declined = NonAtomicAliases(view)

        @functools.wraps(view)
        def locked(*args: Any, **kwargs: Any) -> Any:
            if getattr(type(_owner(view, args)), "view_is_async", False):
                if declined.wanted():  # as Django does
                    raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")
                return self._arun(view, args, kwargs)
            return self._run(view, args, kwargs, declined)

        django_private.set_non_atomic_databases(locked, declined)
        return cast("Decorated", locked)

    def _run(
        self, view: View, args: tuple[Any, ...], kwargs: dict[str, Any], declined: NonAtomicAliases
    ) -> Any:
        def answered(*args: Any, **kwargs: Any) -> Any:
            return finished(view, view(*args, **kwargs))

        request, rest = _split(view, args)
        if self._runs_without(request):
            return declined.atomic(answered)(*args, **kwargs)
        try:
            held = self._prepare(view, request, rest, kwargs)
            held.__enter__()
        except (BadRequest, LockNotAcquired, LockUnavailable) as error:
            return self._refuse(view, args, kwargs, error)
        request.lock = held
        unconfirmed: list[BaseException] = []

        def confirmed(*args: Any, **kwargs: Any) -> Any:
            response = answered(*args, **kwargs)
            try:
                held.confirm()  # an error rolls the transaction back
            except LockUnavailable as error:
                unconfirmed.append(error)
                raise
            return response

        try:
            with ExitStack() as releasing:
                releasing.push(held)
                guarded = declined.atomic(confirmed)
                return (answered if guarded is confirmed else guarded)(*args, **kwargs)
        except LockUnavailable as error:
            if error not in unconfirmed:
                raise
            return self._refuse(view, args, kwargs, error)  # nothing was written

    async def _arun(self, view: View, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        async def answered() -> Any:
            return finished(view, await cast("Coroutine[Any, Any, Any]", view(*args, **kwargs)))

        request, rest = _split(view, args)
        if self._runs_without(request):
            return await answered()
        try:
            # The name may need the database (request.user), and under WSGI the body may yet arrive.
            if self._make_name.reads_request or not has_arrived(_djangos(request)):
                held = await sync_to_async(self._prepare)(view, request, rest, kwargs)
            else:
                held = self._prepare(view, request, rest, kwargs)
            await held.__aenter__()
        except (BadRequest, LockNotAcquired, LockUnavailable) as error:
            return await sync_to_async(self._refuse)(view, args, kwargs, error)
        request.lock = held
        async with AsyncExitStack() as releasing:
            releasing.push_async_exit(held)
            return await answered()

    def _runs_without(self, request: Any) -> bool:
        if self._methods is None or request.method in self._methods:
            return False
        if not getattr(request, "lock", None):  # an outer guard may have taken one
            request.lock = NoLock(request.method, self._methods)
        return True

    def _prepare(
        self, view: View, request: Any, rest: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ViewLock:
        """Receive the body and return a handle for the lock. Raises ``BadRequest``."""
        receive(_djangos(request))
        return self._new_lock(name=self._make_name(view, request, rest, kwargs))

    def _refuse(
        self, view: View, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
    ) -> Any:
        """Return the response for a request without its lock, or raise what Django answers."""
        request, rest = _split(view, args)
        unavailable = isinstance(error, LockUnavailable)
        level = logging.ERROR if unavailable else logging.INFO
        logger.log(level, "A view could not take its lock: %s", error)
        api = request if request is not _djangos(request) else _api_view(view, args)
        status, code, reason = self._status, "locked", _("This is busy right now.")
        if unavailable:
            status, code = UNAVAILABLE, "unavailable"
        if unavailable or getattr(error, "paused", False):
            reason = _("This can't be done at the moment.")
        wait = self._retry_after or (RETRY_AFTER if status == UNAVAILABLE else None)

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
    """Return the response for a lock that is held, or for a server that is unavailable."""
    advice = _("Please try again in a moment.")
    data = {"error": code, "detail": f"{reason} {advice}"}
    response: HttpResponse = JsonResponse(data, status=status)
    if request.get_preferred_type(["application/json", "text/html"]) == "text/html":
        context = {"status": status, "error": code, "reason": reason, "advice": advice}
        try:
            page = render_to_string(TEMPLATE, context, request)
            response = HttpResponse(page, status=status)
        except TemplateDoesNotExist:
            logger.warning("There is no template %s: set APP_DIRS, or write one.", TEMPLATE)
    patch_vary_headers(response, ["Accept", "Accept-Language"])
    if wait is not None:
        response["Retry-After"] = str(wait)
    return response


def _api_view(view: Any, args: tuple[Any, ...]) -> Any:
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


class NonAtomicAliases(set[str]):
    """The databases for which a view declines the transaction of ATOMIC_REQUESTS.

    Django finds every database in this set and so begins no transaction; the guard begins them once
    it holds the lock, except for those that the view or a decorator above really declined.
    """

    def __init__(self, view: View) -> None:
        given = django_private.non_atomic_databases(view)
        super().__init__(given)
        # An inner guard begins the transactions, after it has taken its own lock.
        self._left_to_view = isinstance(given, NonAtomicAliases)

    def __contains__(self, alias: object) -> bool:
        return True

    def wanted(self) -> list[str]:
        """Return the databases that the view wants a transaction of."""
        if self._left_to_view:
            return []
        really = set(self)
        return [
            alias
            for alias, settings in connections.settings.items()
            if settings["ATOMIC_REQUESTS"] and alias not in really
        ]

    def atomic(self, view: View) -> View:
        """Wrap the view in a transaction of each database that it does not decline."""
        for alias in self.wanted():
            view = transaction.atomic(using=alias)(view)
        return view


def _split(view: View, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the request and the arguments after it."""
    for position, request in enumerate(args[:2]):  # a method takes self first
        if isinstance(_djangos(request), HttpRequest):
            return request, args[position + 1 :]
    raise TypeError(f"{view!r} was called without a request, so it is not a view.")


def _djangos(request: Any) -> Any:
    """Return Django's request, which Django REST framework wraps in its own."""
    return getattr(request, "_request", request)


def _owner(view: View, args: tuple[Any, ...]) -> Any:
    """Return the object of a class-based view that a method, such as ``dispatch()``, belongs to.

    ``method_decorator`` passes a partial of the bound method, which other decorators may wrap.
    """
    owner = args[0] if args else None
    layer: Any = view
    while layer is not None:
        owner = getattr(getattr(layer, "func", None), "__self__", owner)
        layer = getattr(layer, "__wrapped__", None)
    return owner


class NoLock:
    """The ``request.lock`` of a request whose method takes none. It is false.

    To use it as a lock raises ``LockNotOwned``.
    """

    def __init__(self, method: str | None, methods: frozenset[str]) -> None:
        self._why = (
            f"This view takes no lock for {method}, only for its methods={sorted(methods)}. "
            f"Ask 'if request.lock:' first, or add {method!r} to methods."
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._why}>"

    def __bool__(self) -> Literal[False]:
        return False

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("_"):  # what Python looks for, as when it copies a request
            raise AttributeError(attribute)
        raise LockNotOwned(f"request.lock.{attribute}: {self._why}")

    def _refuse(self, *error: object) -> NoReturn:
        raise LockNotOwned(self._why)

    __enter__ = __exit__ = __aenter__ = __aexit__ = _refuse


class GuardedRequest(HttpRequest):
    """The request passed to a guarded view, for annotations."""

    lock: Lock | NoLock


class LockedRequest(HttpRequest):
    """The request of a view that only methods which take the lock can reach."""

    lock: Lock


def has_arrived(request: Any) -> bool:
    """Whether the body is here. Under ASGI, Django spools it to a file before it calls the view."""
    stream = django_private.body_stream(request)
    if stream is None or django_private.has_begun_reading(request) or _length(request) <= 0:
        return True
    return bool(hasattr(stream, "seekable") and stream.seekable())


def receive(request: Any) -> None:
    """Wait for the body of Django's request, and leave it unread for the view.

    Raises ``RequestDataTooBig`` for a body over DATA_UPLOAD_MAX_MEMORY_SIZE, as Django does, not
    counting uploaded files; and ``BadRequest`` when the client goes away.
    """
    length = _length(request)
    try:
        if has_arrived(request):
            # Django's CSRF middleware may have read a form, and ignores one that is cut off.
            stream = django_private.body_stream(request)
            received = django_private.bytes_read(stream, default=length)
        elif request.content_type == "multipart/form-data":
            received = _spool(request)
        else:
            received = len(request.body)
    except UnreadablePostError as error:
        raise BadRequest(f"The client went away: {error}") from error
    if received < length:
        raise BadRequest(f"Only {received} of {length} bytes of the body arrived.")


def _length(request: Any) -> int:
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0  # to Django as well


def _spool(request: Any) -> int:
    """Read the body into memory or a file, and return its size.

    It is not parsed yet: the view may set upload handlers of its own.
    """
    with ExitStack() as closing:
        spool: IO[bytes] = io.BytesIO()
        if _length(request) > settings.FILE_UPLOAD_MAX_MEMORY_SIZE:
            spool = tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)  # noqa: SIM115
        closing.enter_context(spool)
        shutil.copyfileobj(request, spool)
        size = spool.tell()
        spool.seek(0)
        django_private.replace_body_stream(request, spool)
        closing.callback(request.close)
        request.close = closing.pop_all().close
    return size


class NameMaker:
    """Turns a request and its URL's arguments into the name of a lock."""

    def __init__(self, source: Name, using: str) -> None:
        self.source, self.using = source, using
        self._roots: list[str] = []
        if isinstance(source, str):
            self._roots = list(dict.fromkeys(_roots(source)))
            arguments.check_template(source, "name")
            if not self._roots:
                check_name(source.format())
        elif not callable(source):
            raise TypeError(
                f"name={source!r} must be a template such as 'product:{{product_id}}', or a "
                f"callable that is given the request and the arguments of its URL."
            )
        self.reads_request = callable(source) or REQUEST in self._roots
        """Whether the name may depend on more than the URL's arguments."""

    def check(self, view: View) -> None:
        """Raise ``ValueError`` for a placeholder that matches no argument of the view."""
        handlers = _handlers(view)
        for handler in handlers:
            self._check_request(handler)
        known = [item for handler in handlers for item in _arguments(handler)]
        if not handlers or any(item.kind is item.VAR_KEYWORD for item in known):
            return  # the URL decides
        names = [REQUEST, *dict.fromkeys(item.name for item in known)]
        self._check_roots(names, "the view takes")

    def __call__(
        self, view: View, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        """Return the lock's name. Raises ``BadRequest`` if the client's data make none."""
        if callable(self.source):
            made = self.source(request, *args, **kwargs)
            if not isinstance(made, str):
                raise TypeError(f"The callable for a lock's name must return a str, not {made!r}.")
        else:
            values = {**kwargs, REQUEST: request}
            if not values.keys() >= set(self._roots):
                known = _arguments(view)
                defaults = {
                    each.name: each.default for each in known if each.default is not each.empty
                }
                unnamed = dict(zip((each.name for each in known), args, strict=False))
                values = {**defaults, **unnamed, **values}
            self._check_roots(values, "this URL has")
            try:
                made = self.source.format_map(values)
            except (LookupError, TypeError, ValueError) as error:  # e.g. a field that is missing
                raise BadRequest(f"No lock name for {self.source!r}: {error!r}") from error
        try:
            return check_name(locks._make_name(self.using, check_name(made)))
        except ValueError as error:  # e.g. control characters in the URL
            raise BadRequest(str(error)) from error

    def _check_request(self, view: View) -> None:
        """Raise ``TypeError`` for a function or method that takes no request."""
        if not inspect.isfunction(view):
            return
        known = inspect.signature(view, follow_wrapped=False).parameters.values()
        taken = [item.name for item in known if item.kind <= item.VAR_POSITIONAL]
        first = taken[taken[:1] == ["self"] :][:1]
        if not first or first[0] in {*self._roots} - {REQUEST}:
            raise TypeError(f"{view!r} is no view: it takes no request. Add it as first argument.")

    def _check_roots(self, known: Collection[str], where: str) -> None:
        for root in self._roots:
            if root not in known:
                raise ValueError(
                    f"The lock name {self.source!r} has a placeholder {root!r}, but {where} "
                    f"{', '.join(known)}."
                )


def _refuse_view(name: Any) -> None:
    """Raise ``TypeError`` if ``locked()`` was given a view in the place of a name.

    A function that makes names is called like a view, so only how it came here tells them apart.
    """
    if (
        isinstance(name, type)
        or hasattr(name, "view_class")
        or (callable(name) and (is_async(name) or is_generator(name) or _is_being_defined(name)))
    ):
        raise _no_name_and_view(name)


def _no_name_and_view(*given: Any) -> TypeError:
    return TypeError(
        f"@locked needs the name of the lock and then a view, and was given "
        f"{' and then '.join(map(repr, given))}. "
        f"Write @locked('product:{{product_id}}') in place of @locked."
    )


def _is_being_defined(function: View) -> bool:
    """Whether ``locked()`` decorates a function: its caller defines it and has not named it yet.

    What has its name may be another function of the same code, or the function that it wraps.
    """
    code = _code(function)
    caller = sys._getframe(3)
    if code is None or code.co_name == "<lambda>":
        return False
    named = _code(caller.f_locals.get(code.co_name)) is code
    return not named and any(item is code for item in caller.f_code.co_consts)


def _code(function: Any) -> Any:
    """Return the code of what a function wraps in the end; ``None`` if it has none."""
    return getattr(inspect.unwrap(function), "__code__", None)


def _roots(template: str) -> Iterator[str]:
    """Yield the first part of each placeholder: an argument, or the request."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"name={template!r} is not a valid template: {error}.") from None
    for literal, field, spec, _conversion in parsed:
        if literal:
            check_name(literal)
        if field is None:
            continue
        root = re.split(r"[.\[]", field, maxsplit=1)[0]
        if not root.isidentifier():
            raise ValueError(
                f"name={template!r} has a placeholder {{{field}}} without a name; name an "
                f"argument of the URL, such as {{product_id}}."
            )
        yield root
        yield from _roots(spec) if spec else ()


def _handlers(view: View) -> list[View]:
    """Return the functions that handle requests: of a class-based view, its methods."""
    kind = view if isinstance(view, type) else getattr(view, "view_class", None)
    if kind is None:
        return [view]
    methods = ("get", "post", "put", "patch", "delete")  # the others may be Django's own
    return [getattr(kind, method) for method in methods if hasattr(kind, method)]


def _arguments(view: View) -> list[inspect.Parameter]:
    target = view.func if isinstance(view, functools.partial) else view
    known = list(inspect.signature(target).parameters.values())
    return known[2 if known and known[0].name == "self" else 1 :]
