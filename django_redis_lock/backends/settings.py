"""What an entry of ``LOCKS`` says. Functions that read it raise ``InvalidLockBackend``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase, translate
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.support.arguments import LONGEST_LEASE, WAITING_SCHEMES
from django_redis_lock.transport.packing import Replicas

if TYPE_CHECKING:
    from django_redis_lock.backends.base import BaseLockBackend

KEYS = ("BACKEND", "LOCATION", "TIMEOUT", "BLOCKING_TIMEOUT", "KEY_PREFIX", "OPTIONS", "OPERATORS")
"""The keys that an entry may have."""
LONGEST_INTERVAL = 10.0  # seconds; a process that is not seen for four intervals is gone
_PREFIX = re.compile(r"[^\s\"\\]+")  # what needs no escaping in JSON
OTHER_PREFIX = "Give one of them another KEY_PREFIX, or a database of its own."
KEY_WORDS = (
    *("queue", "index", "fence", "audit", "grant", "seen", "server"),
    *("permits", "limits", "parked", "ticks", "waiters", "tokens", "inbox", "due"),
)
"""What follows the prefix and a hyphen in keys other than locks; a colon and more may follow."""
_KEY_END = "\0"
MOST_AUDIT_ENTRIES = 1_000_000
OTHER = "other"  # the group of a lock whose name matches no pattern of GROUPS
_TASK_LINK = re.compile(r"(?:https?://|/)(?:[^{}]|\{\{|\}\}|(?P<task_id>\{task_id\}))*")
"""A URL for ``str.format``, with no other placeholder than ``{task_id}``."""


def check_keys(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for unknown in sorted(str(key) for key in set(given) - set(known)):
        there_are = ", ".join(known) or "none"
        raise InvalidLockBackend(f"{where} has no setting {unknown!r}; there are {there_are}.")


def read_key_prefix(params: Mapping[str, Any], using: str) -> str:
    value = params.get("KEY_PREFIX", "lock")
    if not isinstance(value, str) or not value.isprintable() or not _PREFIX.fullmatch(value):
        raise InvalidLockBackend(
            f"LOCKS[{using!r}]['KEY_PREFIX'] is {value!r}; it must be a str of printable "
            f"characters without blanks, double quotes and backslashes, such as 'lock'."
        )
    return value


def read_options(
    params: Mapping[str, Any], known: Collection[str], using: str, kind: str
) -> dict[str, Any]:
    where, options = f"LOCKS[{using!r}]['OPTIONS']", params.get("OPTIONS") or {}
    if not isinstance(options, Mapping):
        raise InvalidLockBackend(f"{where} must be a dict, not {options!r}.")
    check_keys(options, known, f"{where} of a {kind}")
    return dict(options)


def read_wait(options: Mapping[str, Any], using: str) -> str:
    chosen = options.get("WAIT", WAITING_SCHEMES[0])
    for scheme in WAITING_SCHEMES:
        if chosen == scheme:
            return scheme  # not a subclass of str
    there_are = " or ".join(map(repr, WAITING_SCHEMES))
    text = f"LOCKS[{using!r}]['OPTIONS']['WAIT'] is {chosen!r}; it can be {there_are}."
    raise InvalidLockBackend(text)


def read_seconds(
    options: Mapping[str, Any],
    option: str,
    default: float,
    using: str,
    *,
    least: float = 0.001,
    most: float = LONGEST_LEASE,
) -> float:
    value = options.get(option, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise InvalidLockBackend(
            f"LOCKS[{using!r}]['OPTIONS'][{option!r}] is {value!r}; give seconds between {least:g} "
            f"and {most:.10g}, such as {default:g}."
        )
    return float(value)


def read_poll_interval(options: Mapping[str, Any], using: str, default: float = 0.25) -> float:
    return read_seconds(options, "POLL_INTERVAL", default, using, most=LONGEST_INTERVAL)


def read_replicas(options: Mapping[str, Any], using: str) -> Replicas | None:
    """Return how many replicas must have a lock, and how long they may take; ``None`` for none."""
    where = f"LOCKS[{using!r}]['OPTIONS']"
    number = options.get("REPLICAS", 0)
    if type(number) is not int or number < 0:
        raise InvalidLockBackend(
            f"{where}['REPLICAS'] is {number!r}; it must be how many replicas have to know of a "
            f"lock, an int from 0 up."
        )
    if "REPLICA_TIMEOUT" in options and not number:
        raise InvalidLockBackend(
            f"{where} has REPLICA_TIMEOUT without REPLICAS; add how many replicas to wait for, or "
            f"leave it out."
        )
    timeout = read_seconds(options, "REPLICA_TIMEOUT", 1.0, using)
    return Replicas(number, timeout) if number else None


def check_replicas(replicas: Replicas | None, arguments: dict[str, Any], using: str) -> None:
    """Raise ``InvalidLockBackend`` where replicas may take as long as an answer."""
    timeout = arguments.get("socket_timeout")
    if replicas is not None and timeout and timeout <= replicas.timeout:
        raise InvalidLockBackend(
            f"LOCKS[{using!r}]['OPTIONS']['REPLICA_TIMEOUT'] is {replicas.timeout:g} s, but a "
            f"connection is given up after {timeout:g} s; make it shorter than the connection's "
            f"socket_timeout."
        )


def collisions(one: BaseLockBackend, others: Iterable[BaseLockBackend]) -> Iterator[str]:
    """Yield a message for each entry with another prefix that can write a key of this one."""
    for other in others:  # those with the same prefix share their locks on purpose
        if one.key_prefix == other.key_prefix or not one.databases() & other.databases():
            continue
        shared = (
            max(mine, theirs, key=len).rstrip(_KEY_END)
            for mine in _key_beginnings(one)
            for theirs in _key_beginnings(other)
            if mine.startswith(theirs) or theirs.startswith(mine)
        )
        if key := next(shared, ""):
            yield (
                f"LOCKS[{one.alias!r}] and LOCKS[{other.alias!r}] can write the same keys: both "
                f"are in one database, and with the KEY_PREFIX {one.key_prefix!r} as with "
                f"{other.key_prefix!r} a key can begin with {key!r}."
            )


def _key_beginnings(backend: BaseLockBackend) -> Iterator[str]:
    """Yield what each key of a backend begins with, up to ``_KEY_END`` if it does not go on."""
    if backend.lock_keys:  # empty where keys begin with the name, and so can be any
        yield backend.lock_keys
    for word in KEY_WORDS:
        yield f"{backend.key_prefix}-{word}{_KEY_END}"
        yield f"{backend.key_prefix}-{word}:"


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
        "seconds, or a dict of seconds by patterns of names, such as {'product:*': 60}",
    ),
    "AUDIT_ENTRIES": (
        lambda value: type(value) is int and 1 <= value <= MOST_AUDIT_ENTRIES,
        f"an int from 1 to {MOST_AUDIT_ENTRIES}",
    ),
    "REASON_REQUIRED": (lambda value: isinstance(value, bool), "True or False"),
    "RELEASE_PERMISSION": (_is_permission, "the name of a permission: 'shop.release_locks'"),
    "TASK_LINKS": (
        _maps_text_to(_is_task_link),
        "a dict of titles and URLs with {task_id} and no other placeholder: {'A': '/a/{task_id}'}",
    ),
    "GROUPS": (
        _maps_text_to(_is_text),
        "a dict of groups by patterns of names, such as {'product:*': 'product'}",
    ),
}
