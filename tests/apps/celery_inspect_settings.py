"""Settings of the worker of ``tests.apps.celery_inspect_app``: one alias more, behind a proxy."""

import os

from tests.settings import *  # noqa: F403 - all of them, for Django
from tests.settings import LOCKS, REDIS

LOCKS = {
    **LOCKS,
    "silent": {
        "BACKEND": REDIS,
        "LOCATION": f"redis://127.0.0.1:{os.environ.get('INSPECT_PROXY', '1')}/0",
    },
}
