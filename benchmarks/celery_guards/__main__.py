"""Compare the guards: `python -m benchmarks.celery_guards [--quick] [--only NAME] [--docs]`."""

import argparse
import json
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .contenders import GUARDS, Ours
from .scenarios import SCENARIOS
from .table import broken_promises, put_into, section, table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "celery-guards-compared.md"
PACKAGES = ("celery", "kombu", "redis", "django")


def main() -> int:
    """Play everything; return 1 if django-redis-lock did not come through as it promises."""
    options = _options()
    chosen = [
        scenario
        for scenario in SCENARIOS
        if (scenario.name in options.only if options.only else scenario.quick or not options.quick)
    ]
    began = time.monotonic()
    guards = _play([scenario.name for scenario in chosen])
    results = {
        "versions": _versions(guards),
        "seconds": round(time.monotonic() - began, 1),
        "guards": guards,
    }
    print(table(results, chosen))
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "celery-guards.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.output / "celery-guards.md").write_text(section(results, chosen) + "\n")
    print(f"written to {options.output} after {results['seconds']:.0f} s", file=sys.stderr)
    if options.docs:
        put_into(PAGE, section(results, chosen))
        print(f"written into {PAGE.relative_to(ROOT)}", file=sys.stderr)
    broken = [
        f"{guards[slug]['title']}: {what}"
        for slug, guard in GUARDS.items()
        if issubclass(guard, Ours)
        for what in broken_promises(guards[slug], chosen)
    ]
    print(*broken, sep="\n", end="\n" if broken else "", file=sys.stderr)
    return int(bool(broken))


def _play(names: list[str]) -> dict[str, Any]:
    """Let all guards play at once, each in a process of its own with its own server and worker."""
    command = [sys.executable, "-m", f"{__package__}.play"]
    processes = {
        slug: subprocess.Popen(
            [*command, slug, *names], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for slug in GUARDS
    }
    guards = {}
    for slug, process in processes.items():
        said, _ = process.communicate()
        try:
            seen = json.loads(said)
        except ValueError:
            seen = {"scenarios": {}, "error": f"its process ended with {process.returncode}"}
        guards[slug] = {"title": GUARDS[slug].title, **seen}
    return guards


def _versions(guards: dict[str, Any]) -> dict[str, str]:
    packages = dict.fromkeys(PACKAGES)
    for guard in GUARDS.values():
        packages |= dict.fromkeys(guard.packages)
    servers = {guard["server"] for guard in guards.values() if "server" in guard}
    return {
        **{name: version(name) for name in packages},
        platform.python_implementation(): platform.python_version(),
        **dict(server.split(" ", 1) for server in sorted(servers)),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.celery_guards",
        description="Let guards against duplicate Celery tasks meet failures in real workers.",
    )
    parser.add_argument("--quick", action="store_true", help="a few scenarios, under a minute")
    parser.add_argument(
        "--only",
        action="append",
        choices=[scenario.name for scenario in SCENARIOS],
        help="play this scenario only; may be given again",
    )
    parser.add_argument("--docs", action="store_true", help=f"write the table into {PAGE.name}")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results",
        help="directory for celery-guards.json and celery-guards.md",
    )
    options = parser.parse_args()
    if options.docs and (options.quick or options.only):
        parser.error("--docs wants all scenarios; leave out --quick and --only")
    return options


if __name__ == "__main__":
    sys.exit(main())
