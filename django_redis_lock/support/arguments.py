"""Checks of arguments: each raises ``TypeError`` or ``ValueError``, with the name and the value."""

from __future__ import annotations

import json
import math
import re
import reprlib
import string
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

LONGEST_LEASE = 100 * 365 * 86400  # seconds; scripts take 126 years for another program's data
MAX_NAME_LENGTH = 512
MAX_METADATA_BYTES = 1024  # of a holder's metadata, as the JSON stored with each lock and waiter
MAX_TEXT_LENGTH = 500  # characters of the ``by`` and of the ``reason`` of a forced release
MOST_AT_ONCE = 1_000_000  # the greatest limit of a semaphore, and the longest queue
WAITING_SCHEMES = ("queue", "blpop", "poll")  # by pub/sub, from a list, or by heartbeats
TOKEN_ID = re.compile("[0-9a-f]{16}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_PRINTF = re.compile(r"%(\(\w+\))?(0\d)?[sdri](?![^\W_])")
_NEVER_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


OnUnavailable = Literal["raise", "run"]  # what a caller does without a server: fail, or go on


class Default:
    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default()  # stands for an argument that was not given, where ``None`` is a value
Seconds = float | Default | None


def check_choice(argument: str, value: Any, choices: Collection[Any]) -> None:
    if value not in choices:
        known = " or ".join(", ".join(map(repr, choices)).rsplit(", ", 1))
        text = f"is unknown: use {known}"
        if choices is WAITING_SCHEMES:
            text = f"is not a notification mode: use {known}, or None for the alias's WAIT"
        raise ValueError(f"{argument}={value!r} {text}.")


def check_types(using: Any = "", **flags: Any) -> None:
    if not isinstance(using, str):
        raise TypeError(f"using={_shown(using)} must be an alias of LOCKS.")
    for argument, value in flags.items():
        if type(value) is not bool:
            raise TypeError(f"{argument}={_shown(value)} must be True or False.")


def check_timeout(value: Any, argument: str = "timeout") -> float | None:
    """Return a lease in seconds, at least a millisecond, or ``None`` for one with no expiry."""
    seconds = _seconds(value, argument, 0.001, "for a lock that never expires")
    if seconds == math.inf:
        raise ValueError(
            f"{argument}={_shown(value)} is longer than a hundred years: "
            f"pass None for a lock that never expires."
        )
    return seconds


def check_blocking(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    shown, advice = _shown(value), ""
    if isinstance(value, int | float):
        advice = f": to limit the wait to {shown} s, pass blocking_timeout={shown}"
    raise TypeError(f"blocking={shown} must be True or False{advice}.")


def check_wait(value: Any, argument: str = "blocking_timeout") -> float | None:
    """Return how long to wait in seconds, ``None`` for no limit."""
    seconds = _seconds(value, argument, 0, "to wait without limit")
    return None if seconds == math.inf else seconds


def check_renewal(
    timeout: Seconds, auto_renew: bool | None, max_hold: Any
) -> tuple[bool, float | None]:
    """Return whether to renew a lease of this ``timeout``, and for how many seconds at most."""
    renewed = isinstance(timeout, Default) if auto_renew is None else auto_renew
    check_types(auto_renew=renewed)
    if renewed and timeout is None:
        why = "a lock that never expires has no lease to renew"
        raise ValueError(f"auto_renew=True conflicts with timeout=None: {why}.")
    longest = _seconds(max_hold, "max_hold", 0.001, "for no limit")
    if longest is not None and not renewed:
        raise ValueError(
            f"max_hold={max_hold!r} conflicts with timeout={timeout!r}, a lease that is not "
            f"renewed: omit max_hold, or pass a timeout in seconds and auto_renew=True."
        )
    return renewed, None if longest == math.inf else longest


def _seconds(value: Any, argument: str, least: float, none_is: str) -> float | None:
    """Return ``None`` as it is, and more than a hundred years as infinity."""
    if value is None:
        return None
    if isinstance(value, bool):
        raise ValueError(f"{argument}={_shown(value)} is a bool: pass seconds as an int or float.")
    if not isinstance(value, int | float):
        raise TypeError(
            f"{argument} must be seconds as an int or float, "
            f"not {type(value).__name__}: {_shown(value)}."
        )
    if not value >= least:  # as NaN is not
        raise ValueError(
            f"{argument}={_shown(value)} is too small: pass {least:g} seconds or more, "
            f"or None {none_is}."
        )
    return math.inf if value > LONGEST_LEASE else float(value)


def _shown(value: Any) -> str:
    """Return a value as it was given, but no more of it than fits in a message."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no int of thousands of digits
        return "(a number of thousands of digits)"


def _check_str(what: str, value: Any, most: float = math.inf, advice: str = "") -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}: {value!r}.")
    if len(value) > most:
        raise ValueError(
            f"{what} has at most {most} characters; this one has {len(value)}: "
            f"{value[:40]!r}...{advice}"
        )


def check_name(name: str) -> str:
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= MAX_NAME_LENGTH):
        _check_str("A lock's name", name, MAX_NAME_LENGTH, " Use a digest of the long part.")
        if not name:
            raise ValueError("A lock's name must not be empty.")
        if found := _NEVER_IN_NAMES.search(name):
            raise ValueError(
                f"A lock's name must not contain control characters or lone surrogates; "
                f"{name!r} has {found[0]!r} at position {found.start()}."
            )
    return str.__str__(name)  # str() may write a member of an Enum in another way


def check_template(template: str, argument: str) -> list[str]:
    """Return the arguments a template of ``str.format`` names, in format specifications as well."""
    if found := _PRINTF.search(re.sub(r"\{.*?\}", "", template)):
        raise ValueError(
            f"{argument}={template!r} has {found[0]!r}, which is not replaced: put the name of an "
            f"argument in braces, such as '{{shop_id}}'."
        )
    try:
        fields = list(dict.fromkeys(_fields(template)))
        if not fields:
            check_name(template.format())
    except ValueError as error:
        raise ValueError(f"{argument}={template!r} is not a valid template: {error}") from None
    return fields


def _fields(template: str) -> Iterator[str]:
    for literal, field, spec, _conversion in string.Formatter().parse(template):
        if literal:
            check_name(literal)
        if field is None:
            continue
        argument = re.split(r"[.\[]", field, maxsplit=1)[0]
        if not argument.isidentifier():
            raise ValueError(f"{{{field}}} has no argument name: add one, such as {{product_id}}.")
        yield argument
        yield from _fields(spec or "")


def check_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of a holder's metadata."""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a dict of str, not {type(metadata).__name__}.")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(
                f"metadata must map str to str, but {key!r} is {value!r}. Convert it with str()."
            )
    size = len(to_json(dict(metadata)))
    if size > MAX_METADATA_BYTES:
        raise ValueError(
            f"metadata has {size} bytes as JSON; the maximum is {MAX_METADATA_BYTES}. It is stored "
            f"with each lock and waiter: store long values elsewhere, and their keys here."
        )
    return dict(metadata)


to_json = json.JSONEncoder(separators=(",", ":")).encode


def check_token_id(token_id: str) -> str:
    """Return a token id; ``"unknown"``, which matches no holder, for a text that can't be one."""
    _check_str("token_id", token_id)
    return token_id if TOKEN_ID.fullmatch(token_id) else "unknown"


def check_number(argument: str, value: Any, least: int, most: float = math.inf) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and least <= value <= most:
        return int(value)
    bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
    text = f"{argument}={_shown(value)} must be a whole number {bounds}."
    raise ValueError(text) if whole else TypeError(text)


def check_text(value: Any, argument: str) -> str:
    """Return the ``by`` or ``reason`` of a forced release, without leading and trailing blanks."""
    text = value.strip() if isinstance(value, str) else value
    _check_str(argument, text, MAX_TEXT_LENGTH)
    if _SURROGATE.search(text):
        raise ValueError(f"{argument} must not contain lone surrogates: {text!r}.")
    return text


class Sharing(NamedTuple):
    """With whom a caller shares a lock, and how many may wait for it."""

    shared: bool = False  # whether others may hold it at the same time
    limit: int | None = None  # how many may in all, for a semaphore
    max_waiters: int | None = None  # how many may wait at most


EXCLUSIVE = Sharing()  # not shared, and with any number of waiters


def check_sharing(sharing: Sharing) -> Sharing:
    check_types(shared=sharing.shared)
    for argument in ("limit", "max_waiters"):
        value = getattr(sharing, argument)
        if value is not None:
            check_number(argument, value, 0, MOST_AT_ONCE)
    return sharing
