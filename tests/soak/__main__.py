"""Run the soak: ``python -m tests.soak --seconds 600``. Exit code 1 if a rule was broken."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence

from tests.rig import report
from tests.rig.checker import check
from tests.rig.history import read
from tests.rig.plan import ALL_NAMES, ALONE, TASKS, THREADS, Plan, Role
from tests.rig.run import run
from tests.rig.sites import Independent
from tests.rig.verdict import Verdict
from tests.soak.storm import DOWNTIME, PLAYED, storm

BACKEND = "django_redis_lock.backends.redis.RedisLockBackend"
QUIET_LEASES = (0.6, 1.2, 6.0)
LEAST = {"acquisitions": 100, "pairs in queue compared": 1}


def main() -> int:
    """Run once, print the table, and return the exit code."""
    options = _parser().parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    directory = tempfile.mkdtemp(prefix="soak-")
    print(f"seed {seed}, {options.seconds:g} s; histories in {directory}", flush=True)
    roles = [
        *[Role(THREADS, options.callers)] * options.threaded,
        *[Role(TASKS, options.callers)] * options.asynchronous,
        Role(THREADS, options.callers, quiet=True),
        *ALONE,
    ]
    calm = min(20.0, max(7.0, options.seconds * 0.2))
    with contextlib.closing(Independent({"BACKEND": BACKEND})) as site:
        plan = Plan(directory, seed, site.settings(), QUIET_LEASES)
        run(
            site,
            plan,
            roles,
            lambda stage: storm(stage, options.seconds - calm),
            downtime=DOWNTIME,
            calm=calm,
        )
    verdict = check(read(directory))
    print(table(options.seconds, seed, roles, verdict))
    if verdict.violations:
        path = report.write_violations(directory, verdict.violations)
        print(f"The violations and their events: {path}\n{report.excerpt(path)}")
        return 1
    if few := lacking(verdict):
        print(f"This run shows too little, for want of: {', '.join(few)}. Give it more --seconds.")
        return 1
    if not options.keep:
        shutil.rmtree(directory)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long (default 60)")
    parser.add_argument("--seed", type=int, help="describes the faults (default: a new one)")
    parser.add_argument("--threaded", type=int, default=2, help="processes of threads")
    parser.add_argument("--asynchronous", type=int, default=2, help="processes of asyncio tasks")
    parser.add_argument("--callers", type=int, default=4, help="callers in each process")
    parser.add_argument("--keep", action="store_true", help="keep the histories of a clean run")
    return parser


def table(seconds: float, seed: int, roles: Sequence[Role], verdict: Verdict) -> str:
    """Return the summary of a run."""
    rows: dict[str, object] = {
        "seconds": f"{seconds:g}",
        "seed": seed,
        "processes": len(roles),
        "callers": sum(role.callers for role in roles),
        "locks": len(ALL_NAMES),
        **{key: f"{value:g}" for key, value in verdict.figures.items()},
        **{f"fault: {what}": count for what, count in sorted(verdict.faults.items())},
        "violations": len(verdict.violations),
    }
    width = max(map(len, rows))
    lines = [f"{key:<{width}}  {value}" for key, value in rows.items()]
    rules = Counter(violation.rule for violation in verdict.violations)
    lines += [f"{'  ' + rule:<{width}}  {count}" for rule, count in rules.most_common()]
    return "\n".join(lines)


def lacking(verdict: Verdict) -> list[str]:
    """Return what a run has too little of to mean anything."""
    few = [name for name, least in LEAST.items() if verdict.figures[name] < least]
    return [fault for fault in PLAYED if not verdict.faults.get(fault)] + few


if __name__ == "__main__":
    sys.exit(main())
