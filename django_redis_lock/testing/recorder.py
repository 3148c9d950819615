"""A record of what happened to locks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self

from django.dispatch import Signal

from django_redis_lock import signals


class LockRecorder:
    """Notes what happens to locks during a block, from the signals of the package.

    Each list has the names of the locks, in the order of the events. What the tools of
    ``django_redis_lock.testing`` do to a lock themselves is not in it.
    """

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.acquired: list[str] = []
        self.not_acquired: list[str] = []
        self.released: list[str] = []
        self.detached: list[str] = []
        self.lost: list[str] = []
        self.force_released: list[str] = []
        self.freed: list[str] = []
        self.unavailable: list[str] = []
        """The names for which the server was unavailable; empty for all or several locks."""
        self.events: list[tuple[str, str]] = []
        """All of these in their order, as ``("acquired", name)``."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for event in vars(self):
            signal = getattr(signals, f"lock_{event}", None)
            if signal is not None:
                self._note(event, signal)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def clear(self) -> None:
        """Forget what has been noted."""
        for noted in vars(self).values():
            if isinstance(noted, list):
                noted.clear()

    def _note(self, event: str, signal: Signal) -> None:
        names: list[str] = getattr(self, event)

        @signals.never_blocks
        def note(name: str, **kwargs: Any) -> None:
            names.append(name)
            self.events.append((event, name))

        signal.connect(note, weak=False)
        self._stack.callback(signal.disconnect, note)
