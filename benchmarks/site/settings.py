"""Settings of a site on 127.0.0.1: the shared ones, and those in the environment."""

import json
import os

from benchmarks.site import SETTINGS

SECRET_KEY = "for benchmarks only"  # noqa: S105 - it signs nothing of value
ALLOWED_HOSTS = ["127.0.0.1"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

globals().update(json.loads(os.environ[SETTINGS]))
