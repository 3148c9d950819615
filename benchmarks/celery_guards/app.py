"""The Celery app of one guard, in the script and in its worker: the same tasks for each guard."""

import os
from typing import Any

from celery import Celery

from .contenders import GUARDS, LOCKS_SETTING, SLUG, NoSuchOptionError
from .diary import BROKER, LOCKS, RESULTS, url
from .tasks import KINDS


def make_app() -> Celery:
    """Return the app of the guard that the environment names, on the server that it names."""
    _set_up_django()
    app = Celery("guards", broker=url(BROKER), backend=url(RESULTS))
    app.conf.update(broker_connection_retry_on_startup=True, task_default_queue="guards")
    guard = GUARDS[os.environ[SLUG]]()
    guard.set_up(app)
    for name, kind in KINDS.items():
        try:
            guard.task(app, name, kind.body, **kind.guard, **kind.celery)
        except NoSuchOptionError:
            continue  # the scenario that wants it says so

    @app.task(name="callback")
    def callback(results: list[Any]) -> int:
        """Count what the members of a chord returned."""
        return len(results)

    return app


def _set_up_django() -> None:
    import django
    from django.conf import settings

    settings.configure(
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url(LOCKS)}},
        INSTALLED_APPS=["django_redis_lock"],
        LOCKS={
            alias: {**setting, "LOCATION": url(LOCKS)} for alias, setting in LOCKS_SETTING.items()
        },
        USE_TZ=True,
    )
    django.setup()


app = make_app()
