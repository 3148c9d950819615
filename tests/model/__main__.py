"""Check models of the lock protocol with spin, in every order of events at small scope.

Exits with 1 if a promise is broken, a broken copy is not found, or a search was not complete."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

MODELS = Path(__file__).parent
MEMORY = 12_000  # megabytes that a search may take
DEEPEST = 2_000_000  # steps of one run
SIGNS = "errors: 0", "Full statespace search", "invalid end states\t+"  # of a complete search
TRUNCATED = "max search depth too small|Search not completed|out of memory|MEMLIM"


class Scope(NamedTuple):
    """What is searched, and which promise is broken there; none in a sound model."""

    model: str
    about: str
    flags: str
    broken: str = ""


SMALL = (
    Scope("lock", "2 callers, 1 fault", "N=2 LEASE=4 FAULTS=1"),
    Scope("lock", "2 readers and a writer", "N=3 LEASE=3 FAULTS=0 L0=ALL L1=ALL L2=ALONE"),
    Scope("backlog", "3 messages and a waiter", "M=3 W=1 LEASE=3 FAULTS=0 CLOSING"),
)
LARGE = (
    Scope("lock", "3 callers", "N=3 LEASE=4 FAULTS=0"),
    Scope("lock", "2 callers, 2 faults", "N=2 LEASE=4 FAULTS=2"),
    Scope("lock", "3 callers, 1 fault", "N=3 LEASE=3 FAULTS=1"),
    Scope(
        "lock", "2 permits and a writer, a limit", "N=3 LEASE=3 FAULTS=0 L0=2 L1=2 L2=0 OPERATOR=1"
    ),
    Scope(
        "lock", "3 callers of 2 permits, a limit", "N=3 LEASE=3 FAULTS=0 L0=2 L1=2 L2=2 OPERATOR=1"
    ),
    Scope("lock", "2 callers of a permit, 1 fault", "N=2 LEASE=4 FAULTS=1 L0=1 L1=1 L2=1"),
    Scope("backlog", "3 messages, a waiter, a fault", "M=3 W=1 LEASE=3 FAULTS=1 CLOSING"),
    Scope("backlog", "4 messages and a waiter", "M=4 W=1 LEASE=3 FAULTS=0"),
)
FEW, BACKLOG = "N=2 LEASE=4 FAULTS=1", "M=3 W=1 LEASE=3 FAULTS=0"
BROKEN = (
    Scope("lock", "a release that compares no token", f"{FEW} TOKEN", "backed"),
    Scope("lock", "a lease from its answer on", f"{FEW} CLOCK", "backed"),
    Scope("lock", "a late grant that counts", f"{FEW} STALE", "backed"),
    Scope("lock", "a hand-off with the last fence", f"{FEW} FENCE", "rising"),
    Scope("lock", "a withdrawal that keeps a grant", f"{FEW} PASS", "woken"),
    Scope("lock", "a hand-off that is not due", "N=3 LEASE=6 FAULTS=1 DUE", "woken"),
    Scope("lock", "the last waiter first", "N=3 LEASE=4 FAULTS=0 ORDER", "fair"),
    Scope("lock", "a reader before a writer", "N=3 LEASE=3 FAULTS=0 L0=2 L1=2 L2=0 BARGE", "fair"),
    Scope("lock", "limit + 1", "N=2 LEASE=4 FAULTS=0 L0=2 L1=1 L2=1 LIMIT", "exclusive"),
    Scope("backlog", "the last message first", f"{BACKLOG} LIFO", "fair"),
    Scope("backlog", "a backlog that keeps its turn", f"{BACKLOG} TURN", "fair"),
    Scope("backlog", "an entry that keeps its turn", f"{BACKLOG} ENTRY", "fair"),
    Scope("backlog", "a closed backlog that is not due", f"{BACKLOG} CLOSING CLOSED", "woken"),
    Scope("backlog", "a message in no outbox", f"{BACKLOG} OUTBOX", "woken"),
    Scope(
        "backlog", "a run without its reservation", "M=3 W=1 LEASE=3 FAULTS=1 TAKEOVER", "backed"
    ),
)


def main() -> int:
    """Check the scopes; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--nightly", action="store_true", help="the larger scopes as well")
    nightly = parser.parse_args().nightly
    if missing := [name for name in ("spin", "gcc") if shutil.which(name) is None]:
        sys.exit(f"{' and '.join(missing)} not found: apt-get install {' '.join(missing)}")
    scopes = (*SMALL, *BROKEN, *(LARGE if nightly else ()))
    return 0 if all(list(map(check, scopes))) else 1


def check(scope: Scope) -> bool:
    """Search one scope, and print what came of it; return whether that was expected."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = search(scope, folder)
    states = int((re.search(r"(\d+) states, stored", report) or "00")[1])
    found = re.search(r"assertion violated (\w+)", report)
    complete = all(sign in report for sign in SIGNS) and not re.search(TRUNCATED, report)
    verdict = f"{found[1]} is broken" if found else "holds" if complete else "FAILED"
    ok = verdict == (f"{scope.broken} is broken" if scope.broken else "holds")
    seconds = time.monotonic() - began
    print(f"{scope.model:8} {scope.about:35} {states:>11,} states {seconds:5.0f} s  {verdict}")
    print("" if ok else f"That is wrong.\n{report}\n", end="", flush=True)
    return ok


def search(scope: Scope, folder: str) -> str:
    """Return the report of the program that spin makes of a model."""
    sound = [] if scope.broken else ["SOUND"]
    *flags, copy = [*scope.flags.split(), *sound]
    flags = [f"-D{flag}" for flag in (*flags, f"BROKEN={copy}")]
    options = "-O0" if scope.broken else "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY}"
    subprocess.run(["spin", *flags, "-a", MODELS / f"{scope.model}.pml"], cwd=folder, check=True)
    subprocess.run(["gcc", *options, "-o", "pan", "pan.c"], cwd=folder, check=True)
    ran = subprocess.run(["./pan", f"-m{DEEPEST}"], cwd=folder, capture_output=True, check=False)
    return (ran.stdout + ran.stderr).decode()


if __name__ == "__main__":
    sys.exit(main())
