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
NAMES = ("anvil", "bellows", PASSED := "crucible", READ := "ledger", PERMITS := "tongs")
"""Of locks; one is passed on with tickets, one has readers and writers, and one is a semaphore."""
SHARED: dict[str, list[dict[str, Any]]] = {
    READ: [{"shared": True}],
    PERMITS: [{"limit": 2}, {"limit": 3}],
}
"""How callers share them; some take them alone, too."""
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

    def offer(self, ticket: str, process: int) -> None:
        """Let another process find a ticket."""
        (Path(self.directory) / f"ticket-{process}-{ticket}").touch()

    def find_ticket(self, process: int) -> str:
        """Return another's ticket, which others may find at the same time; empty without one."""
        for path in Path(self.directory).glob("ticket-*"):
            _, offered_by, ticket = path.name.split("-")
            if offered_by != str(process):
                path.unlink(missing_ok=True)
                return ticket
        return ""

    def dumps(self) -> str:
        """Return the plan as text, for the command line of a worker."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        return cls(**json.loads(text))
