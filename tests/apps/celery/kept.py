"""Settings of workers whose lock server is one of the test's own, which keeps its data."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403 - as settings modules are extended
from tests.settings import PORT, REDIS

KEPT = "LOCK_TEST_KEPT_PORT"
"""The environment variable with its port."""

LOCKS = {
    "default": {"BACKEND": REDIS, "LOCATION": f"redis://127.0.0.1:{os.environ.get(KEPT, PORT)}/0"}
}
