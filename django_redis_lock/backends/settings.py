"""Checks of what an entry of ``LOCKS`` says. Each raises ``InvalidLockBackend``."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
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
"""Seconds between two looks of a poller, where OPTIONS give no ``POLL_INTERVAL``."""
LONGEST_INTERVAL = 10.0
"""Seconds. Waiters keep their queue alive by looking, so they must not look too rarely."""
REPLICA_TIMEOUT = 1.0
"""Seconds that replicas may take, where OPTIONS give no ``REPLICA_TIMEOUT``."""

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
    """Return the seconds between two looks of a poller."""
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
