"""Run the soak: ``python -m tests.soak --seconds 600``. Exit code 1 if a rule was broken."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import sys
import tempfile
from collections import Counter

from tests.rig.checker import check
from tests.rig.history import read
from tests.rig.plan import ALL_NAMES, ALONE, TASKS, THREADS, Plan, Role
from tests.rig.report import aligned, headlines
from tests.rig.run import run
from tests.rig.sites import Independent
from tests.rig.verdict import Verdict
from tests.soak.storm import DOWNTIME, PLAYED, storm

BACKEND = "django_redis_lock.backends.redis.RedisLockBackend"
QUIET_LEASES = (0.6, 1.2, 6.0)
ROLES = [
    *[Role(THREADS, 4)] * 2,
    *[Role(TASKS, 4)] * 2,
    Role(THREADS, 4, quiet=True),
    *ALONE,
]
LEAST = {"acquisitions": 100, "pairs in queue compared": 1}


def main() -> int:
    """Run once, print the table, and return the exit code."""
    options = _parser().parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    directory = tempfile.mkdtemp(prefix="soak-")
    print(f"seed {seed}, {options.seconds:g} s; histories in {directory}", flush=True)
    calm = min(20.0, max(7.0, options.seconds * 0.2))
    with contextlib.closing(Independent({"BACKEND": BACKEND})) as site:
        plan = Plan(directory, seed, site.settings(), QUIET_LEASES)
        run(
            site,
            plan,
            ROLES,
            lambda stage: storm(stage, options.seconds - calm),
            downtime=DOWNTIME,
            calm=calm,
        )
    verdict = check(read(directory))
    print(table(options.seconds, seed, verdict))
    if verdict.violations:
        print("\n".join([*headlines(verdict.violations), verdict.violations[0].text]))
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
    parser.add_argument("--keep", action="store_true", help="keep the histories of a clean run")
    return parser


def table(seconds: float, seed: int, verdict: Verdict) -> str:
    """Return the summary of a run."""
    rules = Counter(violation.rule for violation in verdict.violations)
    rows = [
        ("seconds", f"{seconds:g}"),
        ("seed", seed),
        ("processes", len(ROLES)),
        ("callers", sum(role.callers for role in ROLES)),
        ("locks", len(ALL_NAMES)),
        *((key, f"{value:g}") for key, value in verdict.figures.items()),
        *((f"fault: {what}", count) for what, count in sorted(verdict.faults.items())),
        ("violations", len(verdict.violations)),
        *((f"  {rule}", count) for rule, count in rules.most_common()),
    ]
    return "\n".join(aligned(rows))


def lacking(verdict: Verdict) -> list[str]:
    """Return what a run has too little of to mean anything."""
    few = [name for name, least in LEAST.items() if verdict.figures[name] < least]
    return [fault for fault in PLAYED if not verdict.faults.get(fault)] + few


if __name__ == "__main__":
    sys.exit(main())
