"""Run the benchmark: `python -m benchmarks [--quick] [--only NAME] [--output DIR]`."""

import signal
import sys
from dataclasses import asdict
from typing import Any

from redis import Redis

from benchmarks.bench import QUICK, Bench, Sizes
from benchmarks.frame.environment import environment
from benchmarks.frame.run import INTERRUPTED, Run, parser, write
from benchmarks.frame.server import ADMIN
from benchmarks.frame.targets import judged
from benchmarks.report import TARGETS, draw, markdown
from benchmarks.scenarios import SCENARIOS
from example_project.embedded import EmbeddedServer

CLIENT_OPTIONS = "?socket_timeout=30&max_connections=256"
"""For all clients: a BLPOP may last as long as a lease, and 100 threads may need 100 connections;
redis-py's own limits are 5 s and 100."""


def main() -> int:
    """Measure; print the table, and write it with JSON and a picture."""
    options = _options()
    sizes = QUICK if options.quick else Sizes()
    chosen = [each for each in SCENARIOS if not options.only or each.name in options.only]
    run = Run({sizes.fill(each.title): each.seconds(sizes) for each in chosen})
    scenarios: dict[str, Any] = {}
    with run.interruptible(signal.SIGINT, signal.SIGTERM), EmbeddedServer() as server:
        url = server.url() + CLIENT_OPTIONS
        with Redis.from_url(url, client_name=ADMIN) as admin:
            bench = Bench(url, server.port, sizes, admin, run)
            results = {"environment": environment(admin), "quick": options.quick}
            for scenario in chosen:
                if result := scenario.run(bench):
                    scenarios[scenario.name] = result
    results |= {
        "missing": run.missing,
        "sizes": asdict(sizes),
        "seconds": round(run.seconds, 1),
        "targets": list(judged(scenarios, TARGETS)),
        "scenarios": scenarios,
    }
    page = markdown(results, SCENARIOS, run.note())
    print(page)
    write(options.output, "latest", results, page)
    draw(results, SCENARIOS, options.output / "latest.png")
    return INTERRUPTED if run.missing else 0


def _options() -> Any:
    made = parser(
        "benchmarks",
        "Measure django-redis-lock beside its peers on an embedded server.",
        "a few minutes, rough figures: does the benchmark work?",
        "latest",
        " and latest.png",
    )
    names = [scenario.name for scenario in SCENARIOS]
    made.add_argument(
        "--only", action="append", choices=names, help="run only this scenario; repeatable"
    )
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
