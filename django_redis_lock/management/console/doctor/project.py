"""The project's settings of Celery."""

from __future__ import annotations

from django_redis_lock.operators.workers import celery_app

THREADED = ("threads", "gevent", "eventlet")
"""Pools that run several tasks in one process."""


def worker_threads() -> int | None:
    """Return how many tasks a worker process runs at once, ``None`` if the settings don't say."""
    app = celery_app()
    if app is None or app.conf.worker_pool not in THREADED:
        return None
    concurrency = app.conf.worker_concurrency
    return concurrency if isinstance(concurrency, int) else None
