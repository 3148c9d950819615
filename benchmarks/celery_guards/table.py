"""What was seen, as a table for people, and its place in the documentation."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..report import grid
from .scenarios import Scenario

BEGIN = "<!-- begin: make compare -->"
END = "<!-- end: make compare -->"
NO_SUCH_OPTION = "has no such option"

Seen = dict[str, Any]
"""A `plays.Seen` as it comes back from a guard's process, or ``{"error": ...}``."""


def faults(seen: Seen) -> list[str]:
    """Name what went wrong; an empty list for nothing."""
    found = []
    if seen.get("lost"):
        all_or_some = (
            f"{seen['lost']} of {seen['of']} tasks lost" if seen["of"] > 1 else "task lost"
        )
        found.append(all_or_some)
    left = seen.get("left")
    if left and left["seconds"] is None:
        lease = "for ever" if left["expires_in"] is None else f"{left['expires_in']:,.0f} s to go"
        found.append(f"lock left, {lease}")
    if seen.get("together"):
        times = seen["together"]
        found.append("two at once" if times == 1 else f"two at once, {times} times")
    if seen.get("repeated"):
        found.append("done again after its success")
    if seen.get("hung"):
        found.append("hangs")
    return found


def cell(seen: Seen) -> str:
    """Say in a few words what was seen, the faults in bold."""
    if "error" in seen:
        return f"could not be run: {_one_line(seen['error'])}"
    if seen.get("no_such_option"):
        return NO_SUCH_OPTION
    wrong = faults(seen)
    words = [f"**{fault}**" for fault in wrong] or ["ok"]
    if seen.get("again") is not None and not seen.get("together"):
        words.append(f"runs again {_after(seen['again'])}")
    left = seen.get("left")
    if left and left["seconds"] is not None:
        words.append(f"lock free {_after(left['seconds'])}")
    if seen.get("note"):
        words.append(seen["note"])
    return "; ".join(words)


def table(results: dict[str, Any], scenarios: Iterable[Scenario]) -> str:
    """Return a row for each scenario that was played, and a column for each guard."""
    guards = results["guards"]
    rows: list[tuple[str, ...]] = []
    played = []
    for scenario in scenarios:
        seen = [_seen(guard, scenario.name) for guard in guards.values()]
        if any(seen):
            played.append(scenario.name)
            rows.append((scenario.title, *map(cell, seen)))
    counts = (_count(guard, played) for guard in guards.values())
    rows.append(("**Scenarios with a fault**", *counts))
    return grid(("", *(guard["title"] for guard in guards.values())), rows)


def section(results: dict[str, Any], scenarios: Iterable[Scenario]) -> str:
    """Return the table with the versions and what each row is about."""
    scenarios = list(scenarios)
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    told = [f"- **{scenario.title}**: {scenario.how}" for scenario in scenarios]
    return "\n\n".join(
        (f"With {versions}:", table(results, scenarios), "The rows:", "\n".join(told))
    )


def put_into(page: Path, text: str) -> None:
    """Replace what stands between the two marks of a page."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} needs the lines {BEGIN!r} and {END!r}; the table goes between.")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def broken_promises(guard: dict[str, Any], scenarios: Iterable[Scenario]) -> list[str]:
    """Return what went wrong in scenarios that django-redis-lock promises to come through."""
    return [
        f"{scenario.title}: {cell(seen)}"
        for scenario in scenarios
        if scenario.promised and (seen := _seen(guard, scenario.name))
        if "error" in seen or faults(seen)
    ]


def _seen(guard: dict[str, Any], name: str) -> Seen:
    found: Seen = guard["scenarios"].get(name, {})
    return {"error": guard["error"]} if not found and "error" in guard else found


def _count(guard: dict[str, Any], played: list[str]) -> str:
    seen = [_seen(guard, name) for name in played]
    run = [item for item in seen if "error" not in item and not item.get("no_such_option")]
    return f"{sum(bool(faults(item)) for item in run)} of {len(run)}"


def _after(seconds: float) -> str:
    return "within 0.1 s" if seconds < 0.1 else f"after {seconds:.1f} s"


def _one_line(text: str) -> str:
    return " ".join(text.split())
