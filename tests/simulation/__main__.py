"""Play schedules of the lock protocol on a virtual clock, and check the promises at every step. A
schedule that breaks one is shrunk and shown. Exits with 1 if there was one."""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.simulation.settings"
django.setup()

from tests.simulation import campaign, mutants  # noqa: E402 - they need the settings
from tests.simulation.interleavings import SCENARIOS, explore  # noqa: E402
from tests.simulation.layouts import LAYOUTS  # noqa: E402
from tests.simulation.product import simulated  # noqa: E402
from tests.simulation.schedules import KEPT, Chance, Regression, play, vary  # noqa: E402


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments say; return the exit code."""
    options = _parser().parse_args(arguments)
    if options.broken:
        return mutants.run(options.broken[0], options.broken[1:])
    if options.mutants:
        return mutants.main(options.mutants, options.jobs)
    options.layouts = options.layouts or list(LAYOUTS)
    if unknown := set(options.layouts) - set(LAYOUTS):
        print(f"No such layout: {', '.join(sorted(unknown))}. There are {', '.join(LAYOUTS)}.")
        return 2
    if options.replay is not None:
        return _replay(options.layouts[0], options.replay)
    if options.vary is not None:
        return _vary(options.vary, options.schedules, options.seed)
    failed = _explore(options.orders) if options.orders else False
    return int(_play(options) or failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("layouts", nargs="*", help=f"some of {', '.join(LAYOUTS)}; all by default")
    for name, default, about in (
        ("schedules", 100_000, "how many, shared by the layouts (%(default)s)"),
        ("seed", 0, "other schedules (%(default)s)"),
        ("jobs", os.cpu_count(), "processes (%(default)s)"),
        ("orders", 0, "all orders at small scope, as deep as N schedules of each scenario reach"),
        ("mutants", 0, "try each broken copy with N schedules at most"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", default=default, help=about)
    parser.add_argument("--replay", metavar="SEED", help="tell one schedule: its seed, or a file")
    about = "replace the schedule in FILE with one like it that breaks the same promise"
    parser.add_argument("--vary", type=Path, metavar="FILE", help=about)
    about = "do what follows with a broken copy whose name begins with the first word"
    parser.add_argument("--broken", nargs=argparse.REMAINDER, metavar="ABOUT", help=about)
    about = "play the kept schedules, too, and end at the first failure, without shrinking it"
    parser.add_argument("--first", action="store_true", help=about)
    return parser


def _play(options: argparse.Namespace) -> bool:
    if options.first and _play_kept(options.layouts):
        return True
    tallies = campaign.run(
        options.layouts, options.schedules, options.seed, options.jobs, until_failure=options.first
    )
    for tally in tallies.values():
        steps = tally.steps / max(tally.schedules, 1)
        print(f"{tally.layout:14} {tally.schedules:>9,} schedules, {steps:4.0f} steps each, "
              f"{len(tally.failures)} failed")  # fmt: skip
        for what, times in sorted(tally.expected.items()):
            print(f"{'':14}   not promised: {what}: {times:,}, as in {tally.examples[what]}")
    failures = [(tally.layout, *found) for tally in tallies.values() for found in tally.failures]
    for layout, seed, failure in failures[:5]:
        print(f"\n{layout}, seed {seed}: {failure}")
        if not options.first:
            with simulated():
                choices = play(LAYOUTS[layout], Chance(seed)).choices
            _show_least(Regression(failure, layout, choices))
            print(f"make simulate ARGS='{layout} --replay {seed}' tells the whole of it.")
    return bool(failures)


def _play_kept(layouts: Sequence[str]) -> bool:
    """Play the schedules that failed once; return whether one fails again."""
    with simulated():
        for path in sorted(KEPT.glob("*.json")):
            kept = Regression.read(path)
            failure = kept.layout in layouts and kept.play().failure
            if failure:
                print(f"{kept.layout}, kept {path.stem}: {failure}")
                return True
    return False


def _show_least(failed: Regression) -> Regression:
    """Show the least of a schedule that failed, and return it."""
    with simulated():
        least = failed.least()
        print("\n".join(least.play(telling=True).story))
    print(f"{least.about}\nTo keep it, in a file of {KEPT.name}:\n{least.text()}")
    return least


def _vary(path: Path, schedules: int, seed: int) -> int:
    """Record a schedule again whose choices lead elsewhere since the package takes other steps."""
    kept, dice = Regression.read(path), random.Random(seed)
    promise = kept.about.partition(":")[0]
    gc.freeze()
    gc.disable()  # as in a campaign
    for tried in range(schedules):
        choices = vary(kept.choices, dice) if tried else kept.choices
        near = Regression("", kept.layout, choices)
        with simulated():
            found = near.play().promise
        if found == promise:
            path.write_text(f"{_show_least(near).text()}\n")
            return 0
        if tried % campaign.CHUNK == 0:
            gc.collect()
    print(f"{promise} holds in {schedules:,} schedules.")
    return 1


def _replay(layout: str, which: str) -> int:
    """Tell one schedule, by its seed or from a file."""
    with simulated():
        if which.isdigit():
            verdict = play(LAYOUTS[layout], Chance(int(which)), telling=True)
        else:
            verdict = Regression.read(Path(which)).play(telling=True)
    print("\n".join(verdict.story))
    print(verdict.failure or f"No promise is broken in {verdict.steps} steps.")
    for what, times in verdict.expected.items():
        print(f"not promised: {what}: {times}")
    return int(bool(verdict.failure))


def _explore(schedules: int) -> bool:
    failed = False
    for scenario in SCENARIOS:
        with simulated():
            found = explore(scenario, schedules)
        failed |= bool(found.failure)
        depth = "" if found.depth is None else f" of the first {found.depth} choices"
        print(f"{scenario.layout:14} {scenario.about}: all orders{depth}, "
              f"{found.schedules:,} schedules {found.failure}", flush=True)  # fmt: skip
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
