"""Measure django-redis-lock beside its peers: ``python -m benchmarks [--quick] [--only NAME]``.

Everything runs on one embedded server, with the settings of README. The contenders alternate in
each round, and a ratio is the median of the ratios within the rounds. ``--before DIR`` also
measures the package of another checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from redis import Redis

from benchmarks import crowds, delays, layouts, limits, scenarios, semaphores, stopped
from benchmarks.contenders import BEFORE, CONTENDERS, OURS, PERMIT, REDIS_PY, TOKEN
from benchmarks.scenarios import Bench, Figures
from benchmarks.tasks import guarded
from example_project.embedded import EmbeddedServer

CLIENT_OPTIONS = "?socket_timeout=30&max_connections=256"
"""A BLPOP may last as long as a lease, and 100 threads may need 100 connections."""
SCENARIOS = {
    "free": scenarios.free,
    "free, with hiredis": scenarios.free_with_hiredis,
    "hand-off": scenarios.hand_off,
    "crowd": scenarios.crowd,
    "waiting": scenarios.waiting,
    "drain": crowds.drain,
    "longest script": crowds.longest,
    "listing": scenarios.listing,
    "sale": scenarios.sale,
    "walk": scenarios.walk,
    "permits": semaphores.permits,
    "permits, hand-off": semaphores.permit_hand_off,
    "permits, crowd": semaphores.permit_crowd,
    "tasks": guarded,
    "limits": limits.over_a_limit,
    "delays": delays.delays,
    "stopped": stopped.stopped,
    "layouts": layouts.layouts,
}
LONG = ("stopped", "layouts")
"""Measured only if it is named."""
TARGETS = (
    ("free", OURS, f"client µs / {REDIS_PY}", "at most", 0.60),
    ("free", OURS, f"client µs paused / {REDIS_PY}", "at most", 0.60),
    ("free, with hiredis", OURS, f"client µs / {REDIS_PY}", "at most", 0.65),
    ("free, with hiredis", OURS, f"client µs paused / {REDIS_PY}", "at most", 0.65),
    ("free", OURS, f"server µs / {REDIS_PY}", "at most", 1.25),
    ("hand-off", OURS, f"ms / {TOKEN}", "at most", 1.4),
    ("crowd", OURS, f"acquisitions/s / {TOKEN}", "at least", 0.9),
    ("crowd", OURS, "least / most", "at least", 0.98),
    ("waiting", OURS, "more connections", "at most", 1),
    ("waiting", OURS, "requests/s", "at most", 2),
    ("listing", OURS, "times faster", "at least", 50),
    ("permits", PERMIT, f"client µs / {OURS}", "at most", 1.3),
    ("permits", PERMIT, f"server µs / {OURS}", "at most", 1.3),
    ("permits", PERMIT, "1,000th / first", "at most", 1.3),
    ("permits", PERMIT, f"list ms / {OURS}", "at most", 1.3),
    ("permits, crowd", PERMIT, "least / most", "at least", 0.9),
    ("permits, crowd", PERMIT, "overtaken %", "at most", 1),
    ("tasks", "run", "tasks/s / plain", "at least", 0.95),
    ("limits", "Redis, park", "messages", "at most", 2.01),
    *(("delays", what, "seconds", "at most", most) for what, most in delays.PROMISED.items()),
    ("stopped", stopped.GUARDED, "lost", "at most", 0),
    ("stopped", stopped.GUARDED, "stuck", "at most", 0),
    ("stopped", stopped.GUARDED, "refused", "at least", 1),
    ("stopped", "all", "lost", "at least", 1),
    ("walk", OURS, "files", "at most", 14),
    ("walk", OURS, "functions", "at most", 64),
    ("walk", OURS, "lines", "at most", 343),
    ("walk", OURS, "imported lines", "at most", 6000),
)


def main() -> None:
    options = _options()
    results: dict[str, Figures] = {}
    pages = [f"# {_environment()}"]
    with EmbeddedServer() as server:
        url = server.url() + CLIENT_OPTIONS
        with Redis.from_url(url) as admin:
            bench = Bench(url, admin, options.before, options.quick)
            for name in options.only or [name for name in SCENARIOS if name not in LONG]:
                print(f"{name} ...", flush=True)
                admin.flushall()
                results[name] = SCENARIOS[name](bench)
                pages.append(f"## {name}\n\n{SCENARIOS[name].__doc__}\n\n{_table(results[name])}")
                print(f"\n{pages[-1]}\n", flush=True)
    pages.append(f"## targets\n\n{_verdicts(results)}")
    page = "\n\n".join(pages)
    print(f"{pages[0]}\n\n{pages[-1]}")
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "latest.md").write_text(page + "\n")
    (options.output / "latest.json").write_text(json.dumps(results, indent=1) + "\n")
    sys.exit("stopped" in results and "NOT MET" in pages[-1])


def _environment() -> str:
    packages = ("django", "redis", "hiredis", "django-redis", "python-redis-lock", "celery")
    packages += ("pottery", "redis-fifo-lock")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"CPython {platform.python_version()}, {versions}, {os.cpu_count()} CPUs"


def _table(figures: Figures) -> str:
    columns = list(dict.fromkeys(column for row in figures.values() for column in row))
    lines = [["", *columns]]
    for slug, row in figures.items():
        title = CONTENDERS[slug].title if slug in CONTENDERS else slug
        lines.append([title, *(_shown(row.get(column)) for column in columns)])
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    lines.insert(1, ["-" * width for width in widths])
    cells = [
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _verdicts(results: dict[str, Figures]) -> str:
    lines = []
    for name, slug, what, bound, limit in TARGETS:
        rows = [(slug, "")] + ([(BEFORE, " before")] if slug == OURS else [])
        for row, suffix in rows:
            value = results.get(name, {}).get(row, {}).get(what)
            if value is not None:
                met = value <= limit if bound == "at most" else value >= limit
                said = f"{name}: {what}{suffix}: {_shown(value)}, {bound} {limit}"
                lines.append(f"- {said}: {'met' if met else 'NOT MET'}")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="rough figures, within a minute")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="only this; repeatable")
    parser.add_argument("--before", default="", help="another checkout of the package")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="a directory")
    return parser.parse_args()


if __name__ == "__main__":
    main()
