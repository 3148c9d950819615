"""Settings of the workers: further aliases of LOCKS."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403 - as settings modules are extended
from tests.settings import LOCKS, PORT, REDIS

PROXY = "LOCK_TEST_PROXY_PORT"
"""The environment variable with the port of a proxy to the server, if a test has one."""

LOCKS = {
    **LOCKS,
    "brief": {"BACKEND": REDIS, "LOCATION": "locks", "TIMEOUT": 2.5},
    "proxied": {
        "BACKEND": REDIS,
        "LOCATION": f"redis://127.0.0.1:{os.environ.get(PROXY, PORT)}/0",
        "KEY_PREFIX": "proxied",
    },
}
"""``brief`` has the locks of ``default``, with a short lease."""
