"""Its settings: one line switches the traces of locks on."""

from __future__ import annotations

from tests.settings import *  # noqa: F403 - as settings modules are extended
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "django_redis_lock.contrib.opentelemetry"]
MIDDLEWARE: list[str] = []
ROOT_URLCONF = "tests.apps.traced.site"
ALLOWED_HOSTS = ["*"]
