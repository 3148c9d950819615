"""What ``OPERATORS`` in an entry of ``LOCKS`` says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase, translate
from functools import cached_property
from typing import Any

from django_redis_lock.backends.settings import check_keys
from django_redis_lock.exceptions import InvalidLockBackend

MOST_AUDIT_ENTRIES = 1_000_000
OTHER = "other"  # the group of a lock whose name matches no pattern of GROUPS
_TASK_LINK = re.compile(r"(?:https?://|/)(?:[^{}]|\{\{|\}\}|(?P<task_id>\{task_id\}))*")
"""A URL for ``str.format``, with no other placeholder than ``{task_id}``."""


@dataclass(frozen=True)
class Operators:
    """The operators' settings of one alias. Names are matched by shell patterns."""

    warn_after: Mapping[str, float] = field(default_factory=dict)  # seconds, by pattern
    audit_entries: int = 1000
    reason_required: bool = False
    release_permission: str | None = None  # to release locks of this alias; None: the general one
    task_links: Mapping[str, str] = field(default_factory=dict)  # URLs with {task_id}, by title
    groups: Mapping[str, str] = field(default_factory=dict)  # for metrics, by pattern

    def threshold(self, name: str) -> float | None:
        """Return after how many seconds a lock is marked, by the first pattern that matches."""
        after = self.warn_after.items()
        return next((seconds for pattern, seconds in after if fnmatchcase(name, pattern)), None)

    def group(self, name: str) -> str:
        """Return the group that a lock is counted in, by the first pattern that matches."""
        found = self._group_patterns.match(name)
        return OTHER if found is None else [*self.groups.values()][(found.lastindex or 0) - 1]

    @cached_property
    def _group_patterns(self) -> re.Pattern[str]:
        patterns = "|".join(f"({translate(pattern)})" for pattern in self.groups)
        return re.compile(patterns or r"(?!)")


def read_operators(value: Any, alias: str) -> Operators:
    where, value = f"LOCKS[{alias!r}]['OPERATORS']", {} if value is None else value
    if not isinstance(value, Mapping):
        raise InvalidLockBackend(f"{where} must be a dict, not {value!r}.")
    check_keys(value, _RULES, where)
    read: dict[str, Any] = {}
    for key, given in value.items():
        is_valid, what = _RULES[key]
        item = {"*": given} if key == "WARN_AFTER" and not isinstance(given, Mapping) else given
        if not is_valid(item):
            raise InvalidLockBackend(f"{where}[{key!r}] must be {what}, not {given!r}.")
        read[key.lower()] = dict(item) if isinstance(item, Mapping) else item
    return Operators(**read)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_seconds(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


def _is_permission(value: Any) -> bool:
    return value is None or (isinstance(value, str) and bool(re.fullmatch(r"[^.]+\..+", value)))


def _is_task_link(value: Any) -> bool:
    found = _TASK_LINK.fullmatch(value) if isinstance(value, str) else None
    return found is not None and found["task_id"] is not None


def _maps_text_to(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Mapping)
        and all(_is_text(key) and is_valid(item) for key, item in value.items())
    )


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "WARN_AFTER": (
        _maps_text_to(_is_seconds),
        "seconds, or a dict of name patterns and seconds, such as {'product:*': 60}",
    ),
    "AUDIT_ENTRIES": (
        lambda value: type(value) is int and 1 <= value <= MOST_AUDIT_ENTRIES,
        f"an int from 1 to {MOST_AUDIT_ENTRIES}",
    ),
    "REASON_REQUIRED": (lambda value: isinstance(value, bool), "True or False"),
    "RELEASE_PERMISSION": (_is_permission, "a permission, such as 'shop.release_locks'"),
    "TASK_LINKS": (
        _maps_text_to(_is_task_link),
        "a dict of titles and URLs with the placeholder {task_id}: {'A': '/a/{task_id}'}",
    ),
    "GROUPS": (
        _maps_text_to(_is_text),
        "a dict of name patterns and groups, such as {'product:*': 'product'}",
    ),
}
