"""One run from start to end: servers, callers, the faults that are played, and a last look."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

from redis.exceptions import RedisError

from django_redis_lock import Holder, lock, locks
from django_redis_lock.exceptions import LockError, LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.chaos.crew import Crew, Worker
from tests.chaos.heartbeat import PATIENCE, Heartbeat, Pulse
from tests.chaos.history import Recorder
from tests.chaos.plan import LONGEST_LEASE, NAMES, TASKS, THREADS, Plan
from tests.chaos.sites import Site
from tests.chaos.worker import set_up

KINDS = (THREADS, THREADS, TASKS, TASKS)
"""The processes of a run."""
SWEEP_SECONDS = 5.0
"""Seconds after its lease within which an unused lock must be free."""
SETTLING = 1.0
"""Seconds before the first fault, and after the last one."""
LONGEST_PACE = 1.5
"""Seconds between two faults at the most."""
OVERTIME = 240.0
"""Seconds by which a run may be longer until each fault was played: sentinels need 20 for one."""


class Stage:
    """Where faults are played: the site, the crew, the dice, and the record of what was done."""

    def __init__(self, plan: Plan, site: Site, crew: Crew, heart: Heartbeat, pulse: Pulse) -> None:
        self.plan = plan
        self.site = site
        self.crew = crew
        self.heart = heart
        self.recorder = heart.recorder
        self.dice = random.Random(plan.seed)
        self._pulse = pulse
        self._limits = itertools.count(1)

    def play(self, faults: tuple[Fault, ...], seconds: float) -> None:
        """Play the faults like cards: each comes once before any comes again, and all come once."""
        end = monotonic() + seconds
        pace = min(LONGEST_PACE, seconds / 15)
        deck: list[Fault] = []
        missing = set(faults)
        while (now := monotonic()) < end or (missing and now < end + OVERTIME):
            if not deck:
                deck = list(faults)
                self.dice.shuffle(deck)
            fault = deck.pop()
            try:
                played = fault(self) is not False
            except (RedisError, LockUnavailable):
                played = False  # one of the earlier faults met our own connection
            if played:
                self.recorder.note("fault", what=name_of(fault))
                missing.discard(fault)
            else:
                deck.insert(0, fault)
            self.rest(0.1 * pace, pace)

    def any_server(self) -> EmbeddedServer:
        return self.dice.choice(self.site.servers)

    def any_holder(self) -> tuple[Worker | None, float]:
        """Return a worker that holds a lock, and the seconds left of the lease; or any worker."""
        found: list[tuple[Worker, Holder]] = []
        with contextlib.suppress(LockError, RedisError, NotImplementedError):
            holders = list(locks["default"].holders())
            found = [(one, item) for item in holders for one in self.crew.running(item.pid)]
        if not found:
            return self.any_worker(), 0.0
        worker, holder = self.dice.choice(found)
        return worker, holder.ttl or 0.0

    def any_worker(self) -> Worker | None:
        running = self.crew.running()
        return self.dice.choice(running) if running else None

    def rest(self, shortest: float, longest: float) -> None:
        threading.Event().wait(self.dice.uniform(shortest, longest))

    def set_limit(self, name: str, limit: int | None) -> None:
        """Set an operator's limit, or clear it; try again until the server has answered."""
        self.heart.until(lambda: self._limit_is_set(name, limit))

    def _limit_is_set(self, name: str, limit: int | None) -> bool:
        handle = f"{self.recorder.process}.{next(self._limits)}"
        self.recorder.note("set_limit", "invoke", handle=handle, name=name, limit=limit)
        try:
            locks["default"].set_limit(name, limit, by="chaos")
        except LockUnavailable as error:
            self.recorder.note("set_limit", handle=handle, error=str(error))
            return False
        self.recorder.note("set_limit", "ok", handle=handle)
        return True

    @contextlib.contextmanager
    def outage(self, what: str) -> Iterator[None]:
        """Record that callers may not be served, or that votes may be missing if others suffice."""
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
            served = [path for path in histories if b'"ok"' in path.read_bytes()]
            begun = {int(path.stem.split("-")[1]) for path in served}
            return {worker.number for worker in self.crew.workers} - begun

        if not self.heart.until(lambda: not idle()):
            for number in sorted(idle()):
                trace = f"it was served no lock for {PATIENCE:g} s"
                self.recorder.note("stuck", worker=number, trace=trace)

    def sweep(self) -> None:
        """Take and release every lock: each must be free in time, whatever its holders did."""
        for name in NAMES:
            swept = lock(name, timeout=5, blocking_timeout=1)
            try:
                if self.heart.until(swept.acquire, LONGEST_LEASE + SWEEP_SECONDS):
                    swept.release()
                else:
                    holder = locks["default"].holder(name)
                    self.recorder.note("left", keys=[f"the lock {name!r}, held by {holder}"])
            except LockUnavailable as error:
                self.recorder.note("failed", doing="sweep", trace=str(error))


Fault = Callable[[Stage], bool | None]
"""Breaks something; returns False if there was nothing to break just then."""


def name_of(fault: Fault) -> str:
    return fault.__name__.replace("_", " ")


def run(site: Site, plan: Plan, faults: tuple[Fault, ...], seconds: float) -> None:
    """Play faults to callers; the history stays behind. This process is good for one run."""
    set_up(plan)
    site.prepare()
    recorder = Recorder(plan.directory, 0)
    with Heartbeat(recorder) as heart, Pulse(site, recorder) as pulse:
        with Crew(plan, KINDS, heart) as crew:
            stage = Stage(plan, site, crew, heart, pulse)
            stage.all_began()
            stage.rest(SETTLING, SETTLING)
            stage.play(faults, seconds)
            crew.all_resumed()
            stage.rest(SETTLING, SETTLING)
            stage.all_began()
            plan.stop.touch()
            crew.drain()
            stage.sweep()
            crew.read_logs()
    locks.reset()
    recorder.close()
