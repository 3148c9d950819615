"""Settings of the site in the runbook: one alias, whose long holds are marked, and no admin."""

from __future__ import annotations

from tests.settings import *  # noqa: F403 - as settings modules are extended
from tests.settings import LOCKS as TESTED
from tests.settings import server_url

CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
INSTALLED_APPS = ["django_redis_lock"]
LOCKS = {
    "default": {
        **TESTED["default"],
        "LOCATION": server_url(),
        "TIMEOUT": 600,  # no renewal notices the release before the holder is killed
        "OPERATORS": {"WARN_AFTER": {"import:*": 0.1}},
    }
}
