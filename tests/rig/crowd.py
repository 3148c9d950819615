"""A process in which many wait for one lock: ``python -m tests.rig.crowd PLAN NAME NUMBER``."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tests.rig.plan import Plan
from tests.rig.worker import set_up

LEASE = 30.0
"""Seconds; far longer than a process that does not run may delay anything."""


def waits(plan: Plan, name: str) -> Path:
    """Return the file that exists when all of a crowd wait."""
    return Path(plan.directory) / f"{name}-waits"


def main(plan: Plan, name: str, number: int) -> None:
    """Wait, and release the lock at once when it is granted; end when all have had it."""
    set_up(plan)
    from django_redis_lock import lock
    from tests.tools import waiters

    def take() -> None:
        with lock(name, timeout=LEASE):
            pass

    threads = [threading.Thread(target=take) for _ in range(number)]
    for thread in threads:
        thread.start()
    while waiters(name) < number:
        threading.Event().wait(0.05)
    waits(plan, name).touch()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(Plan.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
