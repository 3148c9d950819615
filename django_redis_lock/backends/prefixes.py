"""Whether two entries of LOCKS with different prefixes can write the same key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django_redis_lock.backends.base import BaseLockBackend

HINT = "Give one of them another KEY_PREFIX, or a database of its own."
WORDS = ("queue", "index", "fence", "audit", "grant", "heard", "server", "claim")
"""What follows the prefix and a hyphen in all keys except those of the locks. Some go on with a
colon and more."""


def collisions(one: BaseLockBackend, others: Iterable[BaseLockBackend]) -> Iterator[str]:
    """Yield a message for each other entry that can write a key of this one.

    Entries with the same prefix share their locks on purpose.
    """
    for other in others:
        if one.key_prefix == other.key_prefix or not one.databases() & other.databases():
            continue
        key = _common(one, other)
        if key:
            yield (
                f"LOCKS[{one.alias!r}] and LOCKS[{other.alias!r}] can write the same keys: both "
                f"are in one database, and with the KEY_PREFIX {one.key_prefix!r} as with "
                f"{other.key_prefix!r} a key can begin with {key!r}."
            )


def _common(one: BaseLockBackend, other: BaseLockBackend) -> str:
    """Return what keys of both can begin with, or ``""``."""
    for mine, goes_on in _keys(one):
        for theirs, may_go_on in _keys(other):
            if (
                mine == theirs
                or (goes_on and theirs.startswith(mine))
                or (may_go_on and mine.startswith(theirs))
            ):
                return max(mine, theirs, key=len)
    return ""


def _keys(backend: BaseLockBackend) -> Iterator[tuple[str, bool]]:
    """Yield what each key of a backend begins with, and whether it goes on."""
    if backend.lock_keys:  # empty where keys begin with the name, and so can be any
        yield backend.lock_keys, True
    for word in WORDS:
        yield f"{backend.key_prefix}-{word}", False
        yield f"{backend.key_prefix}-{word}:", True
