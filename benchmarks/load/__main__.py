"""Put the shop under load: `python -m benchmarks.load [--quick] [--docs] [--output DIR]`."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.frame.run import INTERRUPTED, parser, say, write
from benchmarks.frame.table import put_into
from benchmarks.frame.targets import judged
from benchmarks.load.plan import LONG, QUICK
from benchmarks.load.quiet import Watch, noise
from benchmarks.load.report import TARGETS, broken, draw, markdown
from benchmarks.load.run import Load
from example_project.service import ROOT

PAGE = ROOT / "docs" / "explanation" / "flash-sale.md"
PICTURE = ROOT / "docs" / "images" / "flash-sale.svg"
PICTURE_SHOWS = "Bars: orders a second, waits, and pages of bystanders, for each guard"


def main() -> int:
    """Measure, print, write; return 1 if something was oversold or a target was missed."""
    watch = Watch()
    options = _options(watch)
    plan = QUICK if options.quick else LONG
    load = Load(replace(plan, rounds=options.rounds or plan.rounds), watch)
    load.measure()
    results: dict[str, Any] = {"quick": options.quick, **load.results}
    if "environment" not in results:
        say("interrupted before anything was measured")
        return INTERRUPTED
    results["targets"] = list(judged(results, TARGETS))
    page = markdown(results, load.run.note())
    print(page)
    write(options.output, "load", results, page)
    draw(results, options.output / "load.svg")
    if load.run.missing:
        return INTERRUPTED
    wrong = list(_wrong(results, options.docs))
    if options.docs and not noise(results["machine"]):
        put_into(PAGE, "load", f"![{PICTURE_SHOWS}](../images/{PICTURE.name})\n\n{page}")
        draw(results, PICTURE)
    for line in wrong:
        say(line)
    say("oversold, failed or missed" if wrong else "all as promised")
    return int(bool(wrong))


def _wrong(results: dict[str, Any], docs: bool) -> Iterator[str]:
    """Yield what must not happen, and what was missed; the quick form has no targets."""
    yield from broken(results)
    for target in results["targets"]:
        if not target["met"] and not results["quick"]:
            yield f"not met: {target['what']}: {target['value']}, target {target['target']}"
    if docs:
        for reason in noise(results["machine"]):
            yield f"{PAGE.name} stays as it was, because the machine was not quiet: {reason}"


def _options(watch: Watch) -> Any:
    """Read the arguments, and look at the machine; refuse what it is too busy for."""
    minutes = sum(seconds for _, seconds, *_ in LONG.parts()) / 60
    made = parser(
        "benchmarks.load",
        "Put a shop under load, with one guard against overselling after the other. The long form "
        f"takes about {minutes:.0f} minutes.",
        "about a minute and a half, rough figures: is anything oversold?",
        "load",
        " and load.svg",
    )
    made.add_argument(
        "--rounds", type=int, help=f"how often each figure is measured; {LONG.rounds} if not given"
    )
    made.add_argument("--docs", action="store_true", help=f"write the tables into {PAGE.name}")
    options = made.parse_args()
    if options.rounds is not None and options.rounds < 1:
        made.error(f"--rounds {options.rounds}: at least 1")
    if options.docs and (options.quick or (options.rounds or LONG.rounds) < LONG.rounds):
        made.error(f"--docs needs the long form, {LONG.rounds} rounds or more")
    watch.before()
    if options.docs and (reasons := noise(watch.found())):
        made.error(f"--docs needs a quiet machine: {'; '.join(reasons)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
