"""Run every fault on every layout: ``python -m tests.chaos``. Exit code 1 for a broken promise."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import table
from tests.chaos.layouts import LAYOUTS
from tests.chaos.row import Row, judge
from tests.rig.faults import FAULTS
from tests.rig.history import read
from tests.rig.verdict import Violation

PATIENCE = 600.0
"""Seconds beyond its faults after which a run is taken not to end."""


@dataclass(frozen=True)
class Task:
    """A run to be carried out."""

    layout: str
    fault: str
    seconds: float
    seed: int
    directory: Path

    def row(self) -> Row:
        """Run, in a process of its own, and return what the run came to."""
        self.directory.mkdir()
        log = self.directory / "run.log"
        with log.open("wb") as errors, contextlib.suppress(subprocess.TimeoutExpired):
            patience = self.seconds + PATIENCE
            done = subprocess.run(self.command(), stderr=errors, timeout=patience, check=False)
            if not done.returncode:
                return judge(LAYOUTS[self.layout], self.fault, read(self.directory))
        why = log.read_text() or "the run did not end"
        return Row(self.fault, self.layout, violations=[Violation("run failed", why)])

    def command(self) -> list[str]:
        arguments = (self.layout, self.fault, str(self.seconds), str(self.seed))
        return [sys.executable, "-m", "tests.chaos.play", *arguments, str(self.directory)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the table, and return the exit code."""
    options = _parser().parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    tasks = [
        Task(layout.name, fault, options.seconds_each, seed, directory / f"{layout.name}-{fault}")
        for layout in LAYOUTS.values()
        for fault in layout.faults
        if layout.name in (options.layout or LAYOUTS) and fault in (options.fault or FAULTS)
    ]
    if not tasks:
        print("No layout is put through that fault; --list shows which are.", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{task.layout}: {task.fault}" for task in tasks))
        return 0
    print(f"{len(tasks)} runs, seed {seed}; histories in {directory}", flush=True)
    began = time.monotonic()
    rows = _carry_out(tasks, options.at_once)
    print(f"\n{table.table(rows)}\n{time.monotonic() - began:.0f} s", flush=True)
    if any(row.violations for row in rows):
        print(table.broken_promises(rows, str(directory)))
        return 1
    if not options.keep:
        shutil.rmtree(directory)
    return 0


def _carry_out(tasks: Sequence[Task], at_once: int) -> list[Row]:
    """Carry the tasks out, some at a time; print the verdict on each when it is done."""
    pool = ThreadPoolExecutor(at_once)
    try:
        running = {pool.submit(task.row): task for task in tasks}
        for future in as_completed(running):
            task, broken = running[future], len(future.result().violations)
            verdict = f"{broken} BROKEN" if broken else "kept"
            print(f"{task.layout}: {task.fault}: {verdict}", flush=True)
        return [future.result() for future in running]
    finally:
        pool.shutdown(cancel_futures=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--seconds-each", type=float, default=2, help="for how long each fault goes on (default 2)"
    )
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="only this layout")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only this fault")
    parser.add_argument("--seed", type=int, help="of callers and faults (default: a new one)")
    parser.add_argument("--at-once", type=int, default=3, help="runs at a time (default 3)")
    parser.add_argument("--keep", action="store_true", help="keep the histories of clean runs")
    parser.add_argument("--list", action="store_true", help="list the runs, and do nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
