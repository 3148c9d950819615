"""Run every fault on every layout: ``python -m tests.chaos``. Exit code 1 for a broken promise."""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.chaos import table
from tests.chaos.faults import FAULTS
from tests.chaos.layouts import LAYOUTS
from tests.chaos.row import Row
from tests.chaos.run import run
from tests.soak.verdict import Violation

PATIENCE = 600.0
"""Seconds beyond its faults after which a run is taken not to end."""
_fork = multiprocessing.get_context("fork")  # a run needs what is imported here


@dataclass(frozen=True)
class Task:
    """A run to be carried out."""

    layout: str
    fault: str
    seconds: float
    seed: int
    directory: Path

    def carry_out(self) -> None:
        """Run, in a process of its own, and leave the outcome behind."""
        self.directory.mkdir()
        try:
            row = run(self.layout, self.fault, self.seconds, self.seed, str(self.directory))
        except Exception:
            row = self.failed(traceback.format_exc())
        (self.directory / "row").write_bytes(pickle.dumps(row))

    def outcome(self) -> Row:
        """Return what the run came to."""
        path = self.directory / "row"
        if not path.exists():
            return self.failed("the process of the run died, or did not end")
        row: Row = pickle.loads(path.read_bytes())  # noqa: S301 - written by carry_out()
        return row

    def failed(self, why: str) -> Row:
        """Return the line of a run that has no verdict."""
        return Row(self.fault, self.layout, violations=[Violation("run failed", why)])


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
    done: dict[Task, Row] = {}
    began = time.monotonic()
    for task, seconds in _carry_out(tasks, options.at_once):
        row = done[task] = task.outcome()
        verdict = f"{len(row.violations)} BROKEN" if row.violations else "kept"
        print(f"{task.layout}: {task.fault}: {verdict} ({seconds:.0f} s)", flush=True)
    rows = [done[task] for task in tasks]
    print(f"\n{table.table(rows)}\n{time.monotonic() - began:.0f} s", flush=True)
    if any(row.violations for row in rows):
        print(table.broken_promises(rows, str(directory)))
        return 1
    if not options.keep:
        shutil.rmtree(directory)
    return 0


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


def _carry_out(tasks: Sequence[Task], at_once: int) -> Iterator[tuple[Task, float]]:
    """Carry the tasks out, some at a time; yield each when it is done, and how long it took."""
    waiting = list(tasks)
    running: dict[BaseProcess, tuple[Task, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                task = waiting.pop(0)
                process = _fork.Process(target=task.carry_out)
                process.start()
                running[process] = task, time.monotonic()
            wait([process.sentinel for process in running], timeout=1)
            for process, (task, since) in list(running.items()):
                took = time.monotonic() - since
                if process.is_alive() and took > task.seconds + PATIENCE:
                    process.kill()
                    process.join()
                if not process.is_alive():
                    process.join()
                    del running[process]
                    yield task, took
    finally:
        for process in running:
            process.kill()
            process.join()


if __name__ == "__main__":
    sys.exit(main())
