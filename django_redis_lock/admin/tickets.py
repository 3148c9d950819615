"""Identifies a lock and the holder that a page showed, so that only that hold is released."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from django.core.exceptions import BadRequest

from django_redis_lock.admin.reading import aliases
from django_redis_lock.models import HeldLock
from django_redis_lock.support.arguments import TOKEN_ID, check_name


@dataclass(frozen=True, slots=True)
class Ticket:
    """A lock and the holder that was shown with it."""

    using: str
    name: str
    token_id: str

    def __str__(self) -> str:
        key: str = HeldLock.of(self.using, self.name).pk
        return f"{self.token_id}:{quote(key)}"


def ticket_of(row: HeldLock) -> Ticket:
    assert row.holder
    return Ticket(row.using, row.name, row.holder.token_id)


def read_tickets(texts: Iterable[str]) -> list[Ticket]:
    """Return the tickets of a form, without duplicates.

    Raises ``BadRequest`` for a text that no page sent.
    """
    tickets = []
    for text in dict.fromkeys(texts):
        token_id, _colon, key = text.partition(":")
        lock = lock_of(unquote(key))
        if lock is None or not TOKEN_ID.fullmatch(token_id):
            raise BadRequest("A ticked lock is none that this page has shown.")
        tickets.append(Ticket(lock.using, lock.name, token_id))
    return tickets


def lock_of(key: str) -> HeldLock | None:
    """Return the object with a key, held or not, ``None`` if LOCKS can have no such lock."""
    lock = HeldLock.from_key(key)
    if lock is None or lock.using not in aliases():
        return None
    try:
        check_name(lock.name)
    except ValueError:
        return None
    return lock
