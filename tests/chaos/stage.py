"""What a fault works on: the site, the crew, the dice, and the record of what was done."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from redis.exceptions import RedisError

from django_redis_lock import Holder, locks
from django_redis_lock.exceptions import LockError
from example_project.embedded import EmbeddedServer
from tests.chaos.crew import Crew, Worker
from tests.chaos.heartbeat import BEAT, PATIENCE, Heartbeat, Pulse
from tests.chaos.plan import Plan
from tests.chaos.sites import TIMEOUT, Site


class Stage:
    """Where faults are played."""

    def __init__(
        self,
        plan: Plan,
        site: Site,
        crew: Crew,
        heart: Heartbeat,
        pulse: Pulse,
    ) -> None:
        self.plan = plan
        self.site = site
        self.crew = crew
        self.heart = heart
        self.recorder = heart.recorder
        self.dice = random.Random(plan.seed)
        self._pulse = pulse

    def any_server(self) -> EmbeddedServer:
        return self.dice.choice(self.site.servers)

    def rest(self, shortest: float, longest: float) -> None:
        threading.Event().wait(self.dice.uniform(shortest, longest))

    def served_again(self) -> None:
        """Wait until locks are available again after a server was broken."""
        self.rest(2 * BEAT + TIMEOUT / 2, TIMEOUT)  # until what was under way is answered or lost
        broken = monotonic()
        self.heart.until(lambda: self._pulse.good_at > broken)

    @contextlib.contextmanager
    def outage(self, what: str) -> Iterator[None]:
        """Record that callers may not be served from the block until the servers answer again.

        If one server fails that is not needed, only votes may be missing.
        """
        since = monotonic()
        try:
            yield
        finally:
            ended = monotonic()
            self.heart.until(lambda: self._pulse.good_at > ended)
            needed = len(self.site.servers) <= self.site.needed
            self.recorder.note("outage" if needed else "vote_missing", what=what, since=since)

    def all_began(self) -> None:
        """Wait until every process uses locks; record which do not."""

        def idle() -> set[int]:
            histories = Path(self.plan.directory).glob("history-*.jsonl")
            served = [path for path in histories if b'"acquired"' in path.read_bytes()]
            begun = {int(path.stem.split("-")[1]) for path in served}
            return {worker.number for worker in self.crew.workers} - begun

        if not self.heart.until(lambda: not idle()):
            for number in sorted(idle()):
                trace = f"it was served no lock for {PATIENCE:g} s"
                self.recorder.note("stuck", worker=number, trace=trace)

    def holder(self) -> tuple[Worker, Holder] | None:
        """Return a worker that holds a lock, and which lock; if the backend can tell."""
        try:
            holders = list(locks["default"].holders())
        except (LockError, RedisError, NotImplementedError):
            return None
        found = [(worker, item) for item in holders for worker in self.crew.running(item.pid)]
        return self.dice.choice(found) if found else None
