"""Run the benchmark: `python -m benchmarks [--quick] [--only NAME] [--output DIR]`."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from redis import Redis

from example_project.embedded import EmbeddedServer

from .contenders import ADMIN
from .environment import environment
from .model import QUICK, Bench, Sizes
from .report import markdown
from .scenarios import SCENARIOS
from .targets import judged

CLIENT_OPTIONS = "?socket_timeout=30&max_connections=256"
"""The same for all clients: a BLPOP may last as long as a lease, and 100 threads may need 100
connections; redis-py's own limits are 5 s and 100."""


def main() -> None:
    """Measure, then print the table and write JSON and the picture."""
    options = _options()
    sizes = QUICK if options.quick else Sizes()
    chosen = [
        scenario for scenario in SCENARIOS if not options.only or scenario.name in options.only
    ]
    began = time.monotonic()
    with EmbeddedServer() as server:
        url = server.url() + CLIENT_OPTIONS
        with Redis.from_url(url, client_name=ADMIN) as admin:
            bench = Bench(url, server.port, sizes, admin)
            results = {"environment": environment(admin), "quick": options.quick}
            scenarios = {}
            for number, scenario in enumerate(chosen, 1):
                title = sizes.fill(scenario.title)
                print(f"[{number}/{len(chosen)}] {title}", file=sys.stderr, flush=True)
                scenarios[scenario.name] = scenario.run(bench)
    results |= {
        "sizes": asdict(sizes),
        "seconds": round(time.monotonic() - began, 1),
        "targets": list(judged(scenarios)),
        "scenarios": scenarios,
    }
    page = markdown(results, SCENARIOS)
    print(page)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "latest.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.output / "latest.md").write_text(page)

    from .picture import draw  # not above: worker processes import this module too

    draw(results, SCENARIOS, options.output / "latest.png")
    print(f"written to {options.output} after {results['seconds']:.0f} s", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure django-redis-lock beside its peers on an embedded server.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few minutes, rough: does the benchmark work?"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=[scenario.name for scenario in SCENARIOS],
        help="run this scenario only; may be given again",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent / "results",
        help="directory for latest.json, latest.md and latest.png",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
