"""One text for each value of an argument, the same in every process and on both ends of a
message."""

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


class UnstableValueError(TypeError):
    """A value has no form that is the same in every process."""

    def __init__(self, value: Any) -> None:
        super().__init__(f"{value!r} has no form that is the same in every process")
        self.value = value


def canonical(value: Any) -> str:
    """Return the value as JSON, whatever it looks like in Python.

    What a message can't tell apart is the same: tuples and lists, an enum's member and its value, a
    date or UUID and its text. The order of a set's items and a dict's keys does not matter. The
    number 1, the text "1" and True are different. Raises ``UnstableValueError``.
    """
    return _written(_plain(value))


_written = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def _plain(value: Any) -> Any:
    if isinstance(value, _Plain) and not isinstance(value, enum.Enum):
        return value
    for types, convert in _FORMS:
        if isinstance(value, types):
            return convert(value)
    if callable(dump := getattr(value, "model_dump", None)):  # of pydantic, as Celery sends it
        return _plain(dump(mode="json"))
    raise UnstableValueError(value)


def _key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _row(instance: Model) -> Any:
    if instance.pk is None:
        raise UnstableValueError(instance)
    return {instance._meta.label: _plain(instance.pk)}


_Plain = (bool, int, float, str, type(None))  # a union takes several times as long to ask
_FORMS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (enum.Enum, lambda member: _plain(member.value)),
    ((datetime.date, datetime.time), lambda moment: moment.isoformat()),
    ((uuid.UUID, decimal.Decimal, datetime.timedelta), str),
    ((bytes, bytearray, memoryview), lambda data: {"bytes": base64.b64encode(data).decode()}),
    (Mapping, lambda items: {_key(key): _plain(item) for key, item in items.items()}),
    ((list, tuple), lambda items: [_plain(item) for item in items]),
    ((set, frozenset), lambda items: sorted(map(_plain, items), key=json.dumps)),
    (Model, _row),
)
