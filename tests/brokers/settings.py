"""Django settings of these tests and their workers: a database and a cache that they share."""

from __future__ import annotations

import os
import tempfile

from tests.settings import *  # noqa: F403 - as settings modules are extended
from tests.settings import CACHES, INSTALLED_APPS, server_url

_FOLDER = "LOCK_TEST_DATABASE_FOLDER"
if _FOLDER not in os.environ:
    os.environ[_FOLDER] = tempfile.mkdtemp(prefix="results-")
DATABASE_FOLDER = os.environ[_FOLDER]
"""Chosen here, so that workers agree on it; the tests remove it."""

BROKER = "LOCK_TEST_BROKER"
"""The environment variable that tells a worker its broker."""

INSTALLED_APPS = [*INSTALLED_APPS, "django_celery_results"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{DATABASE_FOLDER}/results.sqlite3",
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
        },
    }
}
CACHES = {
    **CACHES,
    "results": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server_url(13)},
}
