"""What the held locks of a backend amount to, read within bounds."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from heapq import nlargest
from operator import attrgetter

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.operator_settings import OTHER
from django_redis_lock.protocol.attention import is_renewed
from django_redis_lock.protocol.records import Holder

MOST_HOLDERS = 2000
"""Of so many held locks the holders are read: those whose lease ends first. Four calls do."""
MOST_QUEUES = 100
"""Of so many queues the first waiter is read: of the longest. Each takes a call."""


@dataclass
class Figures:
    """Of the locks of one group."""

    held: int = 0
    waiting: int = 0
    oldest_wait: float = 0.0
    oldest_hold: float = 0.0
    lease_used: float = 0.0


@dataclass
class Held:
    """Of all locks of a backend."""

    groups: dict[str, Figures] = field(default_factory=lambda: defaultdict(Figures))
    holders_unread: int = 0
    queues_unread: int = 0


def read_held(backend: BaseLockBackend) -> Held:
    """Read the figures of a backend. Raises ``LockUnavailable``."""
    group = backend.operators.group
    held = Held()
    for known in {*backend.operators.groups.values(), OTHER}:
        held.groups[known] = Figures()  # 0 rather than absent while none is held
    counts: Counter[str] = Counter()
    ending_first: deque[str] = deque(maxlen=MOST_HOLDERS)
    for name, _ in backend.read_index().latest():
        counts[group(name)] += 1
        ending_first.append(name)
    for each, count in counts.items():
        held.groups[each].held = count
    held.holders_unread = counts.total() - len(ending_first)
    awaited = []
    for holder in backend.holders_of(ending_first):
        figures = held.groups[group(holder.name)]
        figures.oldest_hold = max(figures.oldest_hold, holder.held_for or 0.0)
        figures.lease_used = max(figures.lease_used, lease_used(holder))
        if holder.waiters:
            figures.waiting += holder.waiters
            awaited.append(holder)
    longest = nlargest(MOST_QUEUES, awaited, key=attrgetter("waiters"))
    held.queues_unread = len(awaited) - len(longest)
    for holder in longest:
        figures = held.groups[group(holder.name)]
        for waiter in backend.waiting(holder.name, limit=1):
            figures.oldest_wait = max(figures.oldest_wait, waiter.waited or 0.0)
    return held


def lease_used(holder: Holder) -> float:
    """Return which share of a lease has passed, 0.0 for one that will not be renewed."""
    if not is_renewed(holder) or holder.lease is None or holder.ttl is None:
        return 0.0
    return min(1.0, max(0.0, 1.0 - holder.ttl / holder.lease))
