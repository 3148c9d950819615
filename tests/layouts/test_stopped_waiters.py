"""Waiters whose process is stopped, on backends where nothing is handed off: who looks, has it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings

from django_redis_lock import lock, locks
from example_project.embedded import EmbeddedServer
from tests.tools import Child
from tests.tools.quorums import in_use, started

WAITERS = 100
PROMISED = 1.5
"""Seconds for which stopped waiters delay a healthy one at the most."""
WAIT = """
    import json
    from django.conf import settings
    from tests.tools import eventually, waiters
    settings.LOCKS = {"default": json.loads(sys.argv[1])}
    name, number = sys.argv[2], int(sys.argv[3])
    def wait():
        with lock(name, timeout=30):
            say("got")
    threads = [threading.Thread(target=wait, daemon=True) for _ in range(number)]
    for thread in threads: thread.start()
    eventually(lambda: waiters(name) == number)
    say("waiting")
    for thread in threads: thread.join()
"""


@contextmanager
def redlock() -> Iterator[dict[str, Any]]:
    """Three servers of which a majority decides."""
    with started(3) as quorum, in_use(quorum, "waited") as quorum:
        yield quorum.entry(SERVER_TIMEOUT=2)


@contextmanager
def getset() -> Iterator[dict[str, Any]]:
    """A server without scripts."""
    with EmbeddedServer() as server:
        entry = {
            "BACKEND": "django_redis_lock.backends.getset.GetSetLockBackend",
            "LOCATION": server.url(),
        }
        with override_settings(LOCKS={**settings.LOCKS, "waited": entry}):
            yield entry
            locks.reset()


@pytest.mark.parametrize("layout", [redlock, getset])
def test_stopped_waiters_do_not_delay_a_healthy_one(name: str, layout: Any) -> None:
    """However many waiters a stopped process has, a healthy one gets the lock at once."""
    with layout() as entry:
        held = lock(name, timeout=60, using="waited")
        held.acquire()
        arguments = json.dumps(entry), name
        with (
            Child(WAIT, *arguments, str(WAITERS)) as stopped,
            Child(WAIT, *arguments, "1") as healthy,
        ):
            assert stopped.hear() == healthy.hear() == "waiting"
            stopped.stop()
            released_at = time.monotonic()
            held.release()
            assert healthy.hear() == "got"
            assert time.monotonic() - released_at < PROMISED
            assert healthy.end() == 0
            stopped.go_on()  # they are served when they come back
            assert stopped.hear() == "got"
