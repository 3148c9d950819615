"""The tasks that show the cost of `single_instance_task`: they do nothing."""

import os

from celery import Celery
from celery.signals import worker_ready

from benchmarks.site import BACKEND, configure

PORT = "CELERY_COST_PORT"
"""The environment variable with the port of the server."""
BROKER, RESULTS, LOCKS = 1, 2, 3
"""The databases of the server."""


@worker_ready.connect
def print_ready(**kwargs: object) -> None:
    """Print what Celery logs only at a level at which it also logs every task."""
    print("The worker is ready.", flush=True)


def _url(database: int) -> str:
    return f"redis://127.0.0.1:{os.environ[PORT]}/{database}"


def make_app() -> Celery:
    configure(LOCKS={"default": {"BACKEND": BACKEND, "LOCATION": _url(LOCKS)}})

    from django_redis_lock.celery import single_instance_task

    app = Celery("cost", broker=_url(BROKER), backend=_url(RESULTS))
    app.conf.broker_connection_retry_on_startup = True

    def nothing(number: int) -> None:
        """Do nothing."""

    each = {"key": "cost:{number}"}
    guards = {
        "plain": None,
        "guarded": single_instance_task(**each),
        "fixed": single_instance_task(60, **each),
        "queued": single_instance_task(**each, scope="queue_and_run"),
        "named": single_instance_task,
    }
    for name, guard in guards.items():
        task = app.task(name=name)(nothing)
        if guard is not None:
            guard(task)
    return app


def __getattr__(name: str) -> Celery:
    """Make the app when the worker asks for it; the benchmark imports this module without it."""
    if name != "app":
        raise AttributeError(name)
    made = globals()["app"] = make_app()
    return made
