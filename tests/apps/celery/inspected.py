"""Tasks that a worker is asked about, and whose queue is purged."""

from __future__ import annotations

from typing import Any

from django_redis_lock.celery import inspecting, single_instance_task
from tests.apps.celery.app import app
from tests.tools.celery_worker import events, tell_and_wait

inspecting.TIME_FOR_KEYS = 2.0  # a busy machine takes its time


def hanging_key(what: str) -> str:
    """Return the key when the test says so."""
    with events() as client:
        client.rpush("key asked", what)
        client.blpop([f"key:{what}"], timeout=60)
    return f"hanging:{what}"


def broken_key(what: str) -> str:
    """Fail."""
    raise LookupError(what)


def _task(name: str, **options: Any) -> Any:
    options = {"key": name + ":{what}", **options}
    return app.task(name=name, shared=False)(single_instance_task(**options)(_wait))


def _wait(what: str) -> str:
    """Run until the test says go."""
    return tell_and_wait(what)


plain = _task("plain")
waiting = _task("waiting", key="plain:{what}", on_conflict="wait")
again = _task("again", key="plain:{what}", on_conflict="retry", countdown=3600)
queued = _task("queued", scope="queue")
throughout = _task("throughout", scope="queue_and_run")
several = _task("several", concurrency=2, on_conflict="wait")
silent = _task("silent", using="proxied")
hanging = _task("hanging", key=hanging_key)
broken = _task("keyless-one", key=broken_key)
unguarded = app.task(name="unguarded", shared=False)(_wait)
