"""Run the tests of the Lua scripts against mutants of them.

Each mutant has to make a test fail. One that does not survives. It has to be listed, with the
reason, in docs/contributing/mutants.md.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutants.known import survivors
from tests.mutants.laboratory import Laboratory, Outcome
from tests.mutants.lua import Mutant, mutants

ROOT = Path(__file__).parents[2]
SCRIPTS = Path("django_redis_lock/transport/scripts")
TESTS = ("tests/transport/scripts", "tests/backends/test_machine.py::test_locks_on_a_server")
"""Those of each script, and those that compare random operations with a model."""


def main(arguments: Sequence[str]) -> int:
    """Run the mutants that the arguments name; return 0 if none survives without a reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("scripts", nargs="*", help="names without .lua; all if none is given")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="only N that are not listed, always the same"
    )
    options = parser.parse_args(arguments)
    chosen = list(of_scripts(options.scripts))
    if options.sample:
        chosen = sample(chosen, options.sample)
    listed = survivors() & {each.id for each in chosen}
    survived = survivors_of(chosen)
    for each in sorted(survived - listed):
        print(f"survived, and is not listed: {each}")
    for each in sorted(listed - survived):
        print(f"listed as a survivor, but a test kills it: {each}")
    return int(survived != listed)


def of_scripts(names: Sequence[str]) -> Iterator[Mutant]:
    """Yield the mutants of some scripts, or of all."""
    for path in sorted((ROOT / SCRIPTS).glob("*.lua")):
        if not names or path.stem in names:
            yield from mutants(path.stem, path.read_text())


def sample(chosen: Sequence[Mutant], count: int) -> list[Mutant]:
    """Return some mutants of all kinds that a test is known to kill."""
    killed = [each for each in chosen if each.id not in survivors()]
    return sorted(killed, key=lambda each: hashlib.sha256(each.id.encode()).digest())[:count]


def survivors_of(chosen: Sequence[Mutant]) -> set[str]:
    """Run the tests against mutants, print the outcomes, and return the ids of the survivors."""
    survived = set()
    counts = dict.fromkeys(Outcome, 0)
    with Laboratory(ROOT) as laboratory:
        limit = 3 * laboratory.check(TESTS) + 20
        tests = TESTS
        for number, mutant in enumerate(chosen, 1):
            path = SCRIPTS / f"{mutant.script}.lua"
            outcome, seconds, killer = laboratory.try_out(path, mutant.source, tests, limit)
            counts[outcome] += 1
            if outcome is Outcome.SURVIVED:
                survived.add(mutant.id)
            elif killer:
                tests = (killer, *TESTS)  # it may well kill the next
            print(
                f"{number}/{len(chosen)} {outcome.value} {seconds:.1f} s | {mutant.id}", flush=True
            )
    print(", ".join(f"{count} {outcome.value}" for outcome, count in counts.items()))
    return survived


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
