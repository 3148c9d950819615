"""What the checker finds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Violation:
    """Something that must not happen, and where to look for it."""

    rule: str
    text: str
    handles: tuple[str, ...] = ()
    moment: float = 0.0


@dataclass
class Verdict:
    """The outcome of a run."""

    violations: list[Violation] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
