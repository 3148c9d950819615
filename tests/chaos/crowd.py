"""Many processes draw on one semaphore while some are killed and stopped: a run, and its checker.

``python -m tests.chaos.crowd --seconds 60`` makes it longer. Exit code 1 if a rule broke.

A nursery sets Django up once and forks the callers, so that dozens start within a second. Each
records its history, as those of ``tests.chaos`` do.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep

import redis

from example_project.embedded import EmbeddedServer
from tests.chaos.history import Event, Recorder, read
from tests.chaos.verdict import Verdict, Violation
from tests.tools import ROOT, eventually, state_of

NAME = "crowd"
LEASES = (0.3, 0.6, 1.0)
"""Seconds; short, so that the permits of dead holders come back during a run."""
CALM = 2.0
"""Seconds at the end without faults, in which every caller is served."""
IDLE = 1.2
"""Seconds for which nobody may get a permit then."""
FAULTS = ("killed", "stopped")


def run(url: str, directory: Path, seconds: float, seed: int, callers: int, limit: int) -> None:
    """Let callers draw on permits, and trouble them for some seconds; the history stays behind."""
    dice, recorder = random.Random(seed), Recorder(directory, 0)
    arguments = [url, str(directory), str(seed), str(callers), str(limit)]
    command = [sys.executable, "-m", "tests.chaos.crowd", "--nursery", *arguments]
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log, cwd=ROOT) as nursery,
    ):
        try:
            eventually(lambda: len(_pids(directory)) == callers, "the callers are there")
            recorder.note("storm")
            until = monotonic() + seconds
            stopped: dict[int, float] = {}
            while monotonic() < until:
                sleep(dice.uniform(0.02, 0.1))
                _resume(stopped, monotonic())
                pid = dice.choice([each for each in _pids(directory) if each not in stopped])
                what = dice.choice(FAULTS)
                with contextlib.suppress(ProcessLookupError):
                    if what == "stopped":
                        stopped[pid] = monotonic() + dice.uniform(0.1, 2.0)
                    os.kill(pid, signal.SIGSTOP if what == "stopped" else signal.SIGKILL)
                recorder.note("fault", what=what)
            _resume(stopped, float("inf"))
            eventually(lambda: "T" not in map(state_of, _pids(directory)))
            sleep(max(LEASES))
            recorder.note("calm")
            sleep(CALM)
            (directory / "stop").touch()
            eventually(lambda: not _pids(directory), "the callers end")
            recorder.note("stopped")
        finally:
            nursery.communicate()  # which ends it and its children
    with redis.Redis.from_url(url, decode_responses=True) as client:
        kept = {"lock-fence", "lock-heard", "lock-index"}
        with contextlib.suppress(AssertionError):
            eventually(lambda: set(client.keys("*")) <= kept)
        if left := set(client.keys("*")) - kept:
            recorder.note("left", keys=sorted(left))
    recorder.close()


def _pids(directory: Path) -> list[int]:
    found = []
    for path in directory.glob("alive-*"):
        with contextlib.suppress(FileNotFoundError, ValueError):
            found.append(int(path.read_text()))
    return found


def _resume(stopped: dict[int, float], now: float) -> None:
    for pid in [pid for pid, until in stopped.items() if until <= now]:
        del stopped[pid]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def nurse(url: str, directory: Path, seed: int, callers: int, limit: int) -> None:
    """Fork callers, and another in the place of each that dies, until the standard input ends."""
    import django
    from django.conf import settings

    backend = "django_redis_lock.backends.redis.RedisLockBackend"
    settings.configure(LOCKS={"default": {"BACKEND": backend, "LOCATION": url}})
    django.setup()
    numbers, alive = itertools.count(1), {}
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        while len(alive) < callers and not (directory / "stop").exists():
            number = next(numbers)
            pid = os.fork()
            if not pid:
                call(directory, number, random.Random(f"{seed}.{number}"), limit)
            alive[pid] = directory / f"alive-{number}"
            alive[pid].write_text(str(pid))
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                alive.pop(ended).unlink()
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


def call(directory: Path, number: int, dice: random.Random, limit: int) -> None:
    """Draw on the permits until the end of the run, and end this process."""
    recorder = Recorder(directory, number)
    try:
        while not (directory / "stop").exists():
            _draw(recorder, dice, limit)
    except BaseException:
        recorder.note("failed", trace=traceback.format_exc())
    os._exit(0)


def _draw(recorder: Recorder, dice: random.Random, limit: int) -> None:
    from django_redis_lock import semaphore
    from django_redis_lock.exceptions import LockLost, LockUnavailable

    renewed, wait = dice.random() < 0.4, dice.choice((None, None, 0.3, 2.0))
    lease = dice.choice(LEASES)
    permit = semaphore(NAME, limit, lease, auto_renew=renewed, blocking_timeout=wait)
    recorder.note("requested")
    try:
        if not permit.acquire():
            recorder.note("refused")
            return
    except LockUnavailable as error:  # it was stopped for longer than a server may be silent
        recorder.note("unavailable", error=str(error))
        return
    handle = f"{recorder.process}.{permit.fence}"
    recorder.note("acquired", handle=handle, fence=permit.fence)
    try:
        for _ in range(dice.randint(0, 3)):
            sleep(dice.uniform(0, 0.015))
            since = monotonic()
            permit.ensure_held()
            recorder.note("confirmed", handle=handle, since=since)
        permit.release()
        recorder.note("released", handle=handle)
    except LockLost:
        recorder.note("lost", handle=handle)
    except LockUnavailable as error:
        recorder.note("unavailable", handle=handle, error=str(error))


def check(events: Iterable[Event], limit: int) -> Verdict:
    """Return what broke in a run.

    Who was told that it holds a permit did so from the return of its ``acquire()`` until the start
    of its last call that the server confirmed; see ``tests.chaos.holding``.
    """
    verdict = Verdict()
    kinds: defaultdict[str, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda item: item["at"]):
        kinds[event["kind"]].append(event)
    holds = {event["handle"]: [event["at"], event["at"]] for event in kinds["acquired"]}
    for event in kinds["confirmed"]:
        holds[event["handle"]][1] = event["since"]
    calm, stopped = (kinds[kind][0]["at"] for kind in ("calm", "stopped"))
    served = {each["process"] for each in kinds["acquired"] if calm < each["at"] < stopped}
    verdict.violations += [Violation("failed", event["trace"]) for event in kinds["failed"]]
    verdict.violations += [Violation("left", str(event["keys"])) for event in kinds["left"]]
    fences = Counter(event["fence"] for event in kinds["acquired"])
    twice = [fence for fence, times in fences.items() if times > 1]
    verdict.violations += [Violation("fence given twice", str(fence)) for fence in twice]
    verdict.violations += _too_many(holds, limit)
    verdict.violations += _stalls(holds, calm)
    verdict.figures = {"acquisitions": len(holds), "served in the calm": len(served)}
    verdict.faults = dict(Counter(event["what"] for event in kinds["fault"]))
    return verdict


def _too_many(holds: dict[str, list[float]], limit: int) -> Iterator[Violation]:
    """Find moments at which more held a permit than may."""
    steps = [(start, 1) for start, _ in holds.values()] + [(end, -1) for _, end in holds.values()]
    inside = 0
    for at, step in sorted(steps):
        inside += step
        if inside > limit:
            yield Violation("too many", f"{inside} held a permit of {limit}", moment=at)


def _stalls(holds: dict[str, list[float]], calm: float) -> Iterator[Violation]:
    """Find a time of the calm in which nobody got a permit, though everybody asks all the time."""
    gained = [start for start, _ in holds.values() if calm < start < calm + CALM]
    for before, after in pairwise([calm, *sorted(gained), calm + CALM]):
        if after - before > IDLE:
            text = f"nobody got a permit for {after - before:.1f} s"
            yield Violation("left behind", text, moment=before)


def main() -> int:
    """Run, print what it came to, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.crowd", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--limit", type=int, default=5)
    parser.add_argument("--nursery", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.nursery:
        url, directory, *numbers = options.nursery
        nurse(url, Path(directory), *map(int, numbers))
        return 0
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    with EmbeddedServer() as server, tempfile.TemporaryDirectory(prefix="crowd-") as directory:
        run(
            *(server.url(), Path(directory), options.seconds, seed),
            *(options.callers, options.limit),
        )
        verdict = check(read(directory), options.limit)
    found = [f"{item.rule}: {item.text}" for item in verdict.violations]
    print(json.dumps({"seed": seed, **verdict.figures, **verdict.faults, "found": found}, indent=1))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
