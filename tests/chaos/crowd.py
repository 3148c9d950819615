"""A process in which many wait for one lock: ``python -m tests.chaos.crowd PLAN NAME NUMBER``."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import django
from django.conf import settings

from tests.chaos.plan import Plan

LEASE = 30.0
"""Seconds; far longer than anybody may have to wait because of a process that does not run."""


def ready(plan: Plan, name: str) -> Path:
    """Return the file that is there when all of a crowd wait."""
    return Path(plan.directory) / f"{name}-waits"


def main(plan: Plan, name: str, number: int) -> None:
    """Wait, and release the lock at once when it is there; end when all have had it."""
    settings.configure(**plan.settings(), INSTALLED_APPS=["django_redis_lock"])
    django.setup()
    from django_redis_lock import lock, locks

    def take() -> None:
        with lock(name, timeout=LEASE):
            pass

    threads = [threading.Thread(target=take) for _ in range(number)]
    for thread in threads:
        thread.start()
    watches = locks["default"].hub._watches
    while name not in watches or watches[name].members < number:
        threading.Event().wait(0.05)
    ready(plan, name).touch()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(Plan.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
