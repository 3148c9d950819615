"""Settings of the workers whose deaths are tested: leases that end soon, a way over a proxy."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403 - as settings modules are extended
from tests.settings import LOCKS, PORT, REDIS

PROXY = "LOCK_TEST_PROXY_PORT"
"""The environment variable that names the port of a proxy."""

LOCKS = {
    **LOCKS,
    "default": {**LOCKS["default"], "BACKEND": "tests.workers.backend.ToldLockBackend"},
    "brief": {"BACKEND": REDIS, "LOCATION": "locks", "TIMEOUT": 2.5},
    "proxied": {
        "BACKEND": REDIS,
        "LOCATION": f"redis://127.0.0.1:{os.environ.get(PROXY, PORT)}/0",
        "KEY_PREFIX": "proxied",
    },
}
"""``brief`` names the same locks as ``default``, by which tests look at them."""
