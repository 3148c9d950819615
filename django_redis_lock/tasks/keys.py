"""The name of the lock for one call of a task, made of the call's arguments.

Serializers change arguments on their way. So keys are made of the form that all of them leave as it
is, which is the same for the caller's objects and for what a worker gets.
"""

from __future__ import annotations

import base64
import copy
import datetime
import decimal
import enum
import hashlib
import inspect
import json
import re
import string
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.db.models import Model

from django_redis_lock.support.arguments import check_template

try:
    from kombu.utils.json import dumps, loads
except ModuleNotFoundError:  # without Celery; arguments are what JSON leaves as it is, then
    from json import dumps, loads  # type: ignore[assignment]

Key = str | Callable[..., str] | None
UniqueOn = str | Iterable[str] | None
AsModels = Callable[[Sequence[Any], dict[str, Any]], tuple[Sequence[Any], dict[str, Any]]]

ALL = "all"
MAX_KEY_LENGTH = 250
"""Characters of a key made of arguments; a longer one is replaced by a digest."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class KeyMaker:
    """Turns the arguments of a call into the name of its lock.

    ``as_models`` returns the arguments of a call with those that the task takes as models.

    Raises ``TypeError`` or ``ValueError``, with the name of the ``option``, for a key that can't
    fit the task's signature.
    """

    def __init__(
        self,
        key: Key,
        unique_on: UniqueOn,
        signature: inspect.Signature,
        as_models: AsModels | None = None,
        option: str = "key",
    ) -> None:
        known = signature.parameters
        kinds = {item.kind: item.name for item in known.values()}
        own = [one.replace(default=_copied(one.default)) for one in known.values()]
        self._signature, self._as_models = signature.replace(parameters=own), as_models
        self._key, self._option = key, option
        self._variadic = kinds.get(inspect.Parameter.VAR_KEYWORD, "")
        self._fields: list[str] = []
        if isinstance(key, str):  # or a member of an Enum that is one
            self._fields = check_template(key, option)
            self._key = str.__str__(key) if self._fields else key.format()
        named = known if unique_on == ALL else unique_on
        self._unique_on = None if named is None else tuple(named)
        used = [*self._fields, *(self._unique_on or ())]
        for name in used:
            if name not in known and not (self._variadic and name.isidentifier()):
                where = f"{option}={key!r}" if self._fields else f"unique_on={used!r}"
                raise ValueError(
                    f"{where} names {name!r}, which is not an argument of the task. "
                    f"Its arguments: {', '.join(known) or 'none'}."
                )
        self._used = {name if name in known else self._variadic for name in used}

    def __call__(self, task_name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the lock's name. Raises ``TypeError`` for arguments that don't fit."""
        if callable(self._key):
            self._signature.bind(*args, **kwargs)
            made = self._called(self._key, args, kwargs)
            if not isinstance(made, str) or _ADDRESS.search(made):
                raise TypeError(
                    f"The {self._option} of task {task_name} must be a str that is the same in "
                    f"every process, not {made!r}."
                )
            return made
        values = self._values(self._used, args, kwargs)
        if self._key is not None:
            return self._formatted(task_name, values) if self._fields else self._key
        if self._unique_on is not None:
            return self._joined(self._unique_on, task_name, values)
        return task_name

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return all arguments of a call by name, with the defaults, in their normal form."""
        values = self._values(self._signature.parameters, args, kwargs)
        values.pop(self._variadic, None)
        return values

    def _values(self, names: Iterable[str], args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = {name: normal(bound.arguments[name]) for name in names}
        if self._as_models is not None and values:
            given = self._as_models(normal(args), normal(kwargs))
            values.update(self._signature.bind(*given[0], **given[1]).arguments)
        return {**values.get(self._variadic, {}), **values}

    def _called(self, make: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        args, kwargs = normal(args), normal(kwargs)
        if self._as_models is not None:
            given = self._as_models(args, kwargs)
            bound = self._signature.bind(*given[0], **given[1])
            # What was given by name has moved to its position.
            named = {**bound.arguments, **bound.kwargs}
            args, kwargs = bound.args[: len(args)], {name: named[name] for name in kwargs}
        return make(*args, **kwargs)

    def _formatted(self, task_name: str, values: dict[str, Any]) -> str:
        made = _Formatter().vformat(str(self._key), (), values)
        if _ADDRESS.search(made):
            unstable = (name for name in self._fields if _ADDRESS.search(str(values[name])))
            name = next(unstable, self._fields[0])
            raise self._unstable(task_name, name, values[name])
        return made

    def _joined(self, names: tuple[str, ...], task_name: str, values: dict[str, Any]) -> str:
        parts = []
        for name in names:
            value = values.get(name)
            try:
                parts.append(f"{name}={as_json(value)}")
            except UnstableValueError as error:
                raise self._unstable(task_name, name, error.args[0]) from None
            except TypeError:
                raise self._unstable(task_name, name, value) from None
        made = f"{task_name}:{','.join(parts)}"
        if len(made) <= MAX_KEY_LENGTH:
            return made
        return f"{task_name}:{hashlib.sha256(made.encode()).hexdigest()[:32]}"

    def _unstable(self, task_name: str, argument: str, value: Any) -> TypeError:
        return TypeError(
            f"Argument {argument!r} of task {task_name} can't be part of its {self._option}: a "
            f"{type(value).__qualname__} has no text that is the same in every process: {value!r}. "
            f"Pass an id instead, or set {self._option}= to what distinguishes calls."
        )


class _Formatter(string.Formatter):
    """Formats what a field names in its normal form, such as a set in an attribute."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        value, first = super().get_field(field_name, args, kwargs)
        return normal(value), first


def _copied(default: Any) -> Any:
    try:
        return copy.deepcopy(default)  # which the function may change
    except Exception:  # of what can't be copied
        return default


def check_key(key: Key, unique_on: UniqueOn, option: str = "key") -> None:
    """Check what can be checked before the task is known. Raises ``TypeError``, ``ValueError``."""
    if key is not None and not isinstance(key, str) and not callable(key):
        raise TypeError(
            f"{option}={key!r} must be a template such as 'import:{{shop_id}}', or a callable "
            f"that takes the task's arguments."
        )
    if unique_on is None:
        return
    if key is not None:
        raise ValueError("key conflicts with unique_on: pass only one of them.")
    if isinstance(unique_on, str):
        if unique_on != ALL:
            raise ValueError(
                f"unique_on={unique_on!r} must be a list of arguments, such as [{unique_on!r}], "
                f"or 'all'."
            )
    elif not (isinstance(unique_on, Iterable) and all(isinstance(name, str) for name in unique_on)):
        raise TypeError(f"unique_on={unique_on!r} must be a list of argument names.")


def refuse_by_position(given: Sequence[Any]) -> None:
    """Raise ``TypeError`` for a text, a list or several values that were given without a name."""
    if len(given) > 1 or issubclass(type(next(iter(given), None)), str | list | tuple | set | dict):
        raise TypeError(
            f"single_instance_task got {', '.join(map(repr, given))} by position: pass each "
            f"option by name. The name of the lock is key=."
        )


class UnstableValueError(TypeError):
    """Its argument, a value, has no representation that is the same in every process."""


_SAME_EVERYWHERE = {
    *(type(None), bool, int, float, str, bytes),
    *(datetime.date, datetime.timedelta, decimal.Decimal, uuid.UUID),
}


def normal(value: Any) -> Any:
    """Return a value in the form that serializers leave as it is.

    Tuples and sets are lists, sets in a fixed order. Dicts have text as keys, in a fixed order. An
    enum's member is its value, and a time zone an offset. What JSON as Celery writes it takes is
    what it gives back. Other objects are themselves.
    """
    if type(value) in _SAME_EVERYWHERE:
        return value
    if isinstance(value, dict):
        return _normal_dict(value)
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    try:
        read = loads(dumps(value))
    except Exception:  # of any type's own way to be written
        return _unwritten(value)
    return normal(read) if isinstance(read, dict | list) else read


def _unwritten(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return normal(value.value)
    if isinstance(value, set | frozenset):
        return sorted(map(normal, value), key=_rank)
    if isinstance(value, Mapping):
        return _normal_dict(value)
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _normal_dict(items: Mapping[Any, Any]) -> dict[Any, Any]:
    found = {_normal_key(key): normal(item) for key, item in items.items()}
    return dict(sorted(found.items(), key=lambda item: str(item[0])))


def _normal_key(key: Any) -> Any:
    if type(key) is str:
        return key
    key = normal(key)
    try:
        text = as_json(key)
    except UnstableValueError:
        return key
    return json.loads(text) if text.startswith('"') else text


def _rank(value: Any) -> str:
    try:
        return as_json(value)
    except TypeError:
        return repr(value)


def _plain(value: Any) -> Any:
    match value:
        case datetime.date() | datetime.time():
            return value.isoformat()
        case uuid.UUID() | decimal.Decimal() | datetime.timedelta():
            return str(value)
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
        case Model():
            if value.pk is None:
                raise UnstableValueError(value)
            return {value._meta.label: normal(value.pk)}
    dump = getattr(value, "model_dump", None)
    if not callable(dump):
        raise UnstableValueError(value)
    fields = normal(dump())  # of pydantic, whose JSON has sets in any order
    try:
        as_json(fields)
    except TypeError:
        return normal(dump(mode="json"))
    return fields


as_json = json.JSONEncoder(separators=(",", ":"), sort_keys=True, default=_plain).encode
"""Return the JSON text of a value in its normal form. Raises ``TypeError`` if it has none.

Values that a message can't distinguish have the same: tuples and lists, a member of an enum and its
value, a date or UUID and its text. 1, "1" and True differ.
"""
