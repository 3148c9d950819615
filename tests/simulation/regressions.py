"""Schedules that failed once, shrunk and kept in ``schedules/``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.simulation.choices import Replay

KEPT = Path(__file__).parent / "schedules"


@dataclass
class Regression:
    """The choices of a schedule."""

    layout: str
    choices: list[int]
    about: str = ""
    """What it broke."""

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        text = json.dumps({"about": self.about, "layout": self.layout, "choices": self.choices})
        path.write_text(f"{text}\n")

    def choose(self) -> Replay:
        """Return these choices."""
        return Replay(self.choices)
