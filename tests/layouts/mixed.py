"""Processes that take one lock in turns, each waiting in its own way, and what they must not do."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.protocol.waiting import WAITING_SCHEMES
from tests.tools import Child, eventually

KINDS = WAITING_SCHEMES
"""How workers wait."""
WORKER = """
    import json, random
    from django.test import override_settings
    settings, name, kind, path = json.loads(sys.argv[1]), *sys.argv[2:]
    override_settings(LOCKS=settings).enable()
    say("ready")
    with open(path, "a") as log:
        while True:
            held = lock(name, timeout=3, wait=kind)
            held.acquire()
            hold = {"began": time.monotonic(), "fence": held.fence}
            time.sleep(random.uniform(0, 0.004))
            ended = time.monotonic()
            if held.remaining > 0:  # by its own clock it was the only one all that time
                log.write(json.dumps(hold | {"ended": ended}) + "\\n")
                log.flush()
            try:
                held.release()
            except LockLost:
                pass
"""


class Worker:
    """A process that takes the lock again and again."""

    def __init__(self, kind: str, name: str, settings: dict[str, Any], path: Path) -> None:
        self.kind = kind
        self.path = path
        path.touch()
        self.child = Child(WORKER, json.dumps(settings), name, kind, str(path))

    @property
    def holds(self) -> list[dict[str, float]]:
        """Its holds, with their fences."""
        whole = self.path.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def kill(self) -> None:
        self.child.__exit__()


class Crew:
    """Workers of each kind on one lock."""

    def __init__(self, name: str, settings: dict[str, Any], directory: Path) -> None:
        self._made = itertools.count()
        self._make = lambda kind: Worker(
            kind, name, settings, directory / f"{kind}-{next(self._made)}"
        )
        self.everybody: list[Worker] = []
        self.alive: list[Worker] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.alive:
            worker.kill()

    def hire(self, *kinds: str) -> None:
        hired = [self._make(kind) for kind in kinds]
        self.everybody += hired
        self.alive += hired
        for worker in hired:
            assert worker.child.hear() == "ready"

    def replace(self, worker: Worker) -> None:
        """Kill a worker, and start another of its kind."""
        worker.kill()
        self.alive.remove(worker)
        self.hire(worker.kind)

    def all_go_on(self) -> None:
        """Wait until each living worker has held the lock again."""
        before = {worker: len(worker.holds) for worker in self.alive}
        for worker, count in before.items():
            eventually(
                lambda worker=worker, count=count: len(worker.holds) > count,
                f"{worker.kind} starves",
            )

    def shares(self, turns: int) -> dict[str, int]:
        """Return how often each held the lock while the busiest did so ``turns`` times."""
        before = {worker: len(worker.holds) for worker in self.alive}

        def gained() -> dict[str, int]:
            return {worker.path.name: len(worker.holds) - before[worker] for worker in self.alive}

        eventually(lambda: max(gained().values()) >= turns)
        return gained()

    def one(self, kind: str, doing: str, backend: BaseLockBackend, name: str) -> Worker:
        """Return a worker of this kind that is ``waiting`` for the lock, or ``holding`` it."""

        def seen() -> Worker | None:
            if doing == "waiting":
                pids = {waiter.pid for waiter in backend.waiting(name)}
            else:
                holder = backend.holder(name)
                pids = {holder.pid} if holder else set()
            return next(
                (item for item in self.alive if item.kind == kind and item.child.pid in pids), None
            )

        found: Worker = eventually(seen, f"{kind} {doing}")
        return found

    def check(self) -> int:
        """Check that holds do not overlap and that fences rise; return the number of holds."""
        holds = sorted(
            (hold for worker in self.everybody for hold in worker.holds),
            key=lambda hold: hold["began"],
        )
        for one, other in itertools.pairwise(holds):
            assert one["ended"] <= other["began"], f"two holders: {one} {other}"
            assert one["fence"] < other["fence"], f"fence went back: {one} {other}"
        return len(holds)
