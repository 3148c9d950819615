"""Counters and histograms that the signals feed, and gauges that are read at a scrape.

prometheus_client takes locks to count. A child that is forked while one is held would wait for it
forever, so a fork waits until nothing is being counted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import Any

from django.dispatch import Signal
from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from django_redis_lock import signals
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.operator_settings import OTHER
from django_redis_lock.contrib.gauges import MEANINGS, read_gauges, reads
from django_redis_lock.handler import locks
from django_redis_lock.tasks import conflicts

SERVER = ("using", "backend")
LOCK = (*SERVER, "group")
BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
"""Seconds: a lock is held for a millisecond around a row, or for an hour around a report."""
REASONS = ("timeout", "busy", "full", "unavailable")

histogram = partial(Histogram, labelnames=LOCK, buckets=BUCKETS)
OF_GROUPS = {
    "acquired": Counter("django_redis_lock_acquired", "Acquired locks.", LOCK),
    "lost": Counter("django_redis_lock_lost", "Losses that holders noticed.", LOCK),
    "force_released": Counter("django_redis_lock_force_released", "Forced releases.", LOCK),
    "freed": Counter(
        "django_redis_lock_freed",
        "Locks that a Celery worker freed for dead tasks or messages.",
        LOCK,
    ),
    "wait": histogram(
        "django_redis_lock_wait_seconds",
        "Waits for locks, whether successful or not.",
    ),
    "hold": histogram(
        "django_redis_lock_hold_seconds",
        "Times from acquiring to releasing.",
    ),
}
NOT_ACQUIRED = Counter(
    "django_redis_lock_not_acquired",
    "Attempts that failed: the wait ended (timeout), the caller didn't wait (busy), the queue was "
    "full, or the server unavailable.",
    (*LOCK, "reason"),
)
UNAVAILABLE = Counter(
    "django_redis_lock_unavailable",
    "Operations that failed because the server was unavailable, renewals included.",
    SERVER,
)
TASKS_SKIPPED = Counter(
    "django_redis_lock_tasks_skipped",
    "Duplicates of tasks that were skipped or refused, by policy.",
    ("task", "policy"),
)
TASKS_PARKED = Counter(
    "django_redis_lock_tasks_parked",
    "Parked tasks.",
    ("task",),
)
SCRAPE_ERRORS = Counter(
    "django_redis_lock_scrape_errors",
    "Scrapes that could not read the held locks in time.",
    SERVER,
    registry=None,  # the collector registers it after itself
)

_counting = threading.RLock()


def _go_on() -> None:
    with suppress(RuntimeError):  # uWSGI forks without having called what comes before
        _counting.release()


os.register_at_fork(
    before=_counting.acquire, after_in_parent=_counting.release, after_in_child=_go_on
)
_begun: list[bool] = []  # not empty while something is being counted


@signals.never_blocks
def count(signal: Signal, **values: Any) -> None:
    """Count a signal, one at a time: the locks of prometheus_client are not reentrant."""
    with _counting:
        if not _begun:
            try:
                _begun.append(True)
                COUNTS[signal](signal=signal, **values)
            finally:
                _begun.clear()


@cache
def _groups(backend: BaseLockBackend) -> dict[str, dict[str, Any]]:
    """Return the metrics of each group. All exist from the first one on, most of them as 0."""
    server = (backend.alias, type(backend).__name__)
    UNAVAILABLE.labels(*server)
    return {
        group: {
            **{what: metric.labels(*server, group) for what, metric in OF_GROUPS.items()},
            **{reason: NOT_ACQUIRED.labels(*server, group, reason) for reason in REASONS},
        }
        for group in (OTHER, *backend.operators.groups.values())
    }


@lru_cache(1024)  # a name comes back when it is released
def _group(backend: BaseLockBackend, name: str) -> dict[str, Any]:
    return _groups(backend)[backend.operators.group(name)]


def _waited(using: str, name: str, waited: float, reason: str = "acquired", **kwargs: Any) -> None:
    group = _group(locks[using], name)
    group[reason].inc()
    group["wait"].observe(waited)


def _released(using: str, name: str, held_for: float, **kwargs: Any) -> None:
    _group(locks[using], name)["hold"].observe(held_for)


def _taken_away(what: str, using: str, name: str, **kwargs: Any) -> None:
    _group(locks[using], name)[what].inc()


def _unavailable(sender: type, using: str, **kwargs: Any) -> None:
    if not reads.get():
        UNAVAILABLE.labels(using, sender.__name__).inc()


def _task_skipped(sender: Any, policy: str, **kwargs: Any) -> None:
    TASKS_SKIPPED.labels(conflicts.name_of(sender), policy).inc()


def _task_parked(sender: Any, **kwargs: Any) -> None:
    TASKS_PARKED.labels(conflicts.name_of(sender)).inc()


COUNTS: dict[Signal, Callable[..., None]] = {
    signals.lock_acquired: _waited,
    signals.lock_not_acquired: _waited,
    signals.lock_released: _released,
    signals.lock_lost: partial(_taken_away, "lost"),
    signals.lock_force_released: partial(_taken_away, "force_released"),
    signals.lock_freed: partial(_taken_away, "freed"),
    signals.lock_unavailable: _unavailable,
    conflicts.task_skipped: _task_skipped,
    conflicts.task_parked: _task_parked,
}

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"  # turns on prometheus_client's multiprocess mode


class HeldLocks(Collector):
    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics without values, so that registering reads nothing."""
        yield from _families().values()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families = _families()
        for backend, held in read_gauges():
            labels = (backend.alias, type(backend).__name__)
            errors = SCRAPE_ERRORS.labels(*labels)
            families["up"].add_metric(labels, float(held is not None))
            if held is None:
                errors.inc()
                continue
            families["unread"].add_metric((*labels, "holders"), held.holders_unread)
            families["unread"].add_metric((*labels, "queues"), held.queues_unread)
            for group, figures in sorted(held.groups.items()):
                for key, value in figures.items():
                    families[key].add_metric((*labels, group), value)
        yield from families.values()


def _families() -> dict[str, GaugeMetricFamily]:
    units = {"oldest_wait": "_seconds", "oldest_hold": "_seconds", "lease_used": "_ratio"}
    unread = "Holders and queues that the other gauges omit."
    meanings = {
        **{key: (key + units.get(key, ""), text, LOCK) for key, text in MEANINGS.items()},
        "unread": ("unread", unread, (*SERVER, "what")),
        "up": ("server_up", "1 if the held locks could be read, 0 if not.", SERVER),
    }
    return {
        key: GaugeMetricFamily(f"django_redis_lock_{name}", meaning, labels=labels)
        for key, (name, meaning, labels) in meanings.items()
    }


HELD_LOCKS = HeldLocks()
REGISTRY.register(HELD_LOCKS)
REGISTRY.register(SCRAPE_ERRORS)  # later, so that a scrape counts its own errors
