"""Which holds the admin page and the command mark as needing attention."""

from __future__ import annotations

from enum import StrEnum

from django_redis_lock.protocol.records import Holder

DAY = 86_400.0
LATE = 0.5
"""The part of a lease that is left when its renewal is late. Renewals come when 2/3 are left."""
ABOUT = 1.0
"""Seconds by which the end of the last lease may differ from ``max_hold``."""


class Attention(StrEnum):
    """Why a lock needs an operator's attention."""

    HELD_LONG = "held_long"
    """Held for longer than ``WARN_AFTER`` allows for its name."""
    ENDLESS_OLD = "endless_old"
    """Without end, and held for longer than ``WARN_AFTER`` allows, or a day if it says nothing."""
    RENEWAL_LATE = "renewal_late"
    """Renewed by its holder, but not in time."""


def attention(holder: Holder, threshold: float | None) -> Attention | None:
    """Return what is wrong with a hold, or ``None`` if nothing is known to be.

    ``threshold`` is the seconds that ``WARN_AFTER`` allows for the name, ``None`` for no limit.
    A renewal is late when less than half of the lease in the holder's record is left.
    """
    if is_renewed(holder) and holder.ttl is not None and holder.ttl < LATE * (holder.lease or 0):
        return Attention.RENEWAL_LATE
    if holder.held_for is None:
        return None
    if holder.ttl is None:
        too_long = holder.held_for > (DAY if threshold is None else threshold)
        return Attention.ENDLESS_OLD if too_long else None
    too_long = threshold is not None and holder.held_for > threshold
    return Attention.HELD_LONG if too_long else None


def is_renewed(holder: Holder) -> bool:
    """Whether the holder will renew again. It does not once the lease ends at ``max_hold``."""
    if holder.max_hold is None or holder.held_for is None or holder.ttl is None:
        return holder.auto_renew
    return holder.auto_renew and holder.held_for + holder.ttl < holder.max_hold - ABOUT
