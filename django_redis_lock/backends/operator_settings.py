"""``OPERATORS`` of an entry of ``LOCKS``: settings of the command and the admin page."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase, translate
from functools import cached_property
from typing import Any

from django_redis_lock.backends.settings import check_keys
from django_redis_lock.exceptions import InvalidLockBackend

AUDIT_ENTRIES = 1000
MOST_AUDIT_ENTRIES = 1_000_000
OTHER = "other"
"""The group of a lock whose name matches no pattern of ``GROUPS``."""

_TASK_ID = ("task_id", "", None)
"""The placeholder ``{task_id}`` as ``Formatter.parse`` gives it, without format or conversion."""
_NO_FIELD = (None, None, None)


@dataclass(frozen=True)
class Operators:
    """The operators' settings of one alias."""

    warn_after: Mapping[str, float] = field(default_factory=dict)
    """After how many seconds a held lock is marked, by shell patterns of names."""
    audit_entries: int = AUDIT_ENTRIES
    """How many entries the audit keeps."""
    reason_required: bool = False
    """Whether a forced release needs a reason."""
    release_permission: str | None = None
    """The permission to release locks of this alias, such as ``shop.release_locks``; ``None`` for
    the general one."""
    task_links: Mapping[str, str] = field(default_factory=dict)
    """Links from a Celery task, by title; ``{task_id}`` stands for the task's id."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Groups of locks for metrics, by shell patterns of names."""

    def threshold(self, name: str) -> float | None:
        """Return after how many seconds a lock is marked, ``None`` for never.

        The first pattern that matches the name counts.
        """
        for pattern, seconds in self.warn_after.items():
            if fnmatchcase(name, pattern):
                return seconds
        return None

    def group(self, name: str) -> str:
        """Return the group that a lock is counted in.

        The first pattern that matches the name counts. Locks that match none are in ``OTHER``, so
        that there are never more groups than the settings name, and one.
        """
        found = self._group_patterns.match(name)
        return OTHER if found is None else self._group_names[(found.lastindex or 0) - 1]

    @cached_property
    def _group_patterns(self) -> re.Pattern[str]:
        """All patterns as one, which takes a tenth of the time of one after another."""
        patterns = "|".join(f"({translate(pattern)})" for pattern in self.groups)
        return re.compile(patterns or r"(?!)")

    @cached_property
    def _group_names(self) -> list[str]:
        return list(self.groups.values())


def read_operators(value: Any, alias: str) -> Operators:
    """Return the settings of an alias. Raises ``InvalidLockBackend``."""
    where = f"LOCKS[{alias!r}]['OPERATORS']"
    if value is None:
        return Operators()
    if not isinstance(value, Mapping):
        raise InvalidLockBackend(f"{where} must be a dict, not {value!r}.")
    check_keys(value, _READERS, where)
    read: dict[str, Any] = {
        key.lower(): _READERS[key](item, f"{where}[{key!r}]") for key, item in value.items()
    }
    return Operators(**read)


def _warn_after(value: Any, where: str) -> dict[str, float]:
    patterns = value if isinstance(value, Mapping) else {"*": value}
    for pattern, seconds in patterns.items():
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not isinstance(pattern, str) or not is_number or not 0 < seconds < math.inf:
            raise InvalidLockBackend(
                f"{where} must be seconds, or a dict of seconds by patterns of names, such as "
                f"{{'product:*': 60}}; {pattern!r}: {seconds!r} is neither."
            )
    return dict(patterns)


def _audit_entries(value: Any, where: str) -> int:
    if type(value) is not int or not 1 <= value <= MOST_AUDIT_ENTRIES:
        raise InvalidLockBackend(
            f"{where} must be an int from 1 to {MOST_AUDIT_ENTRIES}, not {value!r}."
        )
    return value


def _yes_or_no(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidLockBackend(f"{where} must be True or False, not {value!r}.")
    return value


def _release_permission(value: Any, where: str) -> str | None:
    if value is None:
        return None
    app, _, codename = value.partition(".") if isinstance(value, str) else ("", "", "")
    if not app or not codename:
        raise InvalidLockBackend(
            f"{where} must name a permission, such as 'shop.release_locks', not {value!r}."
        )
    return str(value)


def _task_links(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidLockBackend(
            f"{where} must be a dict of titles and URLs, such as "
            f"{{'Flower': 'https://flower.example.com/task/{{task_id}}'}}, not {value!r}."
        )
    for title, url in value.items():
        if not isinstance(title, str) or not title:
            raise InvalidLockBackend(f"{where} has {title!r}, which is not a title.")
        if not isinstance(url, str) or not url.startswith(("http://", "https://", "/")):
            raise InvalidLockBackend(
                f"{where}[{title!r}] must be a URL that begins with http://, https:// or /, not "
                f"{url!r}."
            )
        try:
            fields = {tuple(found) for _, *found in string.Formatter().parse(url)}
        except ValueError:
            fields = set()
        if fields - {_NO_FIELD} != {_TASK_ID}:
            raise InvalidLockBackend(
                f"{where}[{title!r}] must have the placeholder {{task_id}} and no other, written "
                f"exactly so, unlike {url!r}."
            )
    return dict(value)


def _groups(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidLockBackend(
            f"{where} must be a dict of groups by patterns of names, such as "
            f"{{'product:*': 'product'}}, not {value!r}."
        )
    for pattern, group in value.items():
        if not all(isinstance(each, str) and each for each in (pattern, group)):
            raise InvalidLockBackend(
                f"{where} has {pattern!r}: {group!r}; a pattern of names and its group are both "
                f"str, such as {{'product:*': 'product'}}."
            )
    return dict(value)


_READERS = {
    "WARN_AFTER": _warn_after,
    "AUDIT_ENTRIES": _audit_entries,
    "REASON_REQUIRED": _yes_or_no,
    "RELEASE_PERMISSION": _release_permission,
    "TASK_LINKS": _task_links,
    "GROUPS": _groups,
}
