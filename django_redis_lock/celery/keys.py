"""The name of the lock for one call of a task, made of the call's arguments."""

from __future__ import annotations

import copy
import hashlib
import inspect
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from django_redis_lock.celery.arguments import as_json, normal

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

    Raises ``TypeError`` or ``ValueError`` at once for a key that can't fit the task's signature.
    """

    def __init__(
        self,
        key: Key,
        unique_on: UniqueOn,
        signature: inspect.Signature,
        as_models: AsModels | None = None,
    ) -> None:
        parameters = signature.parameters.values()
        kinds = {item.kind: item.name for item in parameters}
        self._signature = signature
        self._key = key
        self._as_models = as_models
        self._rest = kinds.get(inspect.Parameter.VAR_POSITIONAL, "")
        self._variadic = kinds.get(inspect.Parameter.VAR_KEYWORD, "")
        self._positional = [
            item.name
            for item in parameters
            if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)
        ]
        try:
            self._fields = list(_fields_of(key)) if isinstance(key, str) else []
        except ValueError as error:
            raise ValueError(f"key={key!r} is not a valid template: {error}") from None
        known = signature.parameters
        named = known if unique_on == ALL else unique_on
        self._unique_on = None if named is None else tuple(named)
        used = [*map(_root, self._fields), *(self._unique_on or ())]
        for name in used:
            if name not in known and not (self._variadic and name.isidentifier()):
                where = f"key={key!r}" if self._fields else f"unique_on={used!r}"
                raise ValueError(
                    f"{where} names {name!r}, which is not an argument of the task; "
                    f"it takes {', '.join(known) or 'none'}."
                )
        self._used = {name if name in signature.parameters else self._variadic for name in used}
        if callable(key) or (used and as_models is not None):
            self._used = set(signature.parameters)

    def __call__(self, task_name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the lock's name.

        Raises ``TypeError`` if the arguments don't fit the task, or if one of them has no stable
        representation.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = {name: normal(bound.arguments[name]) for name in self._used}
        if self._as_models is not None and self._used:
            given = self._as_models(normal(args), normal(kwargs))
            values.update(self._signature.bind(*given[0], **given[1]).arguments)
        if callable(self._key):
            return self._called(self._key, task_name, values, (len(args), sorted(kwargs)))
        if self._key is not None:
            return self._formatted(self._key, task_name, values) if self._fields else self._key
        if self._unique_on is not None:
            return self._joined(self._unique_on, task_name, values)
        return task_name

    def _called(
        self,
        key: Callable[..., str],
        task_name: str,
        values: dict[str, Any],
        call: tuple[int, list[str]],
    ) -> str:
        """Return what a callable makes of a call with so many positional and these other names."""
        args = [values[name] for name in self._positional[: call[0]]]
        others = values.get(self._variadic, {})
        kwargs = {name: others[name] if name in others else values[name] for name in call[1]}
        made = key(*args, *values.get(self._rest, ()), **kwargs)
        if not isinstance(made, str) or _ADDRESS.search(made):
            raise TypeError(
                f"The key of task {task_name} must be a str that is the same in every process, "
                f"not {made!r}."
            )
        return made

    def _formatted(self, template: str, task_name: str, values: dict[str, Any]) -> str:
        values = {**values, **values.get(self._variadic, {})}
        made = _FORMATTER.vformat(template, (), values)
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
                parts.append(f"{name}={as_json(value)}")
            except TypeError as error:
                raise _unstable(task_name, name, getattr(error, "value", value)) from None
        made = f"{task_name}:{','.join(parts)}"
        if len(made) <= MAX_KEY_LENGTH:
            return made
        return f"{task_name}:{hashlib.sha256(made.encode()).hexdigest()[:32]}"


class _Formatter(string.Formatter):
    """Formats what a field names in its normal form, such as a set in an attribute."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        value, first = super().get_field(field_name, args, kwargs)
        return normal(value), first


_FORMATTER = _Formatter()


def with_own_defaults(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature with copies of the defaults, which the function may change."""

    def copied(default: Any) -> Any:
        try:
            return copy.deepcopy(default)
        except Exception:  # of what can't be copied
            return default

    parameters = signature.parameters.values()
    return signature.replace(
        parameters=[item.replace(default=copied(item.default)) for item in parameters]
    )


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


def _fields_of(template: str) -> Iterator[str]:
    """Yield the fields of a template, and those in their format specifications."""
    for _, field, spec, _ in string.Formatter().parse(template):
        if field is not None:
            yield field
            yield from _fields_of(spec or "")


def _root(field: str) -> str:
    return re.split(r"[.\[]", field, maxsplit=1)[0]


def _unstable(task_name: str, argument: str, value: Any) -> TypeError:
    return TypeError(
        f"Argument {argument!r} of task {task_name} can't be part of a key: a "
        f"{type(value).__qualname__} is not written the same in every process: {value!r}. "
        f"Pass an id instead, or use key= with what tells calls apart."
    )
