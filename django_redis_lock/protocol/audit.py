"""The audit: which locks were taken from their holders, were freed, or were found lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django_redis_lock.protocol.lease import Lease
from django_redis_lock.protocol.records import Holder, load_record, moment, origin, token_id, who
from django_redis_lock.support.arguments import MAX_TEXT_LENGTH

PAGE = 50
"""How many entries of each part are looked at in one call, so that it holds up nobody: scripts read
about a hundred in a millisecond."""

FORCE_RELEASED: Final = "force_released"
FREED: Final = "freed"
LOST: Final = "lost"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One event of the audit. What can't be read of it is empty or ``None``."""

    id: str
    """The id of the entry; later ones have greater ids."""
    at: datetime | None
    """When it was written, by the server's clock."""
    event: str
    """``force_released``: somebody took the lock; ``freed``: a Celery worker did, for its holder
    was dead; ``lost``: its holder found it gone."""
    name: str
    """The lock's name, without the key prefix."""
    using: str
    """The alias of the backend in ``LOCKS``."""
    fence: int | None
    """The fencing number of the hold that ended."""
    token_id: str
    """The ``Holder.token_id`` of the hold that ended."""
    host: str | None
    """The name of the machine that the former holder runs on."""
    pid: int | None
    """The id of its process there."""
    thread: str | None
    """The name of the thread that acquired the lock."""
    task_id: str | None
    """The Celery task that held the lock, where a task did."""
    task_name: str | None
    """The name of that task."""
    by: str
    """Who took the lock, as given to ``force_release()``."""
    reason: str
    """Why, as given to ``force_release()``; why it was freed; or how the loss was found."""

    def __str__(self) -> str:
        return who(self) or "a foreign program"


Fields = Mapping[str, str]
"""The fields of an entry as they are written."""


def taken(event: str, holder: Holder, by: str, reason: str) -> Fields:
    """Return the entry for a lock that is taken from its holder, by force or to free it."""
    return {
        "event": event,
        "name": holder.name,
        "fence": "" if holder.fence is None else str(holder.fence),
        "token_id": holder.token_id,
        "by": by,
        "reason": reason,
        **_written({key: getattr(holder, key) for key in _ORIGIN}),
    }


def lost(lease: Lease, reason: str) -> Fields:
    """Return the entry for a lease that this process found lost."""
    return {
        "event": LOST,
        "name": lease.name,
        "fence": str(lease.fence),
        "token_id": token_id(lease.token.encode()),
        "by": "",
        "reason": reason[:MAX_TEXT_LENGTH],
        **_written(origin(load_record(lease.record.encode()))),
    }


def read_entry(entry_id: bytes, pairs: Sequence[bytes], *, using: str) -> AuditEntry:
    """Read an entry: its id and its fields, each followed by its value."""
    fields = {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in zip(pairs[0::2], pairs[1::2], strict=False)
    }
    milliseconds = entry_id.split(b"-")[0]
    known = milliseconds.isdigit() and len(milliseconds) < 17
    fence, pid = fields.get("fence", ""), fields.get("pid", "")
    text: dict[str, Any] = {
        key: fields.get(key, "") for key in ("event", "name", "token_id", "by", "reason")
    }
    where: dict[str, Any] = {key: fields.get(key) or None for key in _ORIGIN}
    where["pid"] = int(pid) if _is_number(pid) else None
    return AuditEntry(
        id=entry_id.decode(errors="replace"),
        at=moment(int(milliseconds) * 1000) if known else None,
        using=using,
        fence=int(fence) if _is_number(fence) else None,
        **text,
        **where,
    )


def newest(pages: Iterable[Sequence[Any]]) -> tuple[bytes, list[Any]]:
    """Join pages as ``history.lua`` answers them, of all the places that an audit is in.

    Returns the id before which to go on, empty where there is nothing more, and the entries, the
    newest first. What is older than a page reaches is left for the next one.
    """
    pages = list(pages)
    end = max((page[0] for page in pages if page[0]), key=_place, default=b"")
    # Of one millisecond are a release and the loss that came of it, which is the newer one.
    entries = [entry for page in reversed(pages) for entry in page[1:]]
    entries.sort(key=lambda entry: _place(entry[0]), reverse=True)
    return end, [entry for entry in entries if not end or _place(entry[0]) >= _place(end)]


def _place(entry_id: bytes) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split(b"-")))


_ORIGIN = ("host", "pid", "thread", "task_id", "task_name")


def _written(where: Mapping[str, Any]) -> Fields:
    return {key: str(value) for key, value in where.items() if value is not None}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 17
