"""Many processes draw on one semaphore while some are killed and stopped: a run, and its checker.

A nursery sets Django up once and forks the callers, so that dozens start within a second. Each
records its history, as those of ``tests.chaos`` do.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import signal
import subprocess
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from threading import Timer
from time import monotonic, sleep

import redis

from tests.chaos.history import Event, Recorder
from tests.chaos.verdict import Verdict, Violation
from tests.tools import ROOT, eventually, state_of

LEASES = (0.3, 0.6, 1.0)
"""Seconds; short, so that the permits of dead holders come back during a run."""
CALM = 2.0
"""Seconds at the end without faults, in which every caller is served."""
IDLE = 1.2
"""Seconds for which nobody may get a permit then."""
FAULTS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
KEPT = {"lock-fence", "lock-seen", "lock-index"}


def run(url: str, directory: Path, seconds: float, seed: int, callers: int, limit: int) -> None:
    """Let callers draw on permits, and trouble them for some seconds; the history stays behind."""
    dice, recorder = random.Random(seed), Recorder(directory, 0)
    arguments = [url, str(directory), str(seed), str(callers), str(limit)]
    command = [sys.executable, "-m", "tests.chaos.crowd", *arguments]
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log, cwd=ROOT) as nursery,
    ):
        children = Path(f"/proc/{nursery.pid}/task/{nursery.pid}/children")
        try:
            eventually(lambda: len(children.read_text().split()) == callers, "they are there")
            until = monotonic() + seconds
            while monotonic() < until:
                sleep(dice.uniform(0.02, 0.1))
                pid, what = int(dice.choice(children.read_text().split())), dice.choice([*FAULTS])
                _send(pid, FAULTS[what])
                if what == "stopped":
                    Timer(dice.uniform(0.1, 2.0), _send, (pid, signal.SIGCONT)).start()
                recorder.note("fault", what=what)
            eventually(lambda: "T" not in map(state_of, map(int, children.read_text().split())))
            sleep(max(LEASES))
            recorder.note("calm")
            sleep(CALM)
            (directory / "stop").touch()
            eventually(lambda: not children.read_text(), "the callers end")
            recorder.note("stopped")
        finally:
            nursery.communicate()  # which ends it and its children
    with redis.Redis.from_url(url, decode_responses=True) as client:
        with contextlib.suppress(AssertionError):
            eventually(lambda: not _left(client))
        if left := _left(client):
            recorder.note("left", keys=sorted(left))
    recorder.close()


def _left(client: redis.Redis) -> set[str]:
    """Return the keys that stay; what dead waiters leave expires."""
    return {key for key in {*client.keys("*")} - KEPT if client.pttl(key) == -1}


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def nurse(url: str, directory: Path, seed: int, callers: int, limit: int) -> None:
    """Fork callers, and another in the place of each that dies, until the standard input ends."""
    import django
    from django.conf import settings

    backend = "django_redis_lock.backends.redis.RedisLockBackend"
    settings.configure(LOCKS={"default": {"BACKEND": backend, "LOCATION": url}})
    django.setup()
    alive: set[int] = set()
    numbers = itertools.count(1)
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        while len(alive) < callers and not (directory / "stop").exists():
            number = next(numbers)
            alive.add(os.fork())
            if 0 in alive:
                call(directory, number, random.Random(f"{seed}.{number}"), limit)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                alive.remove(ended)
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
    permit = semaphore("crowd", limit, lease, auto_renew=renewed, blocking_timeout=wait)
    # It is unavailable if its process was stopped for longer than a server may be silent.
    with contextlib.suppress(LockLost, LockUnavailable):
        if not permit.acquire():
            return
        handle = f"{recorder.process}.{permit.fence}"
        recorder.note("acquired", handle=handle, fence=permit.fence)
        for _ in range(dice.randint(0, 3)):
            sleep(dice.uniform(0, 0.015))
            since = monotonic()
            permit.ensure_held()
            recorder.note("confirmed", handle=handle, since=since)
        permit.release()


def check(events: Iterable[Event], limit: int) -> Verdict:
    """Return what broke in a run.

    Who was told that it holds a permit did so from the return of its ``acquire()`` until the start
    of its last call that the server confirmed; see ``tests.chaos.holding``.
    """
    kinds: defaultdict[str, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda item: item["at"]):
        kinds[event["kind"]].append(event)
    holds = {event["handle"]: [event["at"], event["at"]] for event in kinds["acquired"]}
    for event in kinds["confirmed"]:
        holds[event["handle"]][1] = event["since"]
    calm, stopped = (kinds[kind][0]["at"] for kind in ("calm", "stopped"))
    fences = Counter(event["fence"] for event in kinds["acquired"])
    violations = [
        *(Violation("failed", event["trace"]) for event in kinds["failed"]),
        *(Violation("left", str(event["keys"])) for event in kinds["left"]),
        *(Violation("fence given twice", str(one)) for one, times in fences.items() if times > 1),
        *_too_many(holds, limit),
        *_stalls([start for start, _ in holds.values()], calm),
    ]
    served = {each["process"] for each in kinds["acquired"] if calm < each["at"] < stopped}
    faults = Counter(event["what"] for event in kinds["fault"])
    return Verdict(violations, {"served in the calm": len(served)}, dict(faults))


def _too_many(holds: dict[str, list[float]], limit: int) -> Iterator[Violation]:
    """Find moments at which more held a permit than may."""
    steps = [(start, 1) for start, _ in holds.values()] + [(end, -1) for _, end in holds.values()]
    inside = 0
    for at, step in sorted(steps):
        inside += step
        if inside > limit:
            yield Violation("too many", f"{inside} held a permit of {limit}", moment=at)


def _stalls(starts: list[float], calm: float) -> Iterator[Violation]:
    """Find a time of the calm in which nobody got a permit, though everybody asks all the time."""
    gained = [start for start in starts if calm < start < calm + CALM]
    for before, after in pairwise([calm, *sorted(gained), calm + CALM]):
        if after - before > IDLE:
            text = f"nobody got a permit for {after - before:.1f} s"
            yield Violation("left behind", text, moment=before)


if __name__ == "__main__":
    nurse(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
