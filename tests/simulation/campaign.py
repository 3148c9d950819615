"""Plays many schedules, on all cores."""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.simulation.layouts import LAYOUTS
from tests.simulation.product import simulated
from tests.simulation.schedules import Chance, play

CHUNK = 10
"""How many schedules a process plays before it reports."""
Job = tuple[str, int, int]
"""A layout, the first seed, and how many."""


@dataclass
class Tally:
    layout: str
    schedules: int = 0
    steps: int = 0
    expected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, int] = field(default_factory=dict)
    """The seed of a schedule in which it happened, for each thing that is expected."""
    failures: list[tuple[int, str]] = field(default_factory=list)
    """Seeds, and what was broken."""

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        self.expected += other.expected
        self.examples = other.examples | self.examples
        self.failures += other.failures


def run(
    layouts: Sequence[str], schedules: int, seed: int, jobs: int, *, until_failure: bool = False
) -> dict[str, Tally]:
    """Play so many schedules, shared by the layouts; Ctrl-C ends it early."""
    tallies = {name: Tally(name) for name in layouts}
    gc.freeze()  # so that the processes collect what schedules leave, and nothing else
    with (
        multiprocessing.get_context("fork").Pool(jobs, _leave_interrupts) as pool,
        contextlib.suppress(KeyboardInterrupt),
    ):
        for tally in pool.imap_unordered(_play_some, _jobs(layouts, schedules, seed)):
            tallies[tally.layout].add(tally)
            if until_failure and tally.failures:
                break
    return tallies


def _jobs(layouts: Sequence[str], schedules: int, seed: int) -> Iterator[Job]:
    """Yield the layouts in turn, so that a campaign that is broken off has played all of them."""
    each = -(-schedules // len(layouts))
    for first, layout in itertools.product(range(0, each, CHUNK), layouts):
        yield layout, seed * 1_000_000_000 + first, min(CHUNK, each - first)


def _leave_interrupts() -> None:
    """Leave Ctrl-C, which reaches all processes, to the one that started the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _play_some(job: Job) -> Tally:
    name, first, number = job
    tally = Tally(name)
    gc.disable()  # which objects are gone must not depend on when it runs
    with simulated():
        for seed in range(first, first + number):
            verdict = play(LAYOUTS[name], Chance(seed))
            failures = [(seed, verdict.failure)] if verdict.failure else []
            examples = dict.fromkeys(verdict.expected, seed)
            tally.add(Tally(name, 1, verdict.steps, verdict.expected, examples, failures))
    gc.collect()
    return tally
