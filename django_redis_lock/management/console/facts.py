"""Holders, waiters and audit entries, as JSON and as cells of tables."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django_redis_lock.handler import locks
from django_redis_lock.management.console.durations import duration
from django_redis_lock.management.console.terminal import Column
from django_redis_lock.operators.breaking import Outcome
from django_redis_lock.protocol.attention import Attention, attention
from django_redis_lock.protocol.audit import AuditEntry
from django_redis_lock.protocol.records import Holder, Waiter
from django_redis_lock.support.text import visible

UNKNOWN = "-"
"""The cell of an absent value."""
NOT_COUNTED = "?"
"""The number of waiters where the server does not report it."""


def holder_facts(holder: Holder) -> dict[str, Any]:
    return {
        "name": holder.name,
        "using": holder.using,
        "holder": str(holder),
        "token_id": holder.token_id,
        "fence": holder.fence,
        "acquired_at": iso(holder.acquired_at),
        "held_for": seconds(holder.held_for),
        "expires_at": iso(holder.expires_at),
        "lease_left": seconds(holder.ttl),
        "auto_renew": holder.auto_renew,
        "max_hold": holder.max_hold,
        "waiters": holder.waiters,
        "attention": attention_of(holder),
        **_origin(holder),
        "metadata": dict(holder.metadata),
    }


def waiter_facts(waiter: Waiter) -> dict[str, Any]:
    return {
        "waiter": str(waiter),
        "token_id": waiter.token_id,
        "since": iso(waiter.since),
        "waited": seconds(waiter.waited),
        "lease": waiter.lease,
        "auto_renew": waiter.auto_renew,
        **_origin(waiter),
        "metadata": dict(waiter.metadata),
    }


def entry_facts(entry: AuditEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "at": iso(entry.at),
        "event": entry.event,
        "name": entry.name,
        "using": entry.using,
        "holder": str(entry),
        "token_id": entry.token_id,
        "fence": entry.fence,
        **_origin(entry),
        "by": entry.by,
        "reason": entry.reason,
    }


def outcome_facts(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.shown.name,
        "using": outcome.shown.using,
        "token_id": outcome.shown.token_id,
        "result": outcome.result.value,
        "holder_now": str(outcome.holder) if outcome.holder else None,
        "error": outcome.error or None,
    }


def _origin(one: Holder | Waiter | AuditEntry) -> dict[str, Any]:
    return {
        "host": one.host,
        "pid": one.pid,
        "thread": one.thread,
        "task_id": one.task_id,
        "task_name": one.task_name,
    }


def iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def clock(moment: datetime | None) -> str:
    """Return a time in UTC with seconds, for people."""
    return UNKNOWN if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def held_for(holder: Holder) -> str:
    return UNKNOWN if holder.held_for is None else duration(holder.held_for)


def lease_left(holder: Holder) -> str:
    return "endless" if holder.ttl is None else duration(holder.ttl)


def waiters(holder: Holder) -> str:
    return NOT_COUNTED if holder.waiters is None else str(holder.waiters)


def attention_of(holder: Holder) -> Attention | None:
    """Return why a hold deserves attention, if it does."""
    return attention(holder, locks[holder.using].operators.threshold(holder.name))


def mark(holder: Holder) -> str:
    """Return it for a table, as in the JSON."""
    return attention_of(holder) or UNKNOWN


def waited(waiter: Waiter) -> str:
    return UNKNOWN if waiter.waited is None else duration(waiter.waited)


def who(one: Holder | Waiter | AuditEntry) -> str:
    """Return a holder, a waiter or an entry's holder in one line."""
    return visible(str(one))


def holder_columns(*, many: bool) -> list[Column[Holder]]:
    """Return the columns of a table of holders; with ``many`` backends it names each."""
    using: list[Column[Holder]] = [Column("USING", lambda one: visible(one.using))]
    return [
        Column("NAME", lambda one: visible(one.name)),
        *(using if many else []),
        Column("HOLDER", who),
        Column("HELD FOR", held_for, right=True),
        Column("LEASE LEFT", lease_left, right=True),
        Column("WAITERS", waiters, right=True),
        Column("ATTENTION", mark),
        Column("FENCE", lambda one: str(one.fence or UNKNOWN), right=True),
    ]
