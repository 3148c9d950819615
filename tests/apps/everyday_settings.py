"""Settings of commands, workers and beats on PostgreSQL."""

from __future__ import annotations

import json
import os

from tests.apps.celery.kept import *  # noqa: F403 - as settings modules are extended
from tests.apps.celery.kept import LOCKS
from tests.settings import INSTALLED_APPS as TESTED

DATABASE = "LOCK_TEST_DATABASE"
"""The environment variable with the entry of DATABASES, as JSON."""

LOCKS["default"]["TIMEOUT"] = 5
DATABASES = {"default": json.loads(os.environ.get(DATABASE, "{}"))}
INSTALLED_APPS = [*TESTED, "django_celery_beat", "django_tasks_db"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
