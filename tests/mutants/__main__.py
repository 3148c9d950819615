"""Run the tests against mutants of the Lua scripts.

Each mutant has to make a test fail. One that does not survives. It has to be listed, with the
reason, in docs/contributing/mutants.md.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutants import known
from tests.mutants.laboratory import Laboratory, Outcome
from tests.mutants.lua import Mutant, mutants
from tests.mutants.users import ALL, QUICK

ROOT = Path(__file__).parents[2]
SCRIPTS = Path("django_redis_lock/transport/scripts")


def main(arguments: Sequence[str]) -> int:
    """Run the mutants that the arguments name; return 0 if none survives without a reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("scripts", nargs="*", help="names without .lua; all if none is given")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--sample", type=int, metavar="N", help="only N that the quick tests are known to kill"
    )
    how.add_argument("--record", action="store_true", help="find those, with the quick tests only")
    options = parser.parse_args(arguments)
    chosen = list(of_scripts(options.scripts))
    with Laboratory(ROOT) as laboratory:
        if options.record:
            return record(laboratory, chosen)
        if options.sample:
            return check_sample(laboratory, chosen, options.sample)
        return check_all(laboratory, chosen)


def of_scripts(names: Sequence[str]) -> Iterator[Mutant]:
    """Yield the mutants of some scripts, or of all."""
    for path in sorted((ROOT / SCRIPTS).glob("*.lua")):
        if not names or path.stem in names:
            yield from mutants(path.stem, path.read_text())


def check_all(laboratory: Laboratory, chosen: Sequence[Mutant]) -> int:
    """Try the quick tests and the tests that call the script."""
    users = laboratory.users(ALL, SCRIPTS)
    left = []
    for script in dict.fromkeys(each.script for each in chosen):
        mine = [each for each in chosen if each.script == script]
        tests = [*QUICK, *users.get(script, [])]
        left += [each.id for each in survivors_of(laboratory, mine, tests)]
    listed = known.survivors() & {each.id for each in chosen}
    for each in sorted(set(left) - listed):
        print(f"survived, and is not listed: {each}")
    for each in sorted(listed - set(left)):
        print(f"listed as a survivor, but a test kills it: {each}")
    return int(set(left) != listed)


def check_sample(laboratory: Laboratory, chosen: Sequence[Mutant], count: int) -> int:
    """Check that the quick tests still kill mutants that they are known to kill."""
    ids = known.killed_quickly()
    ordered = sorted(
        (each for each in chosen if each.id in ids),
        key=lambda each: hashlib.sha256(each.id.encode()).digest(),
    )
    if len(ordered) < count:
        print(f"Only {len(ordered)} mutants are known to be killed: run with --record.")
        return 1
    return int(bool(survivors_of(laboratory, ordered[:count], QUICK)))


def record(laboratory: Laboratory, chosen: Sequence[Mutant]) -> int:
    """Write down which mutants the quick tests kill."""
    left = {each.id for each in survivors_of(laboratory, chosen, QUICK, note=True)}
    print(*sorted(left), sep="\n")
    return 0


def survivors_of(
    laboratory: Laboratory, chosen: Sequence[Mutant], tests: Sequence[str], *, note: bool = False
) -> list[Mutant]:
    """Run tests against mutants, print the outcomes, and return the survivors.

    A test that has killed a mutant comes first for the next.
    """
    survivors = []
    tests = list(tests)
    limit = 3 * laboratory.check(tests) + 20
    counts = dict.fromkeys(Outcome, 0)
    for number, mutant in enumerate(chosen, 1):
        path = SCRIPTS / f"{mutant.script}.lua"
        outcome, seconds, killer = laboratory.try_out(path, mutant.source, tests, limit)
        if killer in tests:
            tests.remove(killer)
            tests.insert(0, killer)
        counts[outcome] += 1
        if outcome is Outcome.SURVIVED:
            survivors.append(mutant)
        elif note and outcome is Outcome.KILLED:
            known.record({mutant.id})
        print(f"{number}/{len(chosen)} {outcome.value} {seconds:.1f} s | {mutant.id}", flush=True)
    print(", ".join(f"{count} {outcome.value}" for outcome, count in counts.items()))
    return survivors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
