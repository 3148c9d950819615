"""Run broken copies of the package: ``python -m tests.chaos.broken``. Exit code 1 if the checker or
``tests.judge`` does not find one that it can see. Only a rule on locks counts, and no error: a copy
that does not run is not found."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.chaos.__main__ import PATIENCE
from tests.chaos.checker import check
from tests.chaos.history import read
from tests.chaos.story import ALARMS
from tests.judge.__main__ import judge
from tests.simulation import mutants

RULES = {"overlap", "fence went back", "fence given twice", "promise broken", "came back"}
"""Those of the checker that count; and a loss without a cause, as other errors do not."""
MOST_RUNS = 4
"""Of a copy, each with another seed, until both have found it: faults strike by chance."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.broken", description=__doc__)
    parser.add_argument("--seconds", type=float, default=25, help="for each (default 25)")
    parser.add_argument("--seed", type=int, default=1, help="of callers and faults (default 1)")
    options = parser.parse_args()
    missed = 0
    for mutant in mutants.read(Path(__file__).with_name("broken.toml")):
        runs, rules = 0, defaultdict[str, set[str]](set)
        while runs < MOST_RUNS and not {"checker", "judge"} <= {*rules, mutant.not_seen_by}:
            with tempfile.TemporaryDirectory(prefix="chaos-broken-") as directory:
                _play(mutant, directory, options.seconds, options.seed + runs)
                for judged_by, found in _rules(Path(directory)).items():
                    if found:
                        rules[judged_by] |= found
            runs += 1
        print(f"{mutant.about} (runs: {runs}):", flush=True)
        for judged_by in ("checker", "judge"):
            blind = mutant.not_seen_by == judged_by
            told = ", ".join(sorted(rules[judged_by])) or ("can't see it" if blind else "NOT FOUND")
            missed += told == "NOT FOUND"
            print(f"  {judged_by:10} {told}", flush=True)
    return int(missed > 0)


def _play(mutant: mutants.Mutant, directory: str, seconds: float, seed: int) -> None:
    """Carry out a run of a broken copy; whatever else becomes of it, its history stays behind."""
    arguments = ("--layout", mutant.layout, "--seed", str(seed), "--run", directory)
    with mutant.copied("tests", "example_project") as copy:
        subprocess.run(
            [sys.executable, "-m", "tests.chaos", "--seconds", str(seconds), *arguments],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            timeout=seconds + PATIENCE,
            check=False,
        )


def _rules(directory: Path) -> dict[str, set[str]]:
    """Return which rules a history breaks, by who says so."""
    events = list(read(directory))
    # A rule is not broken if there is nothing to judge.
    judged = {rule for rule, each in judge(events).items() if any(" can't " in one for one in each)}
    found = check(events).violations
    checked = {each.rule for each in found if each.rule in RULES or "LockLost" in each.text}
    return {"checker": checked - {*ALARMS}, "judge": judged}


if __name__ == "__main__":
    sys.exit(main())
