"""The audit: which locks were released by force, or freed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django_redis_lock.protocol.records import (
    Holder,
    moment,
    origin_text,
)

FORCE_RELEASED: Final = "force_released"
FREED: Final = "freed"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One event in the audit. Fields that can't be read are empty or ``None``."""

    id: str
    """The id of the entry; ids rise with time."""
    at: datetime | None
    """When it was written, by the server's clock."""
    event: str
    """``force_released``: taken from its holder; ``freed``: released by a Celery worker because its
    holder was dead."""
    name: str
    """The lock's name, without the key prefix."""
    using: str
    """The alias of the backend in ``LOCKS``."""
    fence: int | None
    """The fence of the hold that ended."""
    token_id: str
    """The ``Holder.token_id`` of the hold that ended."""
    host: str | None
    """The host name of the former holder's machine."""
    pid: int | None
    """The former holder's process id."""
    thread: str | None
    """The name of the thread that acquired the lock."""
    task_id: str | None
    """The id of the Celery task that held the lock, if one did."""
    task_name: str | None
    """The name of that task."""
    by: str
    """The ``by`` given to ``force_release()``."""
    reason: str
    """The ``reason`` given to ``force_release()``, or why it was freed."""

    def __str__(self) -> str:
        return origin_text(self) or "another program"


Fields = Mapping[str, str]
"""An entry as it is written."""


def taken(event: str, holder: Holder, by: str, reason: str) -> Fields:
    """Return the entry for a lock that is released by force or freed."""
    return {
        "event": event,
        "name": holder.name,
        "fence": "" if holder.fence is None else str(holder.fence),
        "token_id": holder.token_id,
        "by": by,
        "reason": reason,
        **_written({key: getattr(holder, key) for key in _ORIGIN}),
    }


def read_entry(entry_id: bytes, pairs: Sequence[bytes], *, using: str) -> AuditEntry:
    """Read an entry from its id and its alternating fields and values."""
    fields = {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in zip(pairs[0::2], pairs[1::2], strict=False)
    }
    written_ms = entry_id.split(b"-")[0]
    known = written_ms.isdigit() and len(written_ms) < 17
    fence, pid = fields.get("fence", ""), fields.get("pid", "")
    text: dict[str, Any] = {
        key: fields.get(key, "") for key in ("event", "name", "token_id", "by", "reason")
    }
    where: dict[str, Any] = {key: fields.get(key) or None for key in _ORIGIN}
    where["pid"] = int(pid) if _is_number(pid) else None
    return AuditEntry(
        id=entry_id.decode(errors="replace"),
        at=moment(int(written_ms) * 1000) if known else None,
        using=using,
        fence=int(fence) if _is_number(fence) else None,
        **text,
        **where,
    )


def newest(pages: Iterable[Sequence[Any]]) -> tuple[bytes, list[Any]]:
    """Merge the pages of several audits, each as ``history.lua`` returns it.

    Returns the id before which the next page begins (empty after the last page), and the entries,
    newest first. Entries older than the end of any page are left for the next one.
    """
    pages = list(pages)
    end = max((page[0] for page in pages if page[0]), key=_parts, default=b"")
    entries = [entry for page in pages for entry in page[1:]]
    entries.sort(key=lambda entry: _parts(entry[0]), reverse=True)
    return end, [entry for entry in entries if not end or _parts(entry[0]) >= _parts(end)]


def _parts(entry_id: bytes) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split(b"-")))


_ORIGIN = ("host", "pid", "thread", "task_id", "task_name")


def _written(where: Mapping[str, Any]) -> Fields:
    return {key: str(value) for key, value in where.items() if value is not None}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 17
