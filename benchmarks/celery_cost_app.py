"""The tasks by which the cost of `single_instance_task` is measured: they do nothing."""

import os

from celery import Celery
from celery.signals import worker_ready

PORT = "CELERY_COST_PORT"
"""The environment variable with the port of the server."""
BROKER, RESULTS, LOCKS = 1, 2, 3
"""The databases of the server."""


@worker_ready.connect
def say_so(**kwargs: object) -> None:
    """Say what Celery itself says at a level that would log every task as well."""
    print("The worker is ready.", flush=True)


def _url(database: int) -> str:
    return f"redis://127.0.0.1:{os.environ[PORT]}/{database}"


def make_app() -> Celery:
    """Return an app with the same task guarded and unguarded."""
    import django
    from django.conf import settings

    settings.configure(
        INSTALLED_APPS=["django_redis_lock"],
        LOCKS={
            "default": {
                "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend",
                "LOCATION": _url(LOCKS),
            }
        },
        USE_TZ=True,
    )
    django.setup()

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
    """Make the app when the worker asks for it; the benchmark imports the module without it."""
    if name != "app":
        raise AttributeError(name)
    made = globals()["app"] = make_app()
    return made
