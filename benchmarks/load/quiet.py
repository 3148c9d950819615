"""Whether the machine does anything else than the run, before it and during it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.frame.processes import CLOCK, family_cpu_seconds

LOAD, OTHERS, STOLEN = 0.25, 0.05, 0.02
"""A quiet machine has no higher load average for each CPU, and no larger share of its processor
time goes to other processes, or is stolen: given to other machines by the one that hosts it."""
PROBE = 2.0
"""For how many seconds the machine is looked at before the run."""


@dataclass(frozen=True)
class Reading:
    """What the processors have done so far, in seconds."""

    at: float
    busy: float
    stolen: float
    own: float

    @classmethod
    def now(cls) -> "Reading":
        with Path("/proc/stat").open() as file:
            fields = [int(field) / CLOCK for field in file.readline().split()[1:]]
        # user, nice, system, idle, iowait, irq, softirq, steal
        return cls(time.monotonic(), sum(fields[:3]), fields[7], family_cpu_seconds())


@dataclass(frozen=True)
class Span:
    """Processor time between two readings, in seconds."""

    all: float
    others: float
    stolen: float

    @classmethod
    def between(cls, start: Reading, end: Reading) -> "Span":
        others = (end.busy - start.busy) - (end.own - start.own)
        processors = (end.at - start.at) * (os.cpu_count() or 1)
        return cls(processors, max(0.0, others), end.stolen - start.stolen)


class Watch:
    """Looks at the machine before a run and during each of its stages."""

    def __init__(self) -> None:
        self.load = os.getloadavg()[0]
        self._before: list[Span] = []
        self._during: list[Span] = []

    def before(self) -> None:
        start = Reading.now()
        time.sleep(PROBE)
        self._before.append(Span.between(start, Reading.now()))

    @contextmanager
    def during(self) -> Iterator[None]:
        """Watch a stage whose services run from the beginning to the end of this context."""
        start = Reading.now()
        try:
            yield
        finally:
            self._during.append(Span.between(start, Reading.now()))

    def found(self) -> dict[str, Any]:
        return {
            "load_before": round(self.load, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "cpus": os.cpu_count(),
            "before": _shares(self._before),
            "during": _shares(self._during),
        }


def _shares(spans: list[Span]) -> dict[str, float]:
    """Return shares of the processor time: of all spans, and of the worst."""
    if not spans:
        return {}
    whole = sum(span.all for span in spans)
    return {
        "others": sum(span.others for span in spans) / whole,
        "stolen": sum(span.stolen for span in spans) / whole,
        "most_others": max(span.others / span.all for span in spans),
        "most_stolen": max(span.stolen / span.all for span in spans),
    }


def noise(found: dict[str, Any]) -> list[str]:
    """Return what says that the machine was not quiet."""
    reasons = []
    if found["load_before"] > LOAD * found["cpus"]:
        reasons.append(f"its load before the run was {found['load_before']}")
    for when in ("before", "during"):
        shares = found[when]
        if shares and shares["others"] > OTHERS:
            reasons.append(f"other processes used {shares['others']:.1%} {when} the run")
        if shares and shares["stolen"] > STOLEN:
            reasons.append(f"{shares['stolen']:.1%} was stolen {when} the run")
    return reasons


def sentence(found: dict[str, Any]) -> str:
    """Say whether the machine was quiet, and how that is known."""
    reasons = noise(found)
    verdict = f"**not quiet: {'; '.join(reasons)}**" if reasons else "quiet"
    before, during = found["before"], found["during"]
    return (
        f"The machine was {verdict}. Its load was {found['load_before']} before the run, and "
        f"{found['load_after']} at the end, with the run's own. Of its processor time, other "
        f"processes used {before['others']:.1%} before the run and {during['others']:.1%} during "
        f"it (at most {during['most_others']:.1%} in one part); {before['stolen']:.1%} and "
        f"{during['stolen']:.1%} (at most {during['most_stolen']:.1%}) were stolen."
    )
