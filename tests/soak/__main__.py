"""Run the soak: ``python -m tests.soak --seconds 600``. Exit code 1 if a rule was broken."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile

from tests.soak import driver, report
from tests.soak.plan import Plan


def main() -> int:
    """Run once, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long (default 60)")
    parser.add_argument("--seed", type=int, help="describes the faults (default: a new one)")
    parser.add_argument("--threaded", type=int, default=2, help="processes of threads")
    parser.add_argument("--asynchronous", type=int, default=2, help="processes of asyncio tasks")
    parser.add_argument("--callers", type=int, default=4, help="callers in each process")
    parser.add_argument("--keep", action="store_true", help="keep the histories of a clean run")
    arguments = parser.parse_args()
    plan = Plan(
        seconds=arguments.seconds,
        seed=secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed,
        directory=tempfile.mkdtemp(prefix="soak-"),
        threaded=arguments.threaded,
        asynchronous=arguments.asynchronous,
        callers=arguments.callers,
    )
    print(f"seed {plan.seed}, {plan.seconds:g} s; histories in {plan.directory}", flush=True)
    verdict = driver.run(plan)
    print(report.table(plan, verdict))
    if verdict.violations:
        path = report.write_violations(plan, verdict)
        print(f"The violations and their events: {path}\n{report.excerpt(path)}")
        return 1
    lacking = report.lacking(verdict)
    if lacking:
        print(
            f"This run shows too little, for want of: {', '.join(lacking)}. Give it more --seconds."
        )
        return 1
    if not arguments.keep:
        shutil.rmtree(plan.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
