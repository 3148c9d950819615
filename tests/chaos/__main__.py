"""Break things for a while on each layout: ``python -m tests.chaos``. Exit code 1 if a rule broke.
Each layout has a run in a process of its own, in which its faults are played at random. A run that
shows too little fails as well."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chaos.checker import check
from tests.chaos.history import Recorder, publish, read
from tests.chaos.holding import EARLY
from tests.chaos.layouts import LAYOUTS
from tests.chaos.plan import Plan
from tests.chaos.stage import name_of, run
from tests.chaos.story import Verdict, Violation
from tests.judge.__main__ import judge

LEAST_TAKEN = 100
HISTORIES = Path("tests/judge/histories")
PATIENCE = 600.0
"""Seconds beyond its faults after which a run is taken not to end."""
SHOWN, WIDTH = 12, 200
"""Violations, and characters of each, that are printed."""


def main() -> int:
    options = _parser().parse_args()
    if options.run:
        play(options.layout[0], options.seconds, options.seed, options.run)
        return 0
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}, {options.seconds:g} s for each layout", flush=True)
    broken = [name for name in options.layout or LAYOUTS if not _passes(name, seed, options)]
    if broken:
        print(f"broken: {', '.join(broken)}")
    return 1 if broken else 0


def play(name: str, seconds: float, seed: int, directory: str) -> None:
    """Carry out the run of a layout in this process; its history stays behind."""
    layout = LAYOUTS[name]
    with contextlib.closing(Recorder(directory, 0)) as recorder:
        rules = {"promised": layout.promised, "excused": layout.excused, "tolerance": EARLY}
        recorder.note("run", layout=name, seed=seed, **rules)
    with contextlib.closing(layout.open()) as site:
        run(site, Plan(directory, seed, site.settings()), layout.faults, seconds)


def _passes(name: str, seed: int, options: argparse.Namespace) -> bool:
    directory = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
    arguments = ("--layout", name, "--seconds", str(options.seconds), "--seed", str(seed))
    command = [sys.executable, "-m", "tests.chaos", *arguments, "--run", str(directory)]
    code = subprocess.run(command, timeout=options.seconds + PATIENCE, check=False).returncode
    verdict = check(read(directory))
    if code:
        verdict.violations.append(Violation("run failed", f"exit code {code}"))
    for rule, texts in judge(read(directory)).items():
        verdict.violations += [Violation(rule, "\n".join(texts))] * bool(texts)
    found = broken_promises(name, verdict)
    print(summary(name, verdict, found), flush=True)
    if options.publish and not found:
        publish(directory, HISTORIES / f"{name}-{seed}.jsonl.gz")
    if found or options.keep:
        print(f"histories in {directory}")
    else:
        shutil.rmtree(directory)
    return not found


def broken_promises(name: str, verdict: Verdict) -> list[Violation]:
    """Return what a layout promises and was broken, or was shown too little."""
    layout = LAYOUTS[name]
    found = [item for item in verdict.violations if item.rule not in layout.unpromised]
    missing = [name_of(one) for one in layout.faults if not verdict.faults.get(name_of(one))]
    if verdict.figures["acquisitions"] < LEAST_TAKEN:
        missing.append(f"{LEAST_TAKEN} acquisitions")
    missing += [what for what in layout.shown if not verdict.figures[what]]
    if missing:
        found.append(Violation("too little", f"the run had no {', '.join(missing)}"))
    return found


def summary(name: str, verdict: Verdict, found: list[Violation]) -> str:
    """Return the figures of a run, its faults, and the first violations."""
    rows = [*verdict.figures.items(), *sorted(verdict.faults.items()), ("violations", len(found))]
    lines = [f"{name}:", *(f"  {what:36} {value:10g}" for what, value in rows)]
    for violation in found[:SHOWN]:
        text = " ... ".join(line.strip() for line in violation.text.splitlines() if line.strip())
        lines.append(f"  {violation.rule}: {text}"[:WIDTH])
    return "\n".join([*lines, *([found[0].text] if found else [])])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="only this layout")
    parser.add_argument("--seconds", type=float, default=60, help="for each (default 60)")
    parser.add_argument("--seed", type=int, help="of callers and faults (default: a new one)")
    parser.add_argument("--keep", action="store_true", help="keep the histories of clean runs")
    parser.add_argument("--publish", action="store_true", help=f"keep clean runs in {HISTORIES}")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
