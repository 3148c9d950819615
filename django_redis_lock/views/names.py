"""The name of a view's lock, made from the request and the arguments of its URL."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

from django.core.exceptions import BadRequest

from django_redis_lock.handler import locks
from django_redis_lock.support.arguments import check_name, check_template
from django_redis_lock.support.django_private import View

Name = str | Callable[..., str]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]

REQUEST = "request"  # what templates call the request, whatever the view calls it


class NameMaker:
    def __init__(self, source: Name, using: str) -> None:
        self._source, self.using = source, using
        if not isinstance(source, str) and not callable(source):
            raise TypeError(
                f"name={source!r} must be a template such as 'product:{{product_id}}', or a "
                f"callable that is given the request and the arguments of its URL."
            )
        self._fields = check_template(source, "name") if isinstance(source, str) else []
        self.reads_request = callable(source) or REQUEST in self._fields
        """Whether the name may depend on more than the URL's arguments."""

    def check(self, view: View) -> None:
        """Raise ``ValueError`` for a placeholder that matches no argument of the view."""
        kind = view if isinstance(view, type) else getattr(view, "view_class", None)
        handlers = [view]
        if kind is not None:
            methods = ("get", "post", "put", "patch", "delete")  # the others may be Django's own
            handlers = [getattr(kind, method) for method in methods if hasattr(kind, method)]
        known = [item for handler in handlers for item in _arguments(handler)]
        if handlers and not any(item.kind is item.VAR_KEYWORD for item in known):
            names = dict.fromkeys(item.name for item in known)
            self._check_fields([REQUEST, *names], "the view takes")

    def __call__(self, view: View, request: Any, args: Args, kwargs: Kwargs) -> str:
        """Return the lock's name. Raises ``BadRequest`` if the client's data make none."""
        if callable(self._source):
            made = self._source(request, *args, **kwargs)
            if not isinstance(made, str):
                raise TypeError(f"The callable for a lock's name must return a str, not {made!r}.")
        else:
            values = {**kwargs, REQUEST: request}
            if not values.keys() >= set(self._fields):
                known = _arguments(view)
                values = {
                    **{each.name: each.default for each in known if each.default is not each.empty},
                    **dict(zip((each.name for each in known), args, strict=False)),
                    **values,
                }
            self._check_fields(values, "this URL has")
            try:
                made = self._source.format_map(values)
            except (LookupError, TypeError, ValueError) as error:  # e.g. a field that is missing
                raise BadRequest(f"No lock name for {self._source!r}: {error!r}") from error
        try:
            return check_name(locks.make_name(self.using, check_name(made)))
        except ValueError as error:  # e.g. control characters in the URL
            raise BadRequest(str(error)) from error

    def _check_fields(self, known: Collection[str], where: str) -> None:
        for field in self._fields:
            if field not in known:
                raise ValueError(
                    f"The lock name {self._source!r} has a placeholder {field!r}, but {where} "
                    f"{', '.join(known)}."
                )


def _arguments(view: View) -> list[inspect.Parameter]:
    """Return the parameters after the request."""
    target = view.func if isinstance(view, functools.partial) else view
    known = list(inspect.signature(target).parameters.values())
    return known[2 if known and known[0].name == "self" else 1 :]
