"""What is known of holders, waiters and events, for JSON and for cells of tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from django.utils.dateparse import parse_datetime

from django_redis_lock.handler import locks
from django_redis_lock.management.console.durations import duration
from django_redis_lock.management.console.table import NOTHING
from django_redis_lock.management.console.terminal import Terminal
from django_redis_lock.operators.breaking import Outcome
from django_redis_lock.protocol.attention import Attention, attention
from django_redis_lock.protocol.audit import AuditEntry
from django_redis_lock.protocol.records import Holder, Waiter
from django_redis_lock.support.text import visible

UNKNOWN = NOTHING
NOT_COUNTED = "?"
"""How many wait where the server does not tell."""


def holder_facts(holder: Holder) -> dict[str, Any]:
    """Return everything that is known of a holder, for JSON."""
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
    """Return everything that is known of a waiter, for JSON."""
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
    """Return everything that is known of an event, for JSON."""
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
    """Return what became of a lock that was to be released, for JSON."""
    return {
        "name": outcome.shown.name,
        "using": outcome.shown.using,
        "token_id": outcome.shown.token_id,
        "result": outcome.result.value,
        "holder_now": str(outcome.holder) if outcome.holder else None,
        "error": outcome.error or None,
        "unlogged": outcome.unlogged or None,
    }


def _origin(one: Holder | Waiter | AuditEntry) -> dict[str, Any]:
    return {
        "host": one.host,
        "pid": one.pid,
        "thread": one.thread,
        "task_id": one.task_id,
        "task_name": one.task_name,
    }


def now() -> datetime:
    """Return the time of this host's clock."""
    return datetime.now(UTC)


def iso(moment: datetime | None) -> str | None:
    """Return a time for JSON."""
    return None if moment is None else moment.isoformat()


def seconds(value: float | None) -> float | None:
    """Return seconds to the millisecond for JSON."""
    return None if value is None else round(value, 3)


def clock(moment: datetime | None) -> str:
    """Return a time for people, to the second, in UTC."""
    return UNKNOWN if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def due(eta: str | None) -> str:
    """Return when a task is due, for people; what can't be read as it is."""
    moment = eta and parse_datetime(eta)
    return clock(moment.astimezone(UTC)) if moment else visible(eta or UNKNOWN)


def held_for(holder: Holder) -> str:
    """Return how long a lock has been held."""
    return UNKNOWN if holder.held_for is None else duration(holder.held_for)


def lease_left(holder: Holder) -> str:
    """Return what is left of a lease."""
    return "endless" if holder.ttl is None else duration(holder.ttl)


def waiters(holder: Holder) -> str:
    """Return how many wait."""
    return NOT_COUNTED if holder.waiters is None else str(holder.waiters)


class Legend:
    """Says what stands for what is not known, where a table has it."""

    def __init__(self) -> None:
        self._needed = False

    def reading(self, holders: Iterable[Holder]) -> Iterator[Holder]:
        """Yield the holders that are shown."""
        for one in holders:
            self._needed |= one.waiters is None
            yield one

    def say(self, terminal: Terminal) -> None:
        """Say it, below the table."""
        if self._needed:
            terminal.notice(f"WAITERS {NOT_COUNTED}: the server does not tell how many wait.")


def attention_of(holder: Holder) -> Attention | None:
    """Return what is wrong with a hold, if anything is."""
    return attention(holder, locks[holder.using])


def mark(holder: Holder) -> str:
    """Return the same for a table, in the word of the JSON."""
    return attention_of(holder) or NOTHING


def waited(waiter: Waiter) -> str:
    """Return how long somebody has waited."""
    return UNKNOWN if waiter.waited is None else duration(waiter.waited)


def brief(one: Holder | Waiter | AuditEntry) -> str:
    """Return the same in less words: the end of the task's name, and the beginning of its id."""
    if not one.task_id or not one.task_name:
        return who(one)
    task = one.task_name.rpartition(".")[2]
    return visible(f"{task}[{one.task_id[:8]}] on {one.host}:{one.pid}")


def who(one: Holder | Waiter | AuditEntry) -> str:
    """Return one line that says who somebody is."""
    return visible(str(one))
