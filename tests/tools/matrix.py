"""Runs the Celery tests with several versions of Celery, and tells how each of them did.

Each version has a virtual environment of its own, which ``make matrix`` makes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "matrix"
PACKAGES = ("celery", "kombu", "redis", "django-redis", "django")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", help='of Celery, such as "5.4 5.5"; what follows is for pytest')
    known, for_pytest = parser.parse_known_args()
    if not any(".py" in argument for argument in for_pytest):
        for_pytest.append("tests/celery")
    RESULTS.mkdir(parents=True, exist_ok=True)
    rows = [[*PACKAGES, "python", "passed", "failed", "seconds", ""]]
    for version in known.versions.split():
        print(f"\n== Celery {version}", flush=True)
        rows.append(_run(version, for_pytest))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print()
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    return int(any(row[-1] != "ok" for row in rows[1:]))


def _run(version: str, for_pytest: list[str]) -> list[str]:
    """Run the tests with one version; return its row of the table."""
    python = ROOT / f".venv-celery-{version}" / "bin" / "python"
    report = RESULTS / f"celery-{version}.xml"
    report.unlink(missing_ok=True)
    ended = subprocess.run(
        [
            *(python, "-m", "pytest", f"--junitxml={report}"),
            f"--basetemp={report.with_suffix('.tmp')}",  # the workers' logs stay there
            *for_pytest,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONDEVMODE": "1"},
        check=False,
    )
    passed, failed, seconds = _read(report) if report.exists() else (0, 0, 0.0)
    right = ended.returncode == 0 and passed > 0
    return [
        *_versions(python),
        str(passed),
        str(failed),
        f"{seconds:.0f}",
        "ok" if right else "WRONG",
    ]


def _read(report: Path) -> tuple[int, int, float]:
    """Return how many tests passed, how many did not, and the seconds that all took."""
    suites = ET.parse(report).getroot().iter("testsuite")  # noqa: S314 - written just now by pytest
    counts = [suite.attrib for suite in suites]
    failed = sum(int(item["failures"]) + int(item["errors"]) for item in counts)
    passed = sum(int(item["tests"]) - int(item["skipped"]) for item in counts) - failed
    return passed, failed, sum(float(item["time"]) for item in counts)


def _versions(python: Path) -> list[str]:
    program = (
        "import platform; from importlib.metadata import version\n"
        f"print(*map(version, {PACKAGES!r}), platform.python_version())"
    )
    return subprocess.run(
        [python, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()


if __name__ == "__main__":
    sys.exit(main())
