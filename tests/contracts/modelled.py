"""The model's callers, holds and waiters, for ``machine``."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from django_redis_lock import Lock
from django_redis_lock.exceptions import LockError, LockLost, LockNotOwned
from tests.tools import PATIENCE, Background


@dataclass(eq=False)
class Hold:
    """One acquisition of a lock: as long as it lasts, and in the minds of its callers after."""

    caller: int | None
    token_id: str
    fence: int
    deadline: float = 0.0  # monotonic
    entries: int = 0
    on_server: bool = True
    known_lost: bool = False


@dataclass(eq=False)
class Caller:
    """A handle, and what it holds or believes to hold."""

    handle: Lock
    name: str
    number: int | None
    asynchronous: bool = False
    hold: Hold | None = None

    @property
    def reentrant(self) -> bool:
        return self.handle.reentrant

    def enter(self, hold: Hold) -> None:
        self.hold = hold
        hold.entries += 1

    def leave(self) -> None:
        assert self.hold is not None
        self.hold.entries -= 1
        self.hold = None

    def error_of_asking(self) -> type[LockError] | None:
        """Return what is raised where the server has to have the lock."""
        if self.hold is None:
            return LockNotOwned
        return None if self.hold.on_server else LockLost

    def error_of_setting(self) -> type[LockError] | None:
        """Return what is raised where the lease has to have an end as well."""
        endless = self.hold is not None and self.handle.timeout is None
        return LockError if endless else self.error_of_asking()


@dataclass(eq=False)
class Waiting:
    """A caller in a queue, in a thread or a task."""

    caller: Caller
    started: Background | Future[bool]

    def outcome(self) -> bool:
        """Wait until it has the lock."""
        if isinstance(self.started, Future):
            return self.started.result(PATIENCE)
        acquired: bool = self.started.outcome()
        return acquired
