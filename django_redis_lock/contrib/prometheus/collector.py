"""Gauges of the held locks, read from the servers when Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from django_redis_lock.contrib.gauges import MEANINGS, read_gauges
from django_redis_lock.contrib.prometheus.counting import LOCK, SCRAPE_ERRORS, SERVER

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that turns on prometheus_client's multiprocess mode."""

NAMES = {
    "held": "django_redis_lock_held",
    "waiting": "django_redis_lock_waiting",
    "oldest_wait": "django_redis_lock_oldest_wait_seconds",
    "oldest_hold": "django_redis_lock_oldest_hold_seconds",
    "lease_used": "django_redis_lock_lease_used_ratio",
}
"""The name of the gauge for each of the ``Figures`` of a group."""
UP = ("django_redis_lock_server_up", "1 if the held locks could be read, 0 if not.")
UNREAD = (
    "django_redis_lock_unread",
    "Held locks (holders) and queues (queues) that the other gauges leave out, as there are many.",
)


class HeldLocks(Collector):
    """Yields the gauges of every backend."""

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics without values, so that registering reads nothing."""
        yield from self._families().values()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of all backends."""
        families = self._families()
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
                for key, value in vars(figures).items():
                    families[key].add_metric((*labels, group), value)
        yield from families.values()

    def _families(self) -> dict[str, GaugeMetricFamily]:
        of_groups = {
            key: GaugeMetricFamily(name, MEANINGS[key], labels=LOCK) for key, name in NAMES.items()
        }
        return {
            **of_groups,
            "unread": GaugeMetricFamily(*UNREAD, labels=(*SERVER, "what")),
            "up": GaugeMetricFamily(*UP, labels=SERVER),
        }


HELD_LOCKS = HeldLocks()
REGISTRY.register(HELD_LOCKS)
REGISTRY.register(SCRAPE_ERRORS)  # later, so that a scrape counts its own errors
