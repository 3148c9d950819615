"""What is wrong with a hold, as the admin's list and the command's mark it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from django_redis_lock.protocol.records import Holder

if TYPE_CHECKING:
    from django_redis_lock.backends.base import BaseLockBackend

DAY = 86_400.0
LATE = 0.5
"""The part of a lease that is left when its renewal is late; one comes when 2/3 are left."""
ABOUT = 1.0
"""Seconds by which the end of the last lease may miss the ``max_hold`` that it was made for."""


class Attention(StrEnum):
    """Why a lock deserves an operator's attention."""

    HELD_LONG = "held_long"
    """Held for longer than ``WARN_AFTER`` says for its name."""
    ENDLESS_OLD = "endless_old"
    """Without end, and held for longer than that, or for a day where nothing is said."""
    RENEWAL_LATE = "renewal_late"
    """Its holder renews it, and has not done so when it should have."""


def attention(holder: Holder, backend: BaseLockBackend) -> Attention | None:
    """Return what is wrong with a hold, ``None`` for nothing, or nothing that is known.

    A renewal is late when less than half of the lease is left that the holder's record tells.
    """
    if is_renewed(holder) and holder.ttl is not None and holder.ttl < LATE * (holder.lease or 0):
        return Attention.RENEWAL_LATE
    if holder.held_for is None:
        return None
    threshold = backend.operators.threshold(holder.name)
    if holder.ttl is None:
        too_long = holder.held_for > (DAY if threshold is None else threshold)
        return Attention.ENDLESS_OLD if too_long else None
    too_long = threshold is not None and holder.held_for > threshold
    return Attention.HELD_LONG if too_long else None


def is_renewed(holder: Holder) -> bool:
    """Whether a renewal is to come: none does for a lease that ends where ``max_hold`` has it."""
    if holder.max_hold is None or holder.held_for is None or holder.ttl is None:
        return holder.auto_renew
    return holder.auto_renew and holder.held_for + holder.ttl < holder.max_hold - ABOUT
