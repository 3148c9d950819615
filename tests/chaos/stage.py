"""Where a fault happens: the site, the crew, the dice, and the record of what was done."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

from redis.exceptions import RedisError

from django_redis_lock import Holder, locks
from django_redis_lock.exceptions import LockError
from tests.chaos.crowd import ready
from tests.chaos.plan import LONGEST_LEASE
from tests.chaos.pulse import Pulse
from tests.chaos.site import TIMEOUT, Site
from tests.soak.crew import Crew as SoakCrew
from tests.soak.crew import Worker
from tests.soak.heartbeat import BEAT
from tests.soak.history import Recorder

PATIENCE = 60.0
"""Seconds after which what is waited for is taken not to come."""
LOOK_EVERY = 0.05


class Crew(SoakCrew):
    """The workers of a run."""

    program = "tests.chaos.worker"

    @contextlib.contextmanager
    def crowd(self, name: str, number: int) -> Iterator[subprocess.Popen[bytes]]:
        """Have so many wait for a lock in a process of their own; it ends when all have had it."""
        there = ready(self._plan, name)
        arguments = (self._plan.dumps(), name, str(number))
        process = self._keeper.spawn(
            sys.executable, "-m", "tests.chaos.crowd", *arguments, cwd=Path(__file__).parents[2]
        )
        while not there.exists():
            threading.Event().wait(LOOK_EVERY)
        there.unlink()
        try:
            yield process
        finally:
            os.kill(process.pid, signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            self._keeper.stop(process, grace=0)


class Stage:
    """What a fault works on."""

    def __init__(
        self,
        site: Site,
        crew: Crew,
        recorder: Recorder,
        pulse: Pulse,
        dice: random.Random,
        directory: str,
    ) -> None:
        self.site = site
        self.crew = crew
        self.recorder = recorder
        self.dice = dice
        self._pulse = pulse
        self._directory = directory

    def rest(self, shortest: float, longest: float | None = None) -> None:
        """Let time pass."""
        longest = shortest if longest is None else longest
        threading.Event().wait(self.dice.uniform(shortest, longest))

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
        """Wait until something is so; return whether it came to be."""
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            if condition():
                return True
            self.rest(LOOK_EVERY)
        return False

    def served_again(self) -> bool:
        """Wait until locks can be had again after something was broken."""
        self.rest(2 * BEAT + TIMEOUT / 2)  # what was under way has been answered, or will not be
        broken = monotonic()
        return self.until(lambda: self._pulse.good_at > broken)

    @contextlib.contextmanager
    def outage(
        self, what: str, *, of_all: bool = False, late_grants: bool = False
    ) -> Iterator[None]:
        """Note that callers may not be served during the block, and until they are again.

        Where one server fails that is not needed, there is nothing to note.
        With ``late_grants`` a lock may have been given at the end to one who can't hear of it, so
        its lease is waited for as well.
        """
        since = monotonic()
        try:
            yield
        finally:
            ended = monotonic()
            self.until(lambda: self._pulse.good_at > ended)
            at = monotonic() + (LONGEST_LEASE if late_grants else 0.0)
            if of_all or len(self.site.servers) <= self.site.needed:
                self.recorder.note("outage", what=what, since=since, at=at)

    def unsettled(self, since: float, until: float | None = None) -> None:
        """Note that leases may have ended early since a moment."""
        at = monotonic() if until is None else until
        self.recorder.note("unsettled", since=since, at=at)

    def settled_in(self, since: float = 0.0) -> bool:
        """Wait until every caller's process was answered since a moment; note who was not."""
        missing: set[int] = set()

        def all_are() -> bool:
            nonlocal missing
            served = self._served_since(since)
            missing = {worker.number for worker in self.crew.workers} - served
            return not missing

        if self.until(all_are):
            return True
        for number in sorted(missing):
            trace = f"it was served no lock for {PATIENCE:g} s"
            self.recorder.note("stuck", worker=number, trace=trace)
        return False

    def _served_since(self, since: float) -> set[int]:
        """Return the workers of which one caller acquired a lock after a moment."""
        served = set()
        for path in Path(self._directory).glob("history-*.jsonl"):
            lines = path.read_text().splitlines()
            last = next((line for line in reversed(lines) if '"kind":"acquired"' in line), None)
            if last is not None and json.loads(last)["at"] > since:
                served.add(json.loads(last)["process"])
        return served

    def holder(self) -> tuple[Worker, Holder] | None:
        """Return a worker that holds a lock, and which."""
        try:
            holders = list(locks["default"].holders())
        except (LockError, RedisError, NotImplementedError):
            return None
        found = [(worker, item) for item in holders for worker in self.crew.running(item.pid)]
        return self.dice.choice(found) if found else None
