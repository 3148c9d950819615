"""What a release has to pass: nothing, unless an integration puts a gate there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from django_redis_lock.primitives.holding import Handle
    from django_redis_lock.protocol.drivers import Steps


class Hold(Protocol):
    """One or several locks that are released together: a handle."""

    @property
    def after_commit(self) -> bool:
        """Whether a release inside of a database transaction waits until that has ended."""

    @property
    def backend(self) -> Any:
        """The backend that keeps them."""

    def parts(self) -> list[Handle]:
        """Return the handle of each lock that is held."""

    def confirm(self, parts: list[Handle]) -> Steps[None]:
        """Ask the server whether these are still held. Raises ``LockLost``, ``LockUnavailable``."""

    def finish(self, parts: list[Handle]) -> Steps[None]:
        """Give these up; what goes wrong is logged, for nobody is there to be told."""


class Gate:
    """Decides when a lock that its holder has released is given up. This one: at once."""

    def puts_off(self, hold: Hold) -> bool:
        """Whether the release waits; whoever says so gives the hold up later, with ``finish``."""
        return False

    def waiting(self, backend: Any, name: str) -> Handle | None:
        """Return the handle of a lock whose release waits here, where the caller may have it."""
        return None


_current = Gate()


def current() -> Gate:
    """Return the gate that releases pass."""
    return _current


def install(gate: Gate) -> None:
    """Let releases pass this gate from now on."""
    global _current  # noqa: PLW0603 - the one gate of the process
    _current = gate
