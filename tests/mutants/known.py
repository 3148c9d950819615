"""What is known of mutants: those that a quick test kills, and those that survive for a reason."""

from __future__ import annotations

import re
from pathlib import Path

KILLED = Path(__file__).with_name("killed.txt")
PAGE = Path(__file__).parents[2] / "docs" / "contributing" / "mutants.md"
_ROW = re.compile(r"^- `` (?P<id>.+) ``: \S", re.MULTILINE)


def killed_quickly() -> set[str]:
    """Return the ids of mutants that the quick tests have killed."""
    return set(KILLED.read_text().splitlines()) if KILLED.exists() else set()


def record(ids: set[str]) -> None:
    """Add mutants to those that the quick tests have killed."""
    KILLED.write_text("".join(f"{each}\n" for each in sorted(killed_quickly() | ids)))


def survivors() -> set[str]:
    """Return the ids of the mutants that the page for contributors lists with a reason."""
    return {match["id"] for match in _ROW.finditer(PAGE.read_text())}
