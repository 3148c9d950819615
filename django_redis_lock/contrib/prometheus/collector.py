"""Gauges of the held locks, read from the servers when Prometheus scrapes."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from django.core.signals import setting_changed
from django.db import connections
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from django_redis_lock.contrib.held import Held, read_held
from django_redis_lock.contrib.prometheus.counting import LOCK, SCRAPE_ERRORS, SERVER, this_thread
from django_redis_lock.exceptions import InvalidLockBackend, LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.support.process import forget_after_fork

logger = logging.getLogger("django_redis_lock")

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that turns on prometheus_client's multiprocess mode."""
KEPT_FOR = 1.0
"""Seconds for which scrapes share what was read."""
PATIENCE = 3.0
"""Seconds that a scrape waits for the servers, all of which are read at once."""

OF_GROUPS = {
    "held": ("django_redis_lock_held", "Locks that are held now."),
    "waiting": ("django_redis_lock_waiting", "Waiters in the queues of held locks."),
    "oldest_wait": (
        "django_redis_lock_oldest_wait_seconds",
        "The longest that the first waiter of a queue has waited.",
    ),
    "oldest_hold": (
        "django_redis_lock_oldest_hold_seconds",
        "The longest that one of the held locks has been held.",
    ),
    "lease_used": (
        "django_redis_lock_lease_used_ratio",
        "The largest share of its lease that a renewed lock has used up; at 1 it is lost.",
    ),
}
"""The name and the help of the gauge for each of the ``Figures`` of a group."""
UP = ("django_redis_lock_server_up", "1 if the held locks could be read, 0 if not.")
UNREAD = (
    "django_redis_lock_unread",
    "Held locks (holders) and queues (queues) that the other gauges leave out, as there are many.",
)


@dataclass
class _Look:
    """One reading of a backend, by a thread of its own."""

    using: str
    begun: float = field(default_factory=monotonic)
    held: Future[Held] = field(default_factory=Future)

    @property
    def recent(self) -> bool:
        return not self.held.done() or monotonic() - self.begun < KEPT_FOR

    def take(self) -> None:
        this_thread.scrapes = True
        try:
            self.held.set_result(read_held(locks[self.using]))
        except Exception as error:
            if not isinstance(error, LockUnavailable | InvalidLockBackend):
                logger.exception("The held locks of LOCKS[%r] could not be counted", self.using)
            self.held.set_exception(error)
        finally:
            connections.close_all()  # a signal receiver may have opened one in this thread


class HeldLocks(Collector):
    """Reads every backend, and waits for none longer than ``PATIENCE``."""

    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)
        setting_changed.connect(self._settings_changed)

    def after_fork(self) -> None:
        """Start over: the threads that read are the parent's."""
        self._mutex = threading.Lock()
        self._looks: dict[str, _Look] = {}

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics without values, so that registering reads nothing."""
        yield from self._families().values()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of all backends."""
        families = self._families()
        until = monotonic() + PATIENCE
        for look in self._all_looks():
            self._add(families, look, max(0.0, until - monotonic()))
        yield from families.values()

    def _families(self) -> dict[str, GaugeMetricFamily]:
        of_groups = {
            key: GaugeMetricFamily(name, text, labels=LOCK)
            for key, (name, text) in OF_GROUPS.items()
        }
        return {
            **of_groups,
            "unread": GaugeMetricFamily(*UNREAD, labels=(*SERVER, "what")),
            "up": GaugeMetricFamily(*UP, labels=SERVER),
        }

    def _all_looks(self) -> list[_Look]:
        try:
            aliases = list(locks)
        except InvalidLockBackend:
            return []  # as the system checks say
        with self._mutex:
            for using in aliases:
                look = self._looks.get(using)
                if look is None or not look.recent:
                    look = self._looks[using] = _Look(using)
                    name = f"django-redis-lock-scrape-{using}"
                    threading.Thread(target=look.take, name=name, daemon=True).start()
            return [self._looks[using] for using in aliases]

    def _add(self, families: dict[str, GaugeMetricFamily], look: _Look, patience: float) -> None:
        try:
            backend = locks[look.using]
        except InvalidLockBackend:
            return  # as the system checks say
        labels = (look.using, type(backend).__name__)
        errors = SCRAPE_ERRORS.labels(*labels)
        try:
            held = look.held.result(patience)
        except Exception:  # too late, or logged where it was raised
            families["up"].add_metric(labels, 0.0)
            errors.inc()
            return
        families["up"].add_metric(labels, 1.0)
        families["unread"].add_metric((*labels, "holders"), held.holders_unread)
        families["unread"].add_metric((*labels, "queues"), held.queues_unread)
        for group, figures in sorted(held.groups.items()):
            for key, value in vars(figures).items():
                families[key].add_metric((*labels, group), value)

    def _settings_changed(self, *, setting: str, **kwargs: Any) -> None:
        if setting == "LOCKS":
            self.after_fork()


HELD_LOCKS = HeldLocks()
REGISTRY.register(HELD_LOCKS)


def registry() -> CollectorRegistry:
    """Return what a scrape has to answer with.

    In multiprocess mode these are the metrics of all processes that share the directory, and the
    gauges of the held locks. Otherwise it is the default registry of prometheus_client.
    """
    if MULTIPROCESS not in os.environ:
        return REGISTRY
    of_all = CollectorRegistry()
    MultiProcessCollector(of_all)  # type: ignore[no-untyped-call]
    of_all.register(HELD_LOCKS)
    return of_all
