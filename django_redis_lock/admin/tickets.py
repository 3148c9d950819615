"""What a page carries of each lock that it shows, so that only that holder can be hit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote, unquote

from django_redis_lock.models import HeldLock


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
    """Return the ticket of a lock that is held."""
    assert row.holder
    return Ticket(row.using, row.name, row.holder.token_id)


def read_tickets(texts: Iterable[str]) -> Iterator[Ticket]:
    """Yield the tickets that a form has sent back, each once; what is none is passed over."""
    for text in dict.fromkeys(texts):
        token_id, _, key = text.partition(":")
        lock = HeldLock.from_key(unquote(key))
        if lock and token_id:
            yield Ticket(lock.using, lock.name, token_id)
