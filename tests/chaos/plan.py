"""What the callers of a run ask for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

FIXED_LEASES = (0.3, 0.5, 0.8, 1.2, 2.0)
"""Seconds; short, so that many of them end while a caller holds or waits."""
RENEWED_LEASES = (1.0, 1.5, 2.0)
"""Seconds; a renewal has a third of it, which a busy machine must be able to give."""
DEFAULT_LEASE = 1.5
"""Seconds; what the backend gives and renews if a caller names no lease."""
NAMES = ("anvil", "bellows", "crucible")
QUIET = "quench"
"""A lock for a few callers who use no other: no newcomer notices that it is free, or reads what is
meant for its waiters."""
FLEETING = "spark"
"""A lock mostly free, for callers who give up: their first call often takes it."""
ALL_NAMES = (*NAMES, QUIET, FLEETING)
THREADS = "threads"
TASKS = "tasks"


@dataclass(frozen=True)
class Role:
    """What a process is for: how many callers of which kind, and whether of the quiet lock."""

    kind: str
    callers: int
    quiet: bool = False


ALONE = (Role(THREADS, 1, quiet=True), Role(TASKS, 1, quiet=True))
"""Alone in their process, so no other caller wakes them or reads for them."""


@dataclass(frozen=True)
class Plan:
    """One run. Its phases are signed by files in its directory, which all processes see."""

    directory: str
    seed: int
    settings: dict[str, Any]
    """The Django settings of the callers, without INSTALLED_APPS."""
    quiet_leases: tuple[float, ...]
    """Seconds, on the quiet lock; the long one shows a waiter that looks only when it ends."""

    @property
    def longest_lease(self) -> float:
        """Seconds, extensions included."""
        return longest_lease(self.quiet_leases)

    def sign(self, phase: str) -> Path:
        """Return the file that exists when a phase has begun: calm (no more faults) or stop."""
        return Path(self.directory) / phase

    def dumps(self) -> str:
        """Return the plan as text, for the command line of a worker."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        return cls(**json.loads(text))


def longest_lease(quiet_leases: tuple[float, ...]) -> float:
    """Return the longest lease (s) of a run, extensions included."""
    return 1.5 + max(*quiet_leases, *FIXED_LEASES)
