"""Entries of ``LOCKS`` whose prefixes make the same keys in one database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django_redis_lock.backends.base import BaseLockBackend

OTHER_PREFIX = "Set another KEY_PREFIX for one of them, or another database."
KEY_WORDS = (
    *("queue", "index", "fence", "audit", "grant", "seen", "server"),
    *("permits", "limits", "parked", "ticks", "waiters", "tokens", "inbox", "due"),
)
"""What follows the prefix and a hyphen in keys other than locks; a colon and more may follow."""
_KEY_END = "\0"


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
                f"are in one database, and with KEY_PREFIX {one.key_prefix!r} and "
                f"{other.key_prefix!r} a key can begin with {key!r}."
            )


def _key_beginnings(backend: BaseLockBackend) -> Iterator[str]:
    """Yield what each key of a backend begins with, up to ``_KEY_END`` if it does not go on."""
    if backend.lock_keys:  # empty where keys begin with the name, and so can be any
        yield backend.lock_keys
    for word in KEY_WORDS:
        yield f"{backend.key_prefix}-{word}{_KEY_END}"
        yield f"{backend.key_prefix}-{word}:"
