"""The name of the lock for one call of a task, made of the call's arguments."""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import hashlib
import inspect
import json
import re
import string
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.db.models import Model

Key = str | Callable[..., str] | None
UniqueOn = str | Iterable[str] | None

ALL = "all"
MAX_KEY_LENGTH = 250
"""Characters of a key made of arguments; a longer one is replaced by a digest."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class KeyMaker:
    """Turns the arguments of a call into the name of its lock.

    Raises ``TypeError`` or ``ValueError`` at once for a key that can't fit the task's signature.
    """

    def __init__(self, key: Key, unique_on: UniqueOn, signature: inspect.Signature) -> None:
        parameters = signature.parameters.values()
        self._signature = signature
        self._key = key
        self._variadic = next(
            (item.name for item in parameters if item.kind is item.VAR_KEYWORD), ""
        )
        self._simple = all(item.kind is item.POSITIONAL_OR_KEYWORD for item in parameters)
        self._defaults = {
            item.name: item.default for item in parameters if item.default is not item.empty
        }
        self._fields = self._check_template(key) if isinstance(key, str) else []
        self._unique_on = None if unique_on is None else self._check_names(unique_on)

    def _check_template(self, template: str) -> list[str]:
        try:
            parsed = [field for _, field, _, _ in string.Formatter().parse(template)]
        except ValueError as error:
            raise ValueError(f"key={template!r} is not a valid template: {error}") from None
        fields = [field for field in parsed if field is not None]
        for field in fields:
            self._check_name(_root(field), f"key={template!r}")
        return fields

    def _check_names(self, names: str | Iterable[str]) -> tuple[str, ...]:
        if names == ALL:
            return tuple(self._signature.parameters)
        checked = tuple(names)
        for name in checked:
            self._check_name(name, f"unique_on={list(checked)!r}")
        return checked

    def _check_name(self, name: str, where: str) -> None:
        known = self._signature.parameters
        if name not in known and not (self._variadic and name.isidentifier()):
            raise ValueError(
                f"{where} names {name!r}, which is not an argument of the task; "
                f"it takes {', '.join(known) or 'none'}."
            )

    def __call__(self, task_name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the lock's name.

        Raises ``TypeError`` if the arguments don't fit the task, or if one of them has no stable
        representation.
        """
        values = self._arguments(args, kwargs)
        if callable(self._key):
            made = self._key(*args, **kwargs)
            if not isinstance(made, str):
                raise TypeError(f"The key of task {task_name} must be a str, not {made!r}.")
            return made
        if self._key is not None:
            return self._formatted(self._key, task_name, values) if self._fields else self._key
        if self._unique_on is not None:
            return self._joined(self._unique_on, task_name, values)
        return task_name

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, defaults included. Raises ``TypeError`` for a misfit.

        ``inspect`` takes three times as long, so it is only used for signatures that are not
        simple, and for its error messages.
        """
        known = self._signature.parameters
        if self._simple and len(args) <= len(known):
            given = dict(zip(known, args, strict=False))
            if not kwargs or given.keys().isdisjoint(kwargs):
                values = {**self._defaults, **given, **kwargs}
                if values.keys() == known.keys():
                    return values
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def _formatted(self, template: str, task_name: str, values: dict[str, Any]) -> str:
        values = {**values, **values.get(self._variadic, {})}
        made = template.format(**values)
        if _ADDRESS.search(made):
            names = [_root(field) for field in self._fields]
            unstable = (name for name in names if _ADDRESS.search(str(values[name])))
            name = next(unstable, names[0])
            raise _unstable(task_name, name, values[name])
        return made

    def _joined(self, names: tuple[str, ...], task_name: str, values: dict[str, Any]) -> str:
        parts = []
        for name in names:
            value = values[name] if name in values else values[self._variadic].get(name)
            try:
                parts.append(f"{name}={_as_json(_plain(value))}")
            except UnstableValueError as error:
                raise _unstable(task_name, name, error.value) from None
        made = f"{task_name}:{','.join(parts)}"
        if len(made) <= MAX_KEY_LENGTH:
            return made
        return f"{task_name}:{hashlib.sha256(made.encode()).hexdigest()[:32]}"


def check_key(key: Key, unique_on: UniqueOn) -> None:
    """Check what can be checked before the task is known. Raises ``TypeError``, ``ValueError``."""
    if key is not None and not isinstance(key, str) and not callable(key):
        raise TypeError(
            f"key={key!r} must be a template such as 'import:{{shop_id}}', or a callable "
            f"that takes the task's arguments."
        )
    if unique_on is None:
        return
    if key is not None:
        raise ValueError("key and unique_on exclude each other; leave one of them out.")
    if isinstance(unique_on, str):
        if unique_on != ALL:
            raise ValueError(
                f"unique_on={unique_on!r} must be a list of arguments, such as [{unique_on!r}], "
                f"or 'all'."
            )
    elif not (isinstance(unique_on, Iterable) and all(isinstance(name, str) for name in unique_on)):
        raise TypeError(f"unique_on={unique_on!r} must be a list of argument names.")


def _root(field: str) -> str:
    return re.split(r"[.\[]", field, maxsplit=1)[0]


def _unstable(task_name: str, argument: str, value: Any) -> TypeError:
    return TypeError(
        f"Argument {argument!r} of task {task_name} can't be part of a key: a "
        f"{type(value).__qualname__} is not written the same in every process: {value!r}. "
        f"Pass an id instead, or use key= with what tells calls apart."
    )


# One JSON text for each value, the same in every process and on both ends of a message. Values
# that a message can't tell apart have the same text: tuples and lists, an enum's member and its
# value, a date or UUID and its text. The number 1, the text "1" and True differ.


class UnstableValueError(TypeError):
    """A value has no representation that is the same in every process."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


_as_json = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def _plain(value: Any) -> Any:
    if isinstance(value, _Plain) and not isinstance(value, enum.Enum):
        return value
    for types, convert in _CONVERSIONS:
        if isinstance(value, types):
            return convert(value)
    if callable(dump := getattr(value, "model_dump", None)):  # of pydantic, as Celery sends it
        return _plain(dump(mode="json"))
    raise UnstableValueError(value)


def _plain_key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _row(instance: Model) -> Any:
    if instance.pk is None:
        raise UnstableValueError(instance)
    return {instance._meta.label: _plain(instance.pk)}


_Plain = (bool, int, float, str, type(None))  # isinstance() with a union is several times slower
_CONVERSIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (enum.Enum, lambda member: _plain(member.value)),
    ((datetime.date, datetime.time), lambda moment: moment.isoformat()),
    ((uuid.UUID, decimal.Decimal, datetime.timedelta), str),
    ((bytes, bytearray, memoryview), lambda data: {"bytes": base64.b64encode(data).decode()}),
    (Mapping, lambda items: {_plain_key(key): _plain(item) for key, item in items.items()}),
    ((list, tuple), lambda items: [_plain(item) for item in items]),
    ((set, frozenset), lambda items: sorted(map(_plain, items), key=json.dumps)),
    (Model, _row),
)
