"""The Celery app of one guard, for the scenarios and for their worker."""

import os
from typing import Any

from celery import Celery

from benchmarks.celery_guards.contenders import GUARDS, LOCKS_SETTING, SLUG, NoSuchOptionError
from benchmarks.celery_guards.diary import BROKER, LOCKS, OTHER_BROKER, RESULTS, url
from benchmarks.celery_guards.tasks import KINDS
from benchmarks.site import configure


def make_app() -> Celery:
    """Return the app of the guard that the environment names, on the server that it names."""
    configure(
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url(LOCKS)}},
        LOCKS={
            alias: {**setting, "LOCATION": url(LOCKS)} for alias, setting in LOCKS_SETTING.items()
        },
    )
    other = os.environ.get(OTHER_BROKER)
    app = Celery("guards", broker=other or url(BROKER), backend=url(RESULTS))
    app.conf.update(broker_connection_retry_on_startup=True, task_default_queue="guards")
    if other:
        app.conf.task_default_queue_type = "quorum"  # which RabbitMQ delays itself behind a topic
        app.conf.task_default_exchange_type = "topic"
        app.conf.broker_transport_options = {"confirm_publish": True}
    guard = GUARDS[os.environ[SLUG]]()
    guard.set_up(app)
    for name, kind in KINDS.items():
        try:
            guard.task(app, name, kind.body, kind.wanted, **kind.celery)
        except NoSuchOptionError:
            continue  # the scenario that needs it reports this

    @app.task(name="callback")
    def callback(results: list[Any]) -> int:
        return len(results)

    return app


app = make_app()
