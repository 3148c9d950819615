"""The name of the lock that guards one request to a view."""

from __future__ import annotations

import functools
import inspect
import re
import string
import sys
from collections.abc import Callable, Iterator
from typing import Any

from django.core.exceptions import BadRequest

from django_redis_lock.support.arguments import check_name
from django_redis_lock.support.functions import is_async, is_generator

Name = str | Callable[..., str]

REQUEST = "request"
"""The name of the request in templates, whatever the view calls it."""


class NameMaker:
    """Turns a request and its URL's arguments into the name of a lock."""

    def __init__(self, source: Name) -> None:
        self.source = source
        self._roots: list[str] = []
        if isinstance(source, str):
            self._roots = list(dict.fromkeys(_roots(source)))
            if not self._roots:
                check_name(source.format())
        elif not callable(source):
            raise TypeError(
                f"name={source!r} must be a template such as 'product:{{product_id}}', or a "
                f"callable that is given the request and the arguments of its URL."
            )

    @property
    def reads_request(self) -> bool:
        """Whether the name may depend on more than the URL's arguments."""
        return callable(self.source) or REQUEST in self._roots

    def check(self, view: Callable[..., Any]) -> None:
        """Raise ``ValueError`` for a placeholder that matches no argument of the view."""
        handlers = _handlers(view)
        known = [item for handler in handlers for item in _arguments(handler)]
        if not handlers or any(item.kind is item.VAR_KEYWORD for item in known):
            return  # the URL decides
        names = [REQUEST, *dict.fromkeys(item.name for item in known)]
        for root in self._roots:
            if root not in names:
                raise self._unknown(root, names, "the view takes")

    def __call__(
        self, view: Callable[..., Any], request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        """Return the lock's name. Raises ``BadRequest`` if the client's data make none."""
        if callable(self.source):
            made = self.source(request, *args, **kwargs)
            if not isinstance(made, str):
                raise TypeError(f"The callable for a lock's name must return a str, not {made!r}.")
        else:
            values = self._values(view, request, args, kwargs) if self._roots else {}
            for root in self._roots:
                if root not in values:
                    raise self._unknown(root, list(values), "this URL has")
            try:
                made = self.source.format_map(values)
            except (LookupError, TypeError) as error:  # e.g. a field that the form lacks
                raise BadRequest(f"No lock name for {self.source!r}: {error!r}") from error
        try:
            return check_name(made)
        except ValueError as error:  # e.g. control characters in the URL
            raise BadRequest(str(error)) from error

    def _values(
        self, view: Callable[..., Any], request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        if all(root in kwargs or root == REQUEST for root in self._roots):
            return {**kwargs, REQUEST: request}
        known = _arguments(view)
        names = [item.name for item in known]
        defaults = {item.name: item.default for item in known if item.default is not item.empty}
        unnamed = dict(zip(names, args, strict=False))
        return {**defaults, **unnamed, **kwargs, REQUEST: request}

    def _unknown(self, root: str, known: list[str], where: str) -> ValueError:
        return ValueError(
            f"The lock name {self.source!r} has a placeholder {root!r}, but {where} "
            f"{', '.join(known)}."
        )


def refuse_view(name: Any) -> None:
    """Raise ``TypeError`` if ``locked()`` was given a view in the place of a name.

    A function that makes names is called like a view, so only how it came here tells them apart.
    """
    if (
        isinstance(name, type)
        or hasattr(name, "view_class")
        or (callable(name) and (is_async(name) or is_generator(name) or _is_being_defined(name)))
    ):
        raise no_name_for(name)


def no_name_for(view: Any) -> TypeError:
    """Return the error for ``@locked`` without the name of the lock."""
    example = "product:{product_id}"
    if inspect.isfunction(view):
        known = _arguments(view)
        if all(item.kind is item.POSITIONAL_OR_KEYWORD for item in known):
            example = ":".join([view.__name__, *(f"{{{item.name}}}" for item in known)])
    return TypeError(
        f"@locked needs the name of the lock, and was given the view {view!r}. "
        f"Write @locked({example!r}) in place of @locked."
    )


def _is_being_defined(function: Callable[..., Any]) -> bool:
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
    for literal, field, spec, _ in parsed:
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


def _handlers(view: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return the functions that handle requests: of a class-based view, its methods."""
    kind = view if isinstance(view, type) else getattr(view, "view_class", None)
    if kind is None:
        return [view]
    methods = ("get", "post", "put", "patch", "delete")  # the others may be Django's own
    return [getattr(kind, method) for method in methods if hasattr(kind, method)]


def _arguments(view: Callable[..., Any]) -> list[inspect.Parameter]:
    target = view.func if isinstance(view, functools.partial) else view
    known = list(inspect.signature(target).parameters.values())
    return known[2 if known and known[0].name == "self" else 1 :]
