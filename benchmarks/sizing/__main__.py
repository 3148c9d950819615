"""Measure what a server carries: `python -m benchmarks.sizing [--quick] [--docs]`."""

import os
import signal
import sys
from functools import partial
from typing import Any

from redis import Redis

from benchmarks.frame.environment import environment
from benchmarks.frame.run import INTERRUPTED, Run, parser, say, write
from benchmarks.frame.server import ADMIN
from benchmarks.frame.table import put_into
from benchmarks.sizing.measure import Sizing
from benchmarks.sizing.plan import LONG, QUICK
from benchmarks.sizing.report import broken, markdown
from example_project.embedded import EmbeddedServer
from example_project.service import ROOT

PAGE = ROOT / "docs" / "explanation" / "sizing.md"
QUIET = 0.25
"""A higher load average for each CPU says that the machine is not idle."""
CONFIG = ("--maxclients", "5000")


def main() -> int:
    """Measure, print, write; return 1 if a lock was lost."""
    options = _options()
    plan = QUICK if options.quick else LONG
    run = Run({title: seconds for title, seconds, *_ in plan.parts()})
    results: dict[str, Any] = {"quick": options.quick, "lease": plan.lease}
    results |= {"weigh": [], "replay": [], "rush": [], "hold": [], "wait": []}
    with (
        run.interruptible(signal.SIGINT, signal.SIGTERM),
        EmbeddedServer(*CONFIG) as server,
        Redis.from_url(server.url(), client_name=ADMIN, socket_timeout=30) as admin,
    ):
        results["environment"] = environment(admin)
        sizing = Sizing(server, admin, plan)
        for title, _, method, arguments in plan.parts():
            row = run.part(title, partial(getattr(sizing, method), *arguments))
            if row is not None:
                results[method].append(row)
    results |= {"missing": run.missing, "seconds": round(run.seconds)}
    page = markdown(results, run.note())
    print(page)
    write(options.output, "sizing", results, page)
    if run.missing:
        return INTERRUPTED
    if options.docs:
        put_into(PAGE, "sizing", page)
        say(f"written into {PAGE.relative_to(ROOT)}")
    wrong = list(broken(results))
    for line in wrong:
        say(line)
    return int(bool(wrong))


def _options() -> Any:
    made = parser(
        "benchmarks.sizing",
        "Measure what a server and a process carry: held locks, renewals, pairs, waiters.",
        "half a minute, rough figures: can everything be measured?",
        "sizing",
        "",
    )
    made.add_argument("--docs", action="store_true", help=f"write the tables into {PAGE.name}")
    options = made.parse_args()
    if options.docs:
        if options.quick:
            made.error("--docs needs the long form; leave out --quick")
        load = os.getloadavg()[0]
        if load > QUIET * len(os.sched_getaffinity(0)):
            made.error(f"--docs needs an idle machine; its load is {load:.2f}")
    return options


if __name__ == "__main__":
    sys.exit(main())
