"""What was seen, as a table, and the section of the documentation."""

from collections.abc import Iterable
from typing import Any

from benchmarks.celery_guards.scenarios import Scenario
from benchmarks.frame.table import grid

Seen = dict[str, Any]
"""A `plays.Seen` from a guard's process, or ``{"error": ...}``; empty for what was not played."""


def faults(seen: Seen) -> list[str]:
    found = []
    if seen.get("lost"):
        of = f"{seen['lost']} of {seen['of']} tasks" if seen["of"] > 1 else "task"
        found.append(f"{of} lost")
    left = seen.get("left")
    if left and left["seconds"] is None:
        lease = "no expiry" if left["expires_in"] is None else f"{left['expires_in']:,.0f} s to go"
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
    """Describe what was seen, with faults in bold."""
    if not seen:
        return "not measured"
    if "error" in seen:
        return f"could not run: {' '.join(seen['error'].split())}"
    if seen.get("no_such_option"):
        return "has no such option"
    parts = [f"**{fault}**" for fault in faults(seen)] or ["ok"]
    if seen.get("again") is not None and not seen.get("together"):
        parts.append(f"runs again {_after(seen['again'])}")
    left = seen.get("left")
    if left and left["seconds"] is not None:
        parts.append(f"lock free {_after(left['seconds'])}")
    if seen.get("note"):
        parts.append(seen["note"])
    return "; ".join(parts)


def table(guards: dict[str, Any], scenarios: Iterable[Scenario]) -> str:
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


def section(results: dict[str, Any], scenarios: Iterable[Scenario], note: str = "") -> str:
    """Return the table with the versions and an explanation of each row."""
    scenarios = list(scenarios)
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    rows = "\n".join(f"- **{scenario.title}**: {scenario.how}" for scenario in scenarios)
    parts = (f"With {versions}:", note, table(results["guards"], scenarios), "The rows:", rows)
    return "\n\n".join(part for part in parts if part)


def broken_promises(guard: dict[str, Any], scenarios: Iterable[Scenario]) -> list[str]:
    """Return the faults in scenarios where django-redis-lock promises none."""
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
    run = [each for each in seen if each and not each.keys() & {"error", "no_such_option"}]
    return f"{sum(bool(faults(each)) for each in run)} of {len(run)}"


def _after(seconds: float) -> str:
    return "within 0.1 s" if seconds < 0.1 else f"after {seconds:.1f} s"
