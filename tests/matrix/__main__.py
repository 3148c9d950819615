"""Run the tests with each row of versions: ``python -m tests.matrix [--short] [--docs] [ROW ...]``.

Each row has a virtual environment of its own. What was met and passed is printed as a table, and
kept in ``build/matrix/``. A row whose Python or server is not on this machine is not met, which the
table says; only for the oldest versions that is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.matrix.environments import environment, redis_server, versions
from tests.matrix.interpreters import find
from tests.matrix.rows import ROWS, SHORT, Row
from tests.matrix.table import Result, markdown
from tests.tools import ROOT

RESULTS = ROOT / "build" / "matrix"
PAGE = ROOT / "docs" / "reference" / "versions.md"
_BEGIN, _END = "<!-- matrix -->\n", "<!-- end of matrix -->\n"
_FULL = """\
The two corners ran all tests, and the other rows those that meet Django, redis-py, Celery or the
server.
"""
_SHORT = "Each row ran the short selection of tests, as CI does with the oldest versions.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    names = [row.name for row in ROWS]
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"all without: {', '.join(names)}")
    parser.add_argument("--short", action="store_true", help="fewer tests")
    parser.add_argument("--docs", action="store_true", help=f"write the table into {PAGE.name}")
    options = parser.parse_args()
    unknown = set(options.rows) - set(names)
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if options.docs and options.rows:
        parser.error("--docs needs all rows; leave out their names")
    wanted = [row for row in ROWS if not options.rows or row.name in options.rows]
    RESULTS.mkdir(parents=True, exist_ok=True)
    results = []
    for row in wanted:
        print(f"\n== {row.name}", flush=True)
        results.append(_result(row, SHORT if options.short else row.tests))
    table = markdown(results)
    (RESULTS / "matrix.md").write_text(table)
    (RESULTS / "matrix.json").write_text(json.dumps([asdict(each) for each in results], indent=2))
    print(f"\n{table}")
    if options.docs:
        record(table, short=options.short)
    failed = [each.row for each in results if not each.result.startswith(("passed", "not met"))]
    return int(bool(failed))


def _result(row: Row, tests: tuple[str, ...]) -> Result:
    """Run the tests of a row, if its Python and its server are there."""
    met = next(((version, path) for version in row.pythons if (path := find(version))), None)
    lacking = "" if met else f"no Python {' or '.join(row.pythons)}"
    if row.redis and redis_server() is None:
        lacking = "no redis-server (apt-get install redis-server)"
    if met is None or lacking:
        return Result(row.name, f"{'failed' if row.required else 'not met'}: {lacking}")
    version, interpreter = met
    python = environment(row, interpreter)
    found = versions(row, python)
    print(", ".join(f"{key} {value}" for key, value in found.items()), flush=True)
    report = RESULTS / f"{row.name}.xml"
    report.unlink(missing_ok=True)
    ended = subprocess.run(
        [
            *(python, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--max-worker-restart", "0"),
            f"--junitxml={report}",
            f"--basetemp={report.with_suffix('.tmp')}",  # the workers' logs stay there
            *tests,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONDEVMODE": "1", **_server(row)},
        check=False,
    )
    counts = _read(report) if report.exists() else {}
    right = ended.returncode == 0 and counts.get("passed", 0) > 0
    result = "passed" if right else "failed"
    if version != row.pythons[0]:
        result += f" (not met: Python {row.pythons[0]})"
    return Result(row.name, result, found, **counts)


def _server(row: Row) -> dict[str, str]:
    """Return what has the tests' session use the system's Redis."""
    server = redis_server() if row.redis else None
    return {"LOCKS_TEST_SERVER": server} if server else {}


def _read(report: Path) -> dict[str, int]:
    """Return how many tests passed, were skipped and failed, and the seconds that all took."""
    suites = ET.parse(report).getroot().iter("testsuite")  # noqa: S314 - written just now by pytest
    counts = [suite.attrib for suite in suites]
    failed = sum(int(item["failures"]) + int(item["errors"]) for item in counts)
    skipped = sum(int(item["skipped"]) for item in counts)
    return {
        "passed": sum(int(item["tests"]) for item in counts) - skipped - failed,
        "skipped": skipped,
        "failed": failed,
        "seconds": round(sum(float(item["time"]) for item in counts)),
    }


def record(table: str, *, short: bool) -> None:
    """Put the table into the documentation, in place of the one that is there."""
    before, rest = PAGE.read_text().split(_BEGIN)
    after = rest.split(_END)[1]
    PAGE.write_text(f"{before}{_BEGIN}{table}\n{_SHORT if short else _FULL}{_END}{after}")


if __name__ == "__main__":
    sys.exit(main())
