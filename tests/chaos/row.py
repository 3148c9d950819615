"""A row of the table: the outcome of one fault on one layout."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.layouts import Layout
from tests.rig import checker, holding
from tests.rig.history import Event
from tests.rig.story import Story, by_name
from tests.rig.verdict import Verdict, Violation

COLUMNS = {
    "double holds": ("overlap", "promise broken"),
    "fences": ("fence went back", "fence given twice"),
    "lost waiters": ("left behind", "stuck"),
    "stuck locks": ("left",),
}
"""Which rules of the checker each column counts; every other rule is counted under ``other``."""
OTHER = "other"
ALWAYS = {"stuck"}
"""Rules that are always promised: every caller finishes when there are no faults any more."""
SERVED = ("acquired", "confirmed", "released")


@dataclass
class Row:
    """The outcome of one run."""

    fault: str
    layout: str
    taken: int = 0
    """Locks acquired."""
    times: int = 0
    """How often the fault was played."""
    unavailable: float = 0.0
    """The longest time (s) that a caller waited for a lock while no caller was served it."""
    counts: Counter[str] = field(default_factory=Counter)
    """By column, what was counted, promised or not."""
    errors: Counter[str] = field(default_factory=Counter)
    """What callers saw: LockUnavailable, LockLost."""
    violations: list[Violation] = field(default_factory=list)
    """Promises that were broken."""

    def broken(self) -> Counter[str]:
        """Return how many promises were broken, by column."""
        return Counter(column(item) for item in self.violations)


def judge(layout: Layout, fault: str, events: Iterable[Event]) -> Row:
    """Return the row for the history of a run."""
    history = list(events)
    story = Story(history)
    unpromised = layout.unpromised.get(fault, frozenset())
    row = Row(fault, layout.name, taken=len(story.holds), times=sum(story.faults.values()))
    row.unavailable = longest_wait(story, history)
    for trouble in story.troubles:
        row.errors["LockLost" if trouble.kind == "lost" else "LockUnavailable"] += 1
    found = [item for item in checker.judge(story).violations if item.rule not in layout.rules_off]
    row.counts.update(column(item) for item in found)
    row.counts["double holds"] = len(_double_holds(story))
    row.violations = [
        item for item in found if item.rule in ALWAYS or column(item) not in unpromised
    ]
    if not row.taken or not row.times:
        nothing = f"{row.taken} locks were taken, and the fault was played {row.times} times"
        row.violations.append(Violation("nothing happened", nothing))
    return row


def column(violation: Violation) -> str:
    """Return where a violation is counted."""
    return next((name for name, rules in COLUMNS.items() if violation.rule in rules), OTHER)


def _double_holds(story: Story) -> list[Violation]:
    """Return the double holds, excused or not.

    After a loss of data or a step of the clock ``held.remaining`` is more than the server's lease.
    """
    verdict, strict = Verdict(), copy(story)
    strict.wipes = strict.unsettled = []
    holding.judge(strict, verdict)
    return [item for item in verdict.violations if column(item) == "double holds"]


def longest_wait(story: Story, history: Iterable[Event]) -> float:
    """Return the longest time (s) in which a lock was wanted, and no caller was served it."""
    names = {request.handle: request.name for request in story.requests}
    served: dict[str, list[float]] = {name: [] for name in names.values()}
    for event in history:
        if event["kind"] in SERVED:
            served[names[event["handle"]]].append(event["at"])
    longest = 0.0
    for name, requests in by_name(story.requests).items():
        moments = sorted(served[name])
        for request in requests:
            if request.outcome == "killed":
                continue
            first = bisect_left(moments, request.began)
            inside = moments[first : bisect_right(moments, request.ended)]
            edges = [request.began, *inside, request.ended]
            longest = max(longest, *(b - a for a, b in pairwise(edges)))
    return longest
