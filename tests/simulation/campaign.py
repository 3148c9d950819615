"""Plays many schedules, on all cores."""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.simulation.choices import Chance
from tests.simulation.layouts import LAYOUTS
from tests.simulation.product import simulated
from tests.simulation.schedules import play

TELL_EVERY = 10.0
"""Seconds."""
CHUNK = 10
"""How many schedules a process plays before it reports."""
Job = tuple[str, int, int]
"""A layout, the first seed, and how many."""


@dataclass
class Tally:
    """What came of the schedules of one layout."""

    layout: str
    schedules: int = 0
    steps: int = 0
    seconds: float = 0.0
    """Of all processes together."""
    expected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, int] = field(default_factory=dict)
    """The seed of a schedule in which it happened, for each thing that is expected."""
    failures: list[tuple[int, str]] = field(default_factory=list)
    """Seeds, and what was broken."""

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        self.seconds += other.seconds
        self.expected += other.expected
        self.examples = other.examples | self.examples
        self.failures += other.failures


def run(
    layouts: Sequence[str],
    schedules: int,
    seed: int,
    jobs: int,
    *,
    until_failure: bool = False,
) -> dict[str, Tally]:
    """Play so many schedules, shared by the layouts, and return what came of them.

    It tells at times how far it is. Ctrl-C ends it early.
    """
    tallies = {name: Tally(name) for name in layouts}
    began = told = time.monotonic()
    gc.freeze()  # so that the processes collect what schedules leave, and nothing else
    with (
        multiprocessing.get_context("fork").Pool(jobs, _leave_interrupts) as pool,
        contextlib.suppress(KeyboardInterrupt),
    ):
        for tally in pool.imap_unordered(_play_some, _jobs(layouts, schedules, seed)):
            tallies[tally.layout].add(tally)
            if time.monotonic() - told > TELL_EVERY:
                told = time.monotonic()
                done = sum(each.schedules for each in tallies.values())
                failed = sum(len(each.failures) for each in tallies.values())
                rate = done / (told - began)
                print(f"{done:,} schedules, {rate:,.0f}/s, {failed} failed", flush=True)
            if until_failure and tally.failures:
                break
    return tallies


def _jobs(layouts: Sequence[str], schedules: int, seed: int) -> Iterator[Job]:
    """Yield the layouts in turn, so that a campaign that is broken off has played all of them."""
    each = -(-schedules // len(layouts))
    for first in itertools.count(0, CHUNK):
        if first >= each:
            return
        for layout in layouts:
            yield layout, seed * 1_000_000_000 + first, min(CHUNK, each - first)


def _leave_interrupts() -> None:
    """Leave Ctrl-C, which reaches all processes, to the one that started the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _play_some(job: Job) -> Tally:
    name, first, number = job
    layout = LAYOUTS[name]
    tally = Tally(name)
    began = time.monotonic()
    gc.disable()  # which objects are gone must not depend on when it runs
    with simulated():
        for seed in range(first, first + number):
            verdict = play(layout, Chance(seed))
            tally.schedules += 1
            tally.steps += verdict.steps
            tally.expected += verdict.expected
            tally.examples = dict.fromkeys(verdict.expected, seed) | tally.examples
            if verdict.failure:
                tally.failures.append((seed, verdict.failure))
    gc.collect()
    tally.seconds = time.monotonic() - began
    return tally
