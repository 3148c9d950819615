"""Settings of the site in the runbook: one alias, whose long holds are marked, and no admin."""

from __future__ import annotations

from tests.settings import *  # noqa: F403 - as settings modules are extended
from tests.settings import LOCKS as TESTED

INSTALLED_APPS = ["django_redis_lock"]
LOCKS = {
    "default": {
        **TESTED["default"],
        "TIMEOUT": 600,  # no renewal notices the release before the holder is killed
        "OPERATORS": {"WARN_AFTER": {"import:*": 0.1}},
    }
}
