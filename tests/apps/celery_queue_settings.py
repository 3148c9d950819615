"""Settings of the worker of ``celery_queue_app``: one alias more, whose server is down."""

from tests.settings import *  # noqa: F403 - all of them, for Django
from tests.settings import LOCKS, REDIS

LOCKS = {**LOCKS, "closed": {"BACKEND": REDIS, "LOCATION": "redis://127.0.0.1:1/0"}}
