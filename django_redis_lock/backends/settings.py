"""Checks of what an entry of ``LOCKS`` says. Each raises ``InvalidLockBackend``."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.support.arguments import LONGEST_LEASE, check_timeout
from django_redis_lock.transport.packing import Replicas

SETTINGS = (
    "BACKEND",
    "LOCATION",
    "TIMEOUT",
    "BLOCKING_TIMEOUT",
    "KEY_PREFIX",
    "OPTIONS",
    "OPERATORS",
)
"""The keys that an entry may have."""
POLL_INTERVAL = 0.25
"""Seconds between two polls, where OPTIONS give no ``POLL_INTERVAL``."""
LONGEST_INTERVAL = 10.0
"""Seconds. Waiters keep their queue alive by polling, so they must not poll too rarely."""
REPLICA_TIMEOUT = 1.0
"""Seconds that replicas may take, where OPTIONS give no ``REPLICA_TIMEOUT``."""

OTHER_PREFIX = "Give one of them another KEY_PREFIX, or a database of its own."
KEY_WORDS = ("queue", "index", "fence", "audit", "grant", "heard", "server", "claim")
"""What follows the prefix and a hyphen in all keys except those of the locks. Some go on with a
colon and more."""
_KEY_END = "\0"
_PREFIX = re.compile(r"[^\s\"\\]+")
"""What needs no escaping in JSON: the record of a lock that was handed off contains the prefix."""


def check_keys(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Check that a dict has no unknown setting."""
    for unknown in sorted(str(key) for key in set(given) - set(known)):
        there_are = ", ".join(known) or "none"
        raise InvalidLockBackend(f"{where} has no setting {unknown!r}; there are {there_are}.")


def read_timeout(
    value: Any,
    where: str,
    setting: str = "TIMEOUT",
    check: Callable[[Any, str], float | None] = check_timeout,
) -> float | None:
    """Return a time in seconds, or ``None`` for one without end."""
    try:
        return check(value, setting)
    except (TypeError, ValueError) as error:
        raise InvalidLockBackend(f"{where}: {error}") from None


def read_key_prefix(value: Any, using: str) -> str:
    """Return the KEY_PREFIX."""
    if not isinstance(value, str) or not value.isprintable() or not _PREFIX.fullmatch(value):
        raise InvalidLockBackend(
            f"LOCKS[{using!r}]['KEY_PREFIX'] is {value!r}; it must be a str of printable "
            f"characters without blanks, double quotes and backslashes, such as 'lock'."
        )
    return value


def read_options(value: Any, known: Collection[str], using: str, kind: str) -> dict[str, Any]:
    """Return the OPTIONS, which may only have the keys that the backend knows."""
    where = f"LOCKS[{using!r}]['OPTIONS']"
    options = value or {}
    if not isinstance(options, Mapping):
        raise InvalidLockBackend(f"{where} must be a dict, not {options!r}.")
    check_keys(options, known, f"{where} of a {kind}")
    return dict(options)


def read_choice(
    options: Mapping[str, Any], option: str, choices: Collection[str], using: str
) -> str:
    """Return an option that is one of several texts; the first one is the default."""
    chosen = options.get(option, next(iter(choices)))
    if chosen not in choices:
        raise InvalidLockBackend(
            f"LOCKS[{using!r}]['OPTIONS'][{option!r}] is {chosen!r}; "
            f"it can be {' or '.join(map(repr, choices))}."
        )
    return next(choice for choice in choices if choice == chosen)  # not a subclass of str


def read_seconds(
    options: Mapping[str, Any],
    option: str,
    default: float,
    using: str,
    *,
    least: float = 0.001,
    most: float = LONGEST_LEASE,
) -> float:
    """Return an option that is a number of seconds."""
    value = options.get(option, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise InvalidLockBackend(
            f"LOCKS[{using!r}]['OPTIONS'][{option!r}] is {value!r}; give seconds between {least:g} "
            f"and {most:.10g}, such as {default:g}."
        )
    return float(value)


def read_poll_interval(
    options: Mapping[str, Any], using: str, default: float = POLL_INTERVAL
) -> float:
    """Return the seconds between two polls."""
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
    timeout = read_seconds(options, "REPLICA_TIMEOUT", REPLICA_TIMEOUT, using)
    return Replicas(number, timeout) if number else None


def collisions(one: Any, others: Iterable[Any]) -> Iterator[str]:
    """Yield a message for each other entry, of a backend, that can write a key of this one.

    Entries with the same prefix share their locks on purpose.
    """
    for other in others:
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


def _key_beginnings(backend: Any) -> Iterator[str]:
    """Yield what each key of a backend begins with, up to ``_KEY_END`` if it does not go on."""
    if backend.lock_keys:  # empty where keys begin with the name, and so can be any
        yield backend.lock_keys
    for word in KEY_WORDS:
        yield f"{backend.key_prefix}-{word}{_KEY_END}"
        yield f"{backend.key_prefix}-{word}:"
