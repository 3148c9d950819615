"""Counters and histograms, and the receivers of signals that feed them.

prometheus_client takes locks to count. A child that is forked while another thread holds one would
wait for it forever, so a fork waits until nothing is being counted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache, wraps
from importlib.util import find_spec
from typing import Any

from django.core.signals import setting_changed
from django.dispatch import Signal
from prometheus_client import Counter, Histogram

from django_redis_lock import signals
from django_redis_lock.backends.operator_settings import OTHER
from django_redis_lock.contrib.gauges import reads
from django_redis_lock.handler import locks

SERVER = ("using", "backend")
LOCK = (*SERVER, "group")
BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
"""Seconds: a lock is held for a millisecond around a row, or for an hour around a report."""
KNOWN_NAMES = 1024
"""Names of each alias whose group is remembered."""
REASONS = ("timeout", "busy", "unavailable")

ACQUIRED = Counter("django_redis_lock_acquired", "Locks that were acquired.", LOCK)
NOT_ACQUIRED = Counter(
    "django_redis_lock_not_acquired",
    "Locks that were not acquired: the wait ran out (timeout), there was none (busy), or the "
    "server was unavailable.",
    (*LOCK, "reason"),
)
LOST = Counter("django_redis_lock_lost", "Locks that were lost while they were held.", LOCK)
FORCE_RELEASED = Counter(
    "django_redis_lock_force_released", "Locks that an operator or a program took away.", LOCK
)
FREED = Counter(
    "django_redis_lock_freed", "Locks of dead tasks that a Celery worker released.", LOCK
)
UNAVAILABLE = Counter(
    "django_redis_lock_unavailable",
    "Operations that failed because the server was unavailable, renewals included.",
    SERVER,
)
TASKS_SKIPPED = Counter(
    "django_redis_lock_tasks_skipped",
    "Duplicates of tasks that were skipped or refused, by the policy that applied.",
    ("task", "policy"),
)
WAIT = Histogram(
    "django_redis_lock_wait_seconds",
    "How long callers waited for a lock, whether they acquired it or not.",
    LOCK,
    buckets=BUCKETS,
)
HOLD = Histogram(
    "django_redis_lock_hold_seconds",
    "How long locks were held, until their holder released them.",
    LOCK,
    buckets=BUCKETS,
)
SCRAPE_ERRORS = Counter(
    "django_redis_lock_scrape_errors",
    "Scrapes that could not read the held locks in time.",
    SERVER,
    registry=None,  # the collector registers it after itself
)


OF_GROUPS = {
    "acquired": ACQUIRED,
    "lost": LOST,
    "force_released": FORCE_RELEASED,
    "freed": FREED,
    "wait": WAIT,
    "hold": HOLD,
}

_counting = threading.RLock()


def _go_on() -> None:
    with suppress(RuntimeError):  # uWSGI forks without having called what comes before
        _counting.release()


os.register_at_fork(
    before=_counting.acquire, after_in_parent=_counting.release, after_in_child=_go_on
)
_begun: list[bool] = []
"""Not empty while something is being counted."""


def _counts(receiver: Callable[..., None]) -> Callable[..., None]:
    """Count one thing at a time.

    What a signal handler does in the middle of it is not counted: the locks of prometheus_client
    are not reentrant.
    """

    @signals.never_blocks
    @wraps(receiver)
    def count(*args: Any, **kwargs: Any) -> None:
        with _counting:
            if not _begun:
                try:
                    _begun.append(True)
                    receiver(*args, **kwargs)
                finally:
                    _begun.clear()

    return count


@cache
def _groups(using: str, sender: type) -> dict[str, dict[str, Any]]:
    """Return the metrics of each group. All exist from the first one on, most of them as 0."""
    server = (using, sender.__name__)
    UNAVAILABLE.labels(*server)
    return {
        group: {
            **{what: metric.labels(*server, group) for what, metric in OF_GROUPS.items()},
            **{reason: NOT_ACQUIRED.labels(*server, group, reason) for reason in REASONS},
        }
        for group in (OTHER, *locks[using].operators.groups.values())
    }


@lru_cache(KNOWN_NAMES)  # a name comes back when it is released
def _group(using: str, sender: type, name: str) -> dict[str, Any]:
    return _groups(using, sender)[locks[using].operators.group(name)]


def _settings_changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "LOCKS":
        _groups.cache_clear()
        _group.cache_clear()


@_counts
def waited(
    sender: type, using: str, name: str, waited: float, reason: str = "acquired", **kwargs: Any
) -> None:
    group = _group(using, sender, name)
    group[reason].inc()
    group["wait"].observe(waited)


@_counts
def released(sender: type, using: str, name: str, held_for: float, **kwargs: Any) -> None:
    _group(using, sender, name)["hold"].observe(held_for)


def _counter(what: str) -> Callable[..., None]:
    @_counts
    def count(sender: type, using: str, name: str, **kwargs: Any) -> None:
        _group(using, sender, name)[what].inc()

    return count


lost, force_released, freed = map(_counter, ("lost", "force_released", "freed"))


@_counts
def unavailable(sender: type, using: str, **kwargs: Any) -> None:
    if not reads.get():
        UNAVAILABLE.labels(using, sender.__name__).inc()


@_counts
def task_skipped(sender: Any, policy: str, **kwargs: Any) -> None:
    TASKS_SKIPPED.labels(sender.name, policy).inc()


RECEIVERS: list[tuple[Signal, Callable[..., None]]] = [
    (signals.lock_acquired, waited),
    (signals.lock_not_acquired, waited),
    (signals.lock_released, released),
    (signals.lock_lost, lost),
    (signals.lock_force_released, force_released),
    (signals.lock_freed, freed),
    (signals.lock_unavailable, unavailable),
]
if find_spec("celery"):
    from django_redis_lock import celery

    RECEIVERS.append((celery.task_skipped, task_skipped))


def connect() -> None:
    """Connect all receivers, each once."""
    for signal, receiver in RECEIVERS:
        signal.connect(receiver)
    setting_changed.connect(_settings_changed)
