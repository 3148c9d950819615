"""Compare the guards: `python -m benchmarks.celery_guards [--quick] [--only NAME] [--docs]`."""

import signal
import sys
from typing import Any

from benchmarks.celery_guards.contenders import GUARDS, Ours
from benchmarks.celery_guards.player import Player
from benchmarks.celery_guards.scenarios import SCENARIOS, Scenario
from benchmarks.celery_guards.table import broken_promises, section, table
from benchmarks.frame.environment import PYTHON, versions
from benchmarks.frame.run import INTERRUPTED, Run, parser, say, write
from benchmarks.frame.table import put_into
from benchmarks.frame.workers import Worker, WorkerError
from example_project.service import ROOT

PAGE = ROOT / "docs" / "explanation" / "celery-guards-compared.md"
PACKAGES = ("celery", "kombu", "redis", "django")
PART = "all guards at once"
TO_STOP = 60
"""Seconds that a guard's process has to end after an interruption."""


def main() -> int:
    """Play everything; return 1 if django-redis-lock broke a promise."""
    options = _options()
    chosen = [
        scenario
        for scenario in SCENARIOS
        if (scenario.name in options.only if options.only else scenario.quick or not options.quick)
    ]
    run = Run({PART: sum(scenario.seconds for scenario in chosen)})
    guards = play(run, chosen)
    run.missing = [title for guard in guards.values() for title in guard.get("missing", [])]
    results = {
        "versions": _versions(guards),
        "missing": run.missing,
        "seconds": round(run.seconds, 1),
        "guards": guards,
    }
    print(*filter(None, (run.note(), table(guards, chosen))), sep="\n\n")
    page = section(results, chosen, run.note())
    write(options.output, "celery-guards", results, f"{page}\n")
    if run.missing:
        return INTERRUPTED
    if options.docs:
        put_into(PAGE, "compare", page)
        say(f"written into {PAGE.relative_to(ROOT)}")
    broken = [
        f"{guards[slug]['title']}: {what}"
        for slug, guard in GUARDS.items()
        if issubclass(guard, Ours)
        for what in broken_promises(guards[slug], chosen)
    ]
    for what in broken:
        say(what)
    return int(bool(broken))


def play(run: Run, chosen: list[Scenario]) -> dict[str, Any]:
    """Let all guards play at once, each in its own process with its own server and worker."""
    names = [scenario.name for scenario in chosen]
    seen: dict[str, Any] = {}

    def collect(patience: float | None) -> None:
        for slug, worker in workers.items():
            if slug not in seen:
                try:
                    seen[slug] = worker.result(patience)
                except WorkerError as error:
                    seen[slug] = {"scenarios": {}, "error": str(error)}

    with run.interruptible(signal.SIGINT, signal.SIGTERM):
        workers = {slug: Worker(Player, slug) for slug in GUARDS}
        try:
            for worker in workers.values():
                worker.result()
                worker.start(Player.play, names)
            run.part(PART, lambda: collect(None))
            if run.missing:
                for worker in workers.values():
                    worker.interrupt()
                collect(TO_STOP)
        finally:
            for worker in workers.values():
                worker.close()
    return {slug: {"title": guard.title, **seen[slug]} for slug, guard in GUARDS.items()}


def _versions(guards: dict[str, Any]) -> dict[str, str | None]:
    packages = dict.fromkeys(PACKAGES)
    for guard in GUARDS.values():
        packages |= dict.fromkeys(guard.packages)
    servers = {guard["server"] for guard in guards.values() if "server" in guard}
    programs = dict(program.split(" ", 1) for program in (PYTHON, *sorted(servers)))
    return {**versions(packages), **programs}


def _options() -> Any:
    made = parser(
        "benchmarks.celery_guards",
        "Let guards against duplicate Celery tasks meet failures in real workers.",
        "a few scenarios, under a minute",
        "celery-guards",
        "",
    )
    names = [scenario.name for scenario in SCENARIOS]
    made.add_argument(
        "--only", action="append", choices=names, help="play only this scenario; repeatable"
    )
    made.add_argument("--docs", action="store_true", help=f"write the table into {PAGE.name}")
    options = made.parse_args()
    if options.docs and (options.quick or options.only):
        made.error("--docs needs all scenarios; leave out --quick and --only")
    return options


if __name__ == "__main__":
    sys.exit(main())
