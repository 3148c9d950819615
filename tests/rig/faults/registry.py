"""The list of faults, and what they have in common.

A fault undoes what it did before it returns, and records from when to when it lasted by what it saw
itself, so that a slow machine is not taken for a broken promise. It returns False if there was
nothing to break just then. docs/explanation/failures.md tells what each does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.rig.stage import Stage

SHORT = (0.1, 0.4)
LONG = (1.0, 2.0)
"""Seconds; callers don't notice the first, and are told of the second."""

Play = Callable[[Stage], bool | None]


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, and what a site must have for it."""

    name: str
    play: Play
    proxied: bool = False
    """Needs proxies in front of the servers."""
    stepped: bool = False
    """Needs servers whose clocks can be set."""


FAULTS: dict[str, Fault] = {}


def fault(**needs: bool) -> Callable[[Play], Play]:
    """Register a function as a fault, under its name."""

    def register(play: Play) -> Play:
        name = play.__name__.replace("_", " ")
        FAULTS[name] = Fault(name, play, **needs)
        return play

    return register
