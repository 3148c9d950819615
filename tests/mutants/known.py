"""Which mutants survive, and have their reason in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "contributing" / "mutants.md"
_ROW = re.compile(r"^- `` (?P<id>.+) ``$", re.MULTILINE)


def survivors() -> set[str]:
    """Return the ids of the mutants that the page for contributors lists."""
    return {match["id"] for match in _ROW.finditer(PAGE.read_text())}
