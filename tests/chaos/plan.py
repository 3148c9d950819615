"""The callers of a run: fewer than in the soak, of all kinds, and orderly."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any, Self

from tests.soak.plan import DEFAULT_LEASE, FIXED_LEASES, TASKS, THREADS, Role
from tests.soak.plan import Plan as SoakPlan

QUIET_LEASES = (0.6, 1.2, 2.5)
"""Seconds; a killed holder's is waited for at the end of every run."""
LONGEST_LEASE = 4.0
"""Seconds, extensions included."""
AN_HOUR = 3600.0

assert max(*FIXED_LEASES, *QUIET_LEASES, DEFAULT_LEASE) < LONGEST_LEASE


@dataclass(frozen=True)
class Plan(SoakPlan):
    """One run. It is over when ``stop()`` is called, not at a moment known beforehand."""

    configured: dict[str, Any] = field(default_factory=dict)
    """The Django settings of the callers."""

    @classmethod
    def of(cls, directory: str, seed: int, configured: dict[str, Any]) -> Self:
        """Return the plan of a run that begins now."""
        later = monotonic() + AN_HOUR
        return cls(
            seconds=0.0,
            seed=seed,
            directory=directory,
            calm_at=later,
            stop_at=later,
            quiet_leases=QUIET_LEASES,
            pause=0.1,
            configured=configured,
        )

    def settings(self) -> dict[str, object]:
        """Return the Django settings of the callers, without INSTALLED_APPS."""
        return self.configured

    def crew(self) -> list[Role]:
        """Return the role of each process."""
        return [
            Role(THREADS, self.callers),
            Role(TASKS, self.callers),
            # Alone in their process, so nobody wakes them or reads for them.
            Role(THREADS, 1, quiet=True),
            Role(TASKS, 1, quiet=True),
        ]

    def dumps(self) -> str:
        """Return the plan as text, for the command line of a worker."""
        return json.dumps(asdict(self))
