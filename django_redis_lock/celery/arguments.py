"""One form of arguments, at both ends of a message.

A serializer changes arguments on their way: tuples become lists, an enum's member its value. Keys
are made of the form that all serializers leave as it is, so it does not matter whether they are
made of the caller's objects or of what a worker gets.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from django.db.models import Model
from kombu.utils.json import dumps, loads


class UnstableValueError(TypeError):
    """A value has no representation that is the same in every process."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


_KEPT = frozenset(
    {
        *(type(None), bool, int, float, str, bytes),
        *(datetime.date, datetime.timedelta, decimal.Decimal, uuid.UUID),
    }
)


def normal(value: Any) -> Any:
    """Return a value in the form that serializers leave as it is.

    Tuples and sets are lists, sets in a fixed order. Dicts have text as keys, in a fixed order. An
    enum's member is its value, and a time zone an offset. What JSON as Celery writes it takes is
    what it gives back. Other objects are themselves.
    """
    if type(value) in _KEPT:
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
    """Return the form of a value that JSON does not take."""
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


# One JSON text for each value. Values that a message can't tell apart have the same: tuples and
# lists, an enum's member and its value, a date or UUID and its text. 1, "1" and True differ.


def _plain(value: Any) -> Any:
    """Return a value that has no form in JSON as one that has."""
    for types, convert in _CONVERSIONS:
        if isinstance(value, types):
            return convert(value)
    dump = getattr(value, "model_dump", None)
    if not callable(dump):
        raise UnstableValueError(value)
    fields = normal(dump())  # of pydantic, whose JSON has sets in any order
    try:
        as_json(fields)
    except TypeError:
        return normal(dump(mode="json"))
    return fields


def _row(instance: Model) -> Any:
    if instance.pk is None:
        raise UnstableValueError(instance)
    return {instance._meta.label: normal(instance.pk)}


_CONVERSIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    ((datetime.date, datetime.time), lambda moment: moment.isoformat()),
    ((uuid.UUID, decimal.Decimal, datetime.timedelta), str),
    (bytes, lambda data: {"bytes": base64.b64encode(data).decode()}),
    (Model, _row),
)

as_json = json.JSONEncoder(separators=(",", ":"), sort_keys=True, default=_plain).encode
"""Return the text of a value in its normal form. Raises ``TypeError`` if it has none."""
