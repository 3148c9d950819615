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
LONGEST_LEASE = 3.5
"""Seconds, extensions included."""
ALONE = ("anvil", "bellows")
"""Locks that one holds at a time."""
PASSED = "crucible"
"""One that is passed on with tickets, also to other processes."""
READ, PERMITS = SHARED = ("ledger", "tongs")
"""One with readers and writers; a semaphore, which some take alone, too."""
LIMITS = (2, 3)
"""Of the semaphore, by its callers."""
NAMES = (*ALONE, PASSED, *SHARED)
THREADS, TASKS = "threads", "tasks"
"""What the callers of a process are."""
CALLERS = 5
"""How many callers a process has."""


@dataclass(frozen=True)
class Plan:
    """One run. Its end is signed by a file in its directory, which all processes see."""

    directory: str
    seed: int
    settings: dict[str, Any]
    """The Django settings of the callers, without INSTALLED_APPS."""

    @property
    def stop(self) -> Path:
        """The file that exists when the callers are to finish."""
        return Path(self.directory) / "stop"

    @property
    def tickets(self) -> Path:
        """The directory of the tickets that nobody has used yet."""
        return Path(self.directory) / "tickets"

    def offer(self, ticket: str) -> None:
        (self.tickets / ticket).touch()

    def find_ticket(self) -> str:
        """Return a ticket, which others may find at the same time; empty if there is none."""
        for path in self.tickets.iterdir():
            path.unlink(missing_ok=True)
            return path.name
        return ""

    def dumps(self) -> str:
        """Return the plan as text, for the command line of a worker."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        return cls(**json.loads(text))
