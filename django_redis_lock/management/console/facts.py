"""Holders, waiters, audit entries and durations, as JSON and as cells of tables."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from django_redis_lock.handler import locks
from django_redis_lock.management.console.terminal import Column
from django_redis_lock.operators import Outcome
from django_redis_lock.protocol.attention import Attention, attention
from django_redis_lock.protocol.audit import AuditEntry
from django_redis_lock.protocol.records import Holder, Waiter
from django_redis_lock.support.text import visible

UNKNOWN = "-"
"""The cell of an absent value."""
ORIGIN = ("host", "pid", "thread", "task_id", "task_name")


def holder_facts(holder: Holder) -> dict[str, Any]:
    return {
        **_copied(holder, "name", "using"),
        "holder": str(holder),
        **_copied(holder, "token_id", "fence", "acquired_at"),
        "held_for": seconds(holder.held_for),
        "expires_at": holder.expires_at,
        "lease_left": seconds(holder.ttl),
        **_copied(holder, "auto_renew", "max_hold", "waiters"),
        "attention": attention_of(holder),
        **_copied(holder, *ORIGIN),
        "metadata": dict(holder.metadata),
    }


def waiter_facts(waiter: Waiter) -> dict[str, Any]:
    return {
        "waiter": str(waiter),
        **_copied(waiter, "token_id", "since"),
        "waited": seconds(waiter.waited),
        **_copied(waiter, "lease", "auto_renew", *ORIGIN),
        "metadata": dict(waiter.metadata),
    }


def entry_facts(entry: AuditEntry) -> dict[str, Any]:
    return {
        **_copied(entry, "id", "at", "event", "name", "using"),
        "holder": str(entry),
        **_copied(entry, "token_id", "fence", *ORIGIN, "by", "reason"),
    }


def outcome_facts(outcome: Outcome) -> dict[str, Any]:
    return {
        **_copied(outcome.shown, "name", "using", "token_id"),
        "result": outcome.result.value,
        "holder_now": outcome.holder and str(outcome.holder),
        "error": outcome.error or None,
    }


def _copied(one: object, *keys: str) -> dict[str, Any]:
    return {key: getattr(one, key) for key in keys}


def seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def clock(moment: datetime | None) -> str:
    """Return a time in UTC with seconds, for people."""
    return UNKNOWN if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def time_of(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else duration(seconds)


def lease_left(holder: Holder) -> str:
    return "endless" if holder.ttl is None else duration(holder.ttl)


def attention_of(holder: Holder) -> Attention | None:
    """Return why a hold deserves attention, if it does."""
    return attention(holder, locks[holder.using].operators.threshold(holder.name))


def who(one: Holder | Waiter | AuditEntry) -> str:
    """Return a holder, a waiter or an entry's holder in one line."""
    return visible(str(one))


def holder_columns(*, many: bool) -> list[Column[Holder]]:
    """Return the columns of a table of holders; with ``many`` backends it names each."""
    columns: list[Column[Holder]] = [
        Column("NAME", lambda one: visible(one.name)),
        Column("USING", lambda one: visible(one.using)),
        Column("HOLDER", who),
        Column("HELD FOR", lambda one: time_of(one.held_for), right=True),
        Column("LEASE LEFT", lease_left, right=True),
        Column("WAITERS", lambda one: "?" if one.waiters is None else str(one.waiters), right=True),
        Column("ATTENTION", lambda one: attention_of(one) or UNKNOWN),
        Column("FENCE", lambda one: str(one.fence or UNKNOWN), right=True),
    ]
    return [column for column in columns if many or column.heading != "USING"]


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: ``4.2s``, ``3m12s``, ``2h05m``, ``3d04h``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest}s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}m{rest:02}s"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02}h" if days else f"{hours}h{minutes:02}m"


def length(seconds: float) -> str:
    """Return a duration as people write it, without a zero at its end: ``10s``, ``15m``, ``2h``."""
    return re.sub(r"\.0(?=s)|(?<=[mhd])00[smh]$", "", duration(seconds))
