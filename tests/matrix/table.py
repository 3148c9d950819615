"""The matrix as a table, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

HEAD = ("Row", "Python", "Django", "redis-py", "django-redis", "Celery", "kombu", "hiredis")
HEAD += ("Server", "Tests", "Result")
_KEYS = ("python", "django", "redis", "django-redis", "celery", "kombu", "hiredis", "server")


@dataclass(frozen=True)
class Result:
    """What became of a row."""

    row: str
    result: str
    """``passed``, ``failed``, or ``not met``; then why, or what was not met."""
    versions: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    skipped: int = 0
    failed: int = 0
    seconds: int = 0

    def cells(self) -> list[str]:
        tests = f"{self.passed:,} passed, {self.skipped} skipped" if self.versions else ""
        if self.failed:
            tests += f", {self.failed} failed"
        found = [self.versions.get(key, "") for key in _KEYS]
        return [self.row, *found, tests, self.result]


def markdown(results: Iterable[Result]) -> str:
    """Return a row for each result, in their order."""
    rows = [HEAD, ("---",) * len(HEAD), *(result.cells() for result in results)]
    return "".join(f"| {' | '.join(row)} |\n".replace("| --- ", "|---") for row in rows)
