"""The results as a markdown page."""

from collections.abc import Iterable, Sequence
from typing import Any

from .model import Scenario
from .show import dig, number


def markdown(results: dict[str, Any], scenarios: Iterable[Scenario]) -> str:
    """Return the page: the targets, a table for each scenario, and what it was measured with."""
    parts = ["# django-redis-lock beside its peers", _versions(results["environment"])]
    if results["quick"]:
        parts.append(
            "**The quick form: it shows that the benchmark works, the figures are rough.**"
        )
    if results["targets"]:
        parts += ["## Targets", _targets(results["targets"])]
    for scenario in scenarios:
        if result := results["scenarios"].get(scenario.name):
            parts += [f"## {result['title']}", result["how"], _table(scenario, result["rows"])]
    return "\n\n".join(parts) + "\n"


def _versions(environment: dict[str, Any]) -> str:
    packages = ", ".join(
        f"{name} {version}" if version else f"no {name}"
        for name, version in environment["packages"].items()
    )
    return (
        f"{environment['date']} · {environment['python']} · {environment['server']}, "
        f"{environment['protocol']} · {environment['cpus']} CPUs ({environment['processor']}) · "
        f"{environment['system']} · load {environment['load_at_start']} at the start\n\n{packages}"
    )


def _targets(targets: Iterable[dict[str, Any]]) -> str:
    rows = [
        (
            target["what"],
            target["target"],
            "not measured" if target["value"] is None else f"**{number(target['value'])}**",
            "met" if target["met"] else "**not met**",
        )
        for target in targets
    ]
    return grid(("what", "target", "measured", ""), rows)


def _table(scenario: Scenario, rows: dict[str, dict[str, Any]]) -> str:
    body = []
    for row in rows.values():
        if "error" in row:
            cells = [f"failed: {row['error']}"] + [""] * (len(scenario.columns) - 1)
        else:
            cells = [column.show(dig(row, column.key)) for column in scenario.columns]
        body.append((row["title"], *cells))
    return grid(("", *(column.heading for column in scenario.columns)), body)


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a markdown table that is also readable as it stands."""
    cells = [head, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    widths = [max(3, *(len(row[at]) for row in cells)) for at in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
