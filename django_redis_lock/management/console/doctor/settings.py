"""The examinations of settings, without asking a server: LOCKS, the pool, Celery tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import redis

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.management.console.doctor.targets import Finding, fail, ok, warn
from django_redis_lock.management.console.durations import length
from django_redis_lock.support.text import keep_secrets, without_passwords

UNLIMITED = 1 << 16
THREADED = ("threads", "gevent", "eventlet")
"""Celery pools that run several tasks in one process."""


def celery_app() -> Any:
    """Return this project's Celery app; ``None`` without Celery or a broker."""
    try:
        from celery.app import app_or_default
    except ImportError:
        return None
    app = app_or_default()
    return app if app.conf.broker_url or app.conf.broker_write_url else None


def examine_settings(backend: BaseLockBackend) -> Iterator[Finding]:
    """Turn the system checks of an entry into findings."""
    messages = backend.check()
    for message in messages:
        found = without_passwords(f"{message.msg} ({message.id})")
        status = fail if message.is_serious() else warn
        yield status("settings", found, message.hint or "")
    if not messages:
        yield ok("settings", "valid; no cache shares the database of the locks")
    if backend.timeout is None:
        yield warn(
            "lease",
            "TIMEOUT is None: if a holder dies, its lock stays held until it is force released",
            "Set TIMEOUT to a number of seconds. The lease is renewed while its holder lives.",
        )


def examine_pool(pool: redis.ConnectionPool) -> Iterator[Finding]:
    """Are there timeouts and enough connections?"""
    # An unopened connection also has the defaults of this version of redis-py.
    timeout = pool.connection_class(**pool.connection_kwargs).socket_timeout
    if timeout:
        yield ok("timeout", f"a call to a server that hangs fails after {timeout:g} s")
    else:
        yield warn(
            "timeout",
            "none: a server that hangs blocks its callers forever",
            'Set "OPTIONS": {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 5} in CACHES, or '
            "add socket_timeout=5 to the URL.",
        )
    most, threads = pool.max_connections, _worker_threads()
    allowed = "any number of" if most >= UNLIMITED else f"up to {most}"
    found = f"{allowed} connections per process (max_connections)"
    if most <= (threads or 1):
        use = (
            f"{threads} tasks run in one process (worker_concurrency)"
            if threads
            else "renewals need a connection besides calls"
        )
        yield warn(
            "pool",
            f"{found}, but {use}: calls without a connection wait or raise LockUnavailable",
            f"Set max_connections at least to {(threads or 1) + 1}: in CONNECTION_POOL_KWARGS of "
            "the alias in CACHES, or in the query of the URL.",
        )
    else:
        yield ok("pool", f"{found}, for {threads} tasks in one process" if threads else found)


def _worker_threads() -> int | None:
    """Return how many tasks a worker process runs at once, ``None`` if the settings don't say."""
    app = celery_app()
    if app is None or app.conf.worker_pool not in THREADED:
        return None
    concurrency = app.conf.worker_concurrency
    return concurrency if isinstance(concurrency, int) else None


def examine_leases() -> Iterator[Finding]:
    """Compare the leases of guarded Celery tasks with their time limits."""
    app = celery_app()
    if app is None:
        return
    from django_redis_lock.celery.guard import GUARD

    try:
        app.loader.import_default_modules()
        app.finalize(auto=True)
    except Exception as error:  # any error of the project's modules or checks
        found = f"not known: the tasks can't be loaded: {keep_secrets(error)}"
        yield warn("leases", found, "Fix the error; manage.py check may tell more.")
        return
    guarded = sound = 0
    for name, task in sorted(app.tasks.items()):
        if guard := getattr(task, GUARD, None):
            guarded += 1
            limit = task.time_limit or app.conf.task_time_limit
            if finding := _examine_lease(name, guard.options.timeout, limit):
                yield finding
            else:
                sound += 1
    if sound or not guarded:
        yield sound_leases(sound)


def sound_leases(number: int) -> Finding:
    found = f"{number} guarded tasks have leases that last as long as they run"
    if number == 0:
        found = "there are no guarded tasks"
    elif number == 1:
        found = "1 guarded task has a lease that lasts as long as it runs"
    return ok("leases", found)


def _examine_lease(name: str, lease: Any, limit: float | None) -> Finding | None:
    """Return what is wrong with a lease, given the task's hard time limit in seconds."""
    if lease is None:
        return warn(
            "leases",
            f"{name} has an endless lease: if its worker dies, its lock stays held",
            "Remove timeout from single_instance_task. The lease is then renewed during the run.",
        )
    if not isinstance(lease, int | float) or (limit or math.inf) <= lease:
        return None  # renewed, or longer than the task can run
    runs = f"may run for {length(limit)}" if limit else "has no time limit"
    return warn(
        "leases",
        f"{name} {runs}, but its lease ends after {length(lease)}",
        "Remove timeout from single_instance_task, so that the lease is renewed. Or set a "
        f"time_limit below {length(lease)} on the task.",
    )
