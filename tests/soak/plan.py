"""How large a run is, how long its phases last, and what its callers ask for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Self

FIXED_LEASES = (0.3, 0.5, 0.8, 1.2, 2.0)
"""Seconds; short, so that many of them end while somebody holds or waits."""
RENEWED_LEASES = (1.0, 1.5, 2.0)
"""Seconds; a renewal has a third of it, which a busy machine must be able to give."""
DEFAULT_LEASE = 1.5
"""Seconds; what the backend gives and renews where a caller names no lease."""
QUIET_LEASES = (0.6, 1.2, 6.0)
"""Seconds, on the quiet locks; the long one shows who only looks when it ends."""
LONGEST_LEASE = 6.5
"""Seconds, extensions included."""
DRAIN_SECONDS = 20.0
"""How long the callers may take to finish what they are at, when told to end."""


THREADS = "threads"
TASKS = "tasks"


@dataclass(frozen=True)
class Role:
    """What a process is for: how many callers of which kind, and whether of the quiet lock."""

    kind: str
    callers: int
    quiet: bool = False


@dataclass(frozen=True)
class Plan:
    """One run. Moments are of the monotonic clock, which all processes of a machine share."""

    seconds: float
    seed: int
    directory: str
    url: str = ""
    threaded: int = 2
    """Processes whose callers are threads."""
    asynchronous: int = 2
    """Processes whose callers are asyncio tasks."""
    callers: int = 4
    """Callers in each process."""
    names: tuple[str, ...] = ("anvil", "bellows", "crucible")
    """Locks that everybody uses."""
    quiet: str = "quench"
    """A lock for a few more callers, who use no other: nobody new comes along to notice that it is
    free, or to read what is meant for those who wait."""
    fleeting: str = "spark"
    """A lock mostly free, for those who give up: their first call often takes it."""
    quiet_leases: tuple[float, ...] = QUIET_LEASES
    pause: float = 0.02
    """Seconds at the most from one lock of a caller to its next."""
    calm_at: float = 0.0
    """When the faults end."""
    stop_at: float = 0.0
    """When callers begin nothing new."""

    def begun(self, url: str) -> Self:
        """Return the plan of a run that begins now, on the server at ``url``."""
        now = monotonic()
        calm = min(20.0, max(7.0, self.seconds * 0.2))
        stop_at = now + self.seconds
        return replace(self, url=url, calm_at=stop_at - calm, stop_at=stop_at)

    def over(self) -> bool:
        """Return whether callers begin nothing new: at its moment, or when ``stop`` was called."""
        return monotonic() >= self.stop_at or self._stop_sign.exists()

    def stop(self) -> None:
        """Let callers begin nothing new from now on."""
        self._stop_sign.touch()

    @property
    def _stop_sign(self) -> Path:
        return Path(self.directory) / "stop"

    def locks(self) -> dict[str, object]:
        """Return the entry of LOCKS that the callers use."""
        return {
            "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend",
            # Replies time out within the run, so that calls to a frozen server are sent again.
            "LOCATION": f"{self.url}?socket_timeout=1&socket_connect_timeout=1",
            "TIMEOUT": DEFAULT_LEASE,
        }

    def settings(self) -> dict[str, object]:
        """Return the Django settings of the callers, without INSTALLED_APPS."""
        return {"LOCKS": {"default": self.locks()}}

    def all_names(self) -> tuple[str, ...]:
        """Return the names of all the locks of the run."""
        return (*self.names, self.quiet, self.fleeting)

    def crew(self) -> list[Role]:
        """Return the role of each process."""
        return [
            *[Role(THREADS, self.callers)] * self.threaded,
            *[Role(TASKS, self.callers)] * self.asynchronous,
            Role(THREADS, self.callers, quiet=True),
            # Alone in their process, so nobody wakes them or reads for them.
            Role(THREADS, 1, quiet=True),
            Role(TASKS, 1, quiet=True),
        ]

    def dumps(self) -> str:
        """Return the plan as text, for the command line of a worker."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        """Return the plan that was written as ``text``."""
        fields = json.loads(text)
        return cls(**{**fields, "names": tuple(fields["names"])})
