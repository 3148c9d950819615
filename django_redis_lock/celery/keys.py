"""The name of the lock that guards one call of a task."""

from __future__ import annotations

import hashlib
import inspect
import re
import string
from collections.abc import Callable, Iterable
from typing import Any

from django_redis_lock.celery.canonical import UnstableValueError, canonical

Key = str | Callable[..., str] | None
UniqueOn = str | Iterable[str] | None

ALL = "all"
LONGEST = 250
"""Characters of a key made of arguments, beyond which a digest stands for them."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class KeyMaker:
    """Turns the arguments of a call into the name of its lock.

    Raises ``TypeError`` or ``ValueError`` at once for a key that can't fit the task's signature.
    """

    def __init__(self, key: Key, unique_on: UniqueOn, signature: inspect.Signature) -> None:
        self._signature = signature
        self._key = key
        self._unique_on = unique_on
        self._fields: list[str] = []
        self._variadic = next(
            (item.name for item in signature.parameters.values() if item.kind is item.VAR_KEYWORD),
            None,
        )
        parameters = signature.parameters.values()
        self._plain = all(item.kind is item.POSITIONAL_OR_KEYWORD for item in parameters)
        self._defaults = {
            item.name: item.default for item in parameters if item.default is not item.empty
        }
        if isinstance(key, str):
            self._fields = self._check_template(key)
        elif unique_on is not None:
            self._unique_on = self._check_names(unique_on)

    def _check_template(self, template: str) -> list[str]:
        try:
            parsed = [field for _, field, _, _ in string.Formatter().parse(template)]
        except ValueError as error:
            raise ValueError(f"key={template!r} is no template: {error}") from None
        fields = [field for field in parsed if field is not None]
        for field in fields:
            self._check_name(_root(field), f"key={template!r}")
        return fields

    def _check_names(self, names: UniqueOn) -> tuple[str, ...]:
        if names == ALL:
            return tuple(self._signature.parameters)
        checked = tuple(names or ())
        for name in checked:
            self._check_name(name, f"unique_on={list(checked)!r}")
        return checked

    def _check_name(self, name: str, where: str) -> None:
        known = self._signature.parameters
        if name not in known and not (self._variadic and name.isidentifier()):
            raise ValueError(
                f"{where} names {name!r}, which is no argument of the task; "
                f"it takes {', '.join(known) or 'none'}."
            )

    def __call__(self, task_name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the lock's name.

        Raises ``TypeError`` when the arguments don't fit the task, or one of them has no form that
        is the same in every process.
        """
        values = self._arguments(args, kwargs)
        if callable(self._key):
            made = self._key(*args, **kwargs)
            if not isinstance(made, str):
                raise TypeError(f"The key of task {task_name} must be a str, not {made!r}.")
            return made
        if self._key is not None and not self._fields:
            return self._key
        if self._key is None and self._unique_on is None:
            return task_name
        if self._key is not None:
            return self._formatted(task_name, values)
        return self._joined(task_name, values)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, defaults included. Raises ``TypeError`` for a misfit.

        ``inspect`` takes three times as long; it is left what is not plain, and to say what is
        wrong.
        """
        known = self._signature.parameters
        if self._plain and len(args) <= len(known):
            given = dict(zip(known, args, strict=False))
            if not kwargs or given.keys().isdisjoint(kwargs):
                values = {**self._defaults, **given, **kwargs}
                if values.keys() == known.keys():
                    return values
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def _formatted(self, task_name: str, values: dict[str, Any]) -> str:
        assert isinstance(self._key, str)
        values = {**values, **values.get(self._variadic or "", {})}
        made = self._key.format(**values)
        if _ADDRESS.search(made):
            name = next(
                (name for name in map(_root, self._fields) if _ADDRESS.search(str(values[name]))),
                self._fields[0],
            )
            raise _unstable(task_name, name, values[name])
        return made

    def _joined(self, task_name: str, values: dict[str, Any]) -> str:
        assert self._unique_on is not None
        parts = []
        for name in self._unique_on:
            value = values[name] if name in values else values[self._variadic or ""].get(name)
            try:
                parts.append(f"{name}={canonical(value)}")
            except UnstableValueError as error:
                raise _unstable(task_name, name, error.value) from None
        made = f"{task_name}:{','.join(parts)}"
        if len(made) <= LONGEST:
            return made
        return f"{task_name}:{hashlib.sha256(made.encode()).hexdigest()[:32]}"


def check_key(key: Key, unique_on: UniqueOn) -> None:
    """Check what can be checked before the task is known. Raises ``TypeError``, ``ValueError``."""
    if key is not None and not isinstance(key, str) and not callable(key):
        raise TypeError(
            f"key={key!r} must be a template such as 'import:{{shop_id}}' or a callable "
            f"that is given the task's arguments."
        )
    if unique_on is None:
        return
    if key is not None:
        raise ValueError("key and unique_on say the same in two ways; leave one of them out.")
    if isinstance(unique_on, str):
        if unique_on != ALL:
            raise ValueError(
                f"unique_on={unique_on!r} must be a list of arguments, such as [{unique_on!r}], "
                f"or 'all'."
            )
    elif not (isinstance(unique_on, Iterable) and all(isinstance(name, str) for name in unique_on)):
        raise TypeError(f"unique_on={unique_on!r} must be a list of the names of arguments.")


def _root(field: str) -> str:
    return re.split(r"[.\[]", field, maxsplit=1)[0]


def _unstable(task_name: str, argument: str, value: Any) -> TypeError:
    return TypeError(
        f"Argument {argument!r} of task {task_name} can't be part of a key, for a "
        f"{type(value).__qualname__} has no form that is the same in every process: {value!r}. "
        f"Pass an id instead, or use key= with what tells calls apart."
    )
