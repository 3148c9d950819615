"""What operators do to locks, and what the audit tells of it."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING

from django_redis_lock import signals
from django_redis_lock.protocol.audit import (
    FORCE_RELEASED,
    AuditEntry,
    newest,
    read_entry,
    taken,
)
from django_redis_lock.protocol.calls import Emit, ForceRelease, ReadHistory
from django_redis_lock.protocol.conversation import ask
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.arguments import check_limit, check_name, check_text

if TYPE_CHECKING:
    from django_redis_lock.backends.operations import LockOperations
    from django_redis_lock.protocol.drivers import Steps

logger = logging.getLogger("django_redis_lock")


def read_history(backend: LockOperations, name: str | None, limit: int) -> Steps[list[AuditEntry]]:
    """Read the audit of a lock, or of all locks, the newest entry first."""
    check_limit(limit, "entries")
    wanted = "" if name is None else check_name(name)
    found: dict[Hashable, tuple[bytes, list[bytes]]] = {}
    before = b"+"
    while before and len(found) < limit:
        call = ReadHistory(wanted, before.decode(), limit - len(found))
        before, entries = newest((yield from ask(call)))
        for entry_id, pairs in entries:
            found.setdefault(backend.event_of(entry_id, pairs), (entry_id, pairs))
    return [
        read_entry(entry_id, pairs, using=backend.alias)
        for entry_id, pairs in list(found.values())[:limit]
    ]


def force_release(
    backend: LockOperations,
    name: str,
    token_id: str | None,
    *,
    reason: str,
    by: str = "",
    event: str = FORCE_RELEASED,
) -> Steps[Holder | None]:
    """Take a lock from its holder; return that holder, or ``None`` if nobody lost it."""
    by, reason = check_text(by, "by"), check_text(reason, "reason")
    # The call always names the holder: sent twice, it must not hit the next one.
    shown = yield from backend._read([check_name(name)])
    if not shown or token_id not in (None, shown[0].token_id):
        return None
    holder = shown[0]
    entry = taken(event, holder, by, reason)
    call = ForceRelease(name, holder.token_id, entry, backend.operators.audit_entries)
    answer = yield from ask(call)
    if answer is None:
        return None  # it has another holder by now
    if answer == 2:
        logger.warning("Lock %r was released, but the audit did not take the entry", name)
    forced = event == FORCE_RELEASED
    signal = signals.lock_force_released if forced else signals.lock_freed
    if signal.receivers:
        arguments = {"sender": type(backend), "using": backend.alias, "name": name}
        news = {"holder": holder, "held_for": holder.held_for, **({"by": by} if forced else {})}
        yield Emit(signal, {**arguments, **news, "reason": reason})
    return holder
