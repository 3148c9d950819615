"""What an entry of ``LOCKS`` says. Functions that read it raise ``InvalidLockBackend``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.support.arguments import LONGEST_LEASE, WAITING_SCHEMES
from django_redis_lock.transport.packing import Replicas

KEYS = ("BACKEND", "LOCATION", "TIMEOUT", "BLOCKING_TIMEOUT", "KEY_PREFIX", "OPTIONS", "OPERATORS")
"""The keys that an entry may have."""
LONGEST_INTERVAL = 10.0  # seconds; a process that is not seen for four intervals is gone
_PREFIX = re.compile(r"[^\s\"\\]+")  # what needs no escaping in JSON


def check_keys(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for unknown in sorted(str(key) for key in set(given) - set(known)):
        there_are = ", ".join(known) or "none"
        raise InvalidLockBackend(f"{where} has no setting {unknown!r}. Settings: {there_are}.")


def read_key_prefix(params: Mapping[str, Any], using: str) -> str:
    value = params.get("KEY_PREFIX", "lock")
    if not isinstance(value, str) or not value.isprintable() or not _PREFIX.fullmatch(value):
        raise InvalidLockBackend(
            f"LOCKS[{using!r}]['KEY_PREFIX'] is {value!r}: it must be a str of printable "
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
    if chosen not in WAITING_SCHEMES:
        there_are = " or ".join(map(repr, WAITING_SCHEMES))
        text = f"LOCKS[{using!r}]['OPTIONS']['WAIT'] is {chosen!r}: use {there_are}."
        raise InvalidLockBackend(text)
    return WAITING_SCHEMES[WAITING_SCHEMES.index(chosen)]  # not a subclass of str


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
            f"LOCKS[{using!r}]['OPTIONS'][{option!r}] is {value!r}: it must be seconds from "
            f"{least:g} to {most:.10g}, such as {default:g}."
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
            f"{where}['REPLICAS'] is {number!r}: it must be the number of replicas that must have "
            f"a lock, an int of 0 or more."
        )
    if "REPLICA_TIMEOUT" in options and not number:
        raise InvalidLockBackend(
            f"{where} has REPLICA_TIMEOUT, which requires REPLICAS: add the number of replicas, "
            f"or remove REPLICA_TIMEOUT."
        )
    timeout = read_seconds(options, "REPLICA_TIMEOUT", 1.0, using)
    return Replicas(number, timeout) if number else None


def check_replicas(replicas: Replicas | None, arguments: dict[str, Any], using: str) -> None:
    """Raise ``InvalidLockBackend`` where replicas may take as long as an answer."""
    timeout = arguments.get("socket_timeout")
    if replicas is not None and timeout and timeout <= replicas.timeout:
        raise InvalidLockBackend(
            f"LOCKS[{using!r}]['OPTIONS']['REPLICA_TIMEOUT'] is {replicas.timeout:g} s, but must "
            f"be shorter than the connection's timeout, {timeout:g} s: reduce it, or raise "
            f"socket_timeout."
        )
