"""Play schedules of the lock protocol on a virtual clock, and check the promises at every step.

A schedule that breaks one is shrunk and shown. Exits with 1 if there was one.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.simulation.settings"
django.setup()

from tests.simulation import campaign, mutants  # noqa: E402 - they need the settings
from tests.simulation.campaign import CHUNK, Tally  # noqa: E402
from tests.simulation.choices import Chance, Choices, Replay  # noqa: E402
from tests.simulation.interleavings import SCENARIOS, explore  # noqa: E402
from tests.simulation.layouts import LAYOUTS  # noqa: E402
from tests.simulation.product import simulated  # noqa: E402
from tests.simulation.regressions import KEPT, Regression, shrink, vary  # noqa: E402
from tests.simulation.schedules import play  # noqa: E402


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments say; return the exit code."""
    options = _parser().parse_args(arguments)
    if options.broken:
        return mutants.run(options.broken[0], options.broken[1:])
    layouts = options.layouts or list(LAYOUTS)
    if unknown := set(layouts) - set(LAYOUTS):
        print(f"No such layout: {', '.join(sorted(unknown))}. There are {', '.join(LAYOUTS)}.")
        return 2
    if options.replay is not None:
        return _replay(layouts, options.replay)
    if options.vary is not None:
        return _vary(options.vary, options.schedules, options.seed)
    if options.mutants:
        return mutants.main(options.mutants, options.jobs)
    failed = 0
    if options.orders:
        failed |= _explore(options.orders)
    if options.schedules:
        failed |= _play(layouts, options)
    return failed


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
    parser.add_argument(
        "--first",
        action="store_true",
        help="play the kept schedules, too, and end at the first failure, without shrinking it",
    )
    return parser


def _play(layouts: Sequence[str], options: argparse.Namespace) -> int:
    if options.first and (failure := _play_kept(layouts)):
        print(failure)
        return 1
    tallies = campaign.run(
        layouts, options.schedules, options.seed, options.jobs, until_failure=options.first
    )
    for tally in tallies.values():
        _show(tally)
    failures = [(tally.layout, *found) for tally in tallies.values() for found in tally.failures]
    for layout, seed, failure in failures[:5]:
        print(f"\n{layout}, seed {seed}: {failure}")
        if not options.first:
            _show_shrunk(layout, Chance(seed))
            print(f"make simulate ARGS='{layout} --replay {seed}' tells the whole of it.")
    return int(bool(failures))


def _play_kept(layouts: Sequence[str]) -> str:
    """Play the schedules that failed once; return what fails again."""
    with simulated():
        for path in sorted(KEPT.glob("*.json")):
            kept = Regression.read(path)
            if kept.layout in layouts:
                verdict = play(LAYOUTS[kept.layout], kept.choose())
                if verdict.failure:
                    return f"{kept.layout}, kept {path.stem}: {verdict.failure}"
    return ""


def _show(tally: Tally) -> None:
    rate = tally.schedules / max(tally.seconds, 0.001)
    steps = tally.steps / max(tally.schedules, 1)
    print(
        f"{tally.layout:14} {tally.schedules:>9,} schedules, {steps:4.0f} steps each, "
        f"{tally.seconds:6.0f} s of CPU ({rate:,.0f}/s), {len(tally.failures)} failed"
    )
    for what, times in sorted(tally.expected.items()):
        print(f"{'':14}   not promised: {what}: {times:,}, as in {tally.examples[what]}")


def _show_shrunk(name: str, choices: Choices) -> str:
    """Return what a file has that keeps the least of a schedule that failed."""
    layout = LAYOUTS[name]
    with simulated():
        first = play(layout, choices)

        def fails(candidate: list[int]) -> bool:
            return play(layout, Replay(candidate)).promise == first.promise

        least = shrink(first.choices, fails)
        verdict = play(layout, Replay(least), telling=True)
    text = Regression(verdict.failure, name, least).text()
    print("\n".join(verdict.story))
    print(f"{verdict.failure}\nTo keep it, in a file of {KEPT.name}:\n{text}")
    return text


def _vary(path: Path, schedules: int, seed: int) -> int:
    """Record a schedule again whose choices lead elsewhere since the package takes other steps."""
    kept = Regression.read(path)
    promise, dice = kept.about.partition(":")[0], random.Random(seed)
    gc.freeze()
    gc.disable()  # as in a campaign
    for tried in range(schedules):
        choices = vary(kept.choices, dice) if tried else kept.choices
        with simulated():
            verdict = play(LAYOUTS[kept.layout], Replay(choices))
        if verdict.promise == promise:
            path.write_text(f"{_show_shrunk(kept.layout, Replay(choices))}\n")
            return 0
        if tried % CHUNK == 0:
            gc.collect()
    print(f"{promise} holds in {schedules:,} schedules.")
    return 1


def _replay(layouts: Sequence[str], which: str) -> int:
    """Tell one schedule, by its seed or from a file."""
    if which.isdigit():
        name, choices = layouts[0], Chance(int(which))
    else:
        regression = Regression.read(Path(which))
        name, choices = regression.layout, regression.choose()  # type: ignore[assignment]
    with simulated():
        verdict = play(LAYOUTS[name], choices, telling=True)
    print("\n".join(verdict.story))
    print(verdict.failure or f"No promise is broken in {verdict.steps} steps.")
    for what, times in verdict.expected.items():
        print(f"not promised: {what}: {times}")
    return int(bool(verdict.failure))


def _explore(schedules: int) -> int:
    failed = 0
    for scenario in SCENARIOS:
        began = time.monotonic()
        with simulated():
            found = explore(scenario, schedules)
        failed |= bool(found.failure)
        depth = "" if found.depth is None else f" of the first {found.depth} choices"
        print(
            f"{scenario.layout:14} {scenario.about}: all orders{depth}, "
            f"{found.schedules:,} schedules, "
            f"{time.monotonic() - began:.0f} s"
            f"{'; ' + found.failure if found.failure else ''}",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
