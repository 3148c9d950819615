"""Parked tasks, while children, workers and their lock server are killed: rounds, and a checker.
``python -m tests.chaos.parked --rounds 100``: each round sends tasks, all of which have to run. Two
beats run beside them, which are killed and stopped as well."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic

import redis
from kombu import Connection

from example_project.embedded import EmbeddedServer
from tests.apps.celery.kept import KEPT
from tests.apps.celery.parking import CHILD, HOLD, LIMITS, QUEUE_NAME, STEPS, WORKER, note, tasks
from tests.chaos.beats import Pair
from tests.chaos.history import Event
from tests.chaos.story import Verdict, Violation
from tests.settings import PORT, server_url
from tests.tools.celery_worker import WAIT, Worker, events, running_worker

TASKS = 24
"""How many are sent in a round."""
PLANNED = {"": 16, CHILD: 4, HOLD: 2, WORKER: 1}
"""What happens at a step, and how often; the lock server is killed while one is held up."""
UNSEEN = 3
"""Seconds after which the broker delivers again what was not acknowledged."""
PATIENCE = 45.0
"""Seconds for which no task ends, after which those that have not run are taken to be lost."""
GROUPS = {"killed": "pid", "killed worker": "worker"}


class Pops:
    """What the broker gave to workers, and what of that they noted as not acknowledged yet. A
    worker that is killed in between loses the message: this broker's clients do both in turn."""

    def __init__(self) -> None:
        self._client = redis.Redis.from_url(server_url(10), decode_responses=True)
        self._client.config_set("notify-keyspace-events", "Elh")
        self._events = self._client.pubsub()
        for what in ("rpop", "hset"):
            self._events.subscribe(f"__keyevent@10__:{what}")
            self._events.get_message(timeout=WAIT)  # that it has subscribed
        self._seen: Counter[str] = Counter()

    def lost(self) -> int:
        """Return how many messages were lost since the last call, while no worker takes any."""
        while event := self._events.get_message(timeout=0.5):
            if event["data"] in (QUEUE_NAME, "unacked"):
                self._seen[event["channel"][-4:]] += 1
        before, self._seen = self._seen, Counter()
        return max(0, before["rpop"] - before["hset"])


class Fleet:
    """Workers, each of which is replaced if it was killed, and their lock server."""

    def __init__(self, directory: Path, lock_server: EmbeddedServer) -> None:
        self.workers: list[Worker] = []
        self.stack = contextlib.ExitStack()
        self.lock_server = lock_server
        self._directory, self._started = directory, 0

    def mend(self, number: int = 2) -> None:
        self.workers = [one for one in self.workers if one.process.poll() is None]
        for one in self.workers[number:]:
            self.kill_worker(one)
        del self.workers[number:]
        while len(self.workers) < number:
            self._started += 1
            directory = self._directory / f"worker-{self._started}"
            directory.mkdir()
            worker = running_worker(
                directory,
                app="tests.apps.celery.parking",
                concurrency=3,
                queue=QUEUE_NAME,
                environment={
                    "DJANGO_SETTINGS_MODULE": "tests.apps.celery.kept",
                    KEPT: str(self.lock_server.port),
                },
            )
            self.workers.append(self.stack.enter_context(worker))

    def kill_server(self) -> None:
        note("killed server")
        self.lock_server.kill()
        self.lock_server.restart()

    def kill_worker(self, worker: Worker) -> None:
        note("killed worker", worker=worker.process.pid)
        os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()

    def kill_child(self, dice: random.Random) -> None:
        parent = dice.choice(self.workers).process.pid
        with contextlib.suppress(FileNotFoundError, IndexError, ProcessLookupError):  # just killed
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            child = int(dice.choice(children))
            note("killed", pid=child)
            os.kill(child, signal.SIGKILL)


@contextlib.contextmanager
def fleet_of(directory: Path) -> Iterator[Fleet]:
    """Yield a fleet without workers yet, whose lock server writes each change down at once."""
    with EmbeddedServer("--appendfsync", "always", persist=True) as lock_server:
        fleet = Fleet(directory, lock_server)
        with fleet.stack:
            yield fleet


def history() -> list[Event]:
    with events() as client:
        return [json.loads(line) for line in client.lrange("history", 0, -1)]


def deliver_again(after: float = UNSEEN) -> None:
    """Put what was not acknowledged for so long back into its queue, as the broker does in time."""
    with Connection(server_url(10), transport_options={"visibility_timeout": after}) as connection:
        connection.default_channel.qos.restore_visible(interval=0)


def send(number: int, key: str) -> None:
    note("sent", number=number, id=tasks[key].delay(number, key).id)


def play(
    fleet: Fleet, dice: random.Random, numbers: Sequence[int], planned: Mapping[str, int] = PLANNED
) -> Verdict:
    """Send tasks, and break things until all have run, or some are taken to be lost."""
    keys = {number: dice.choice([*LIMITS]) for number in numbers}
    told = 0
    with events() as client:
        client.delete("history", *(f"plan:{step}" for step in STEPS))
        for step in STEPS:
            client.rpush(f"plan:{step}", *dice.choices([*planned], [*planned.values()], k=8))
        for number in numbers:
            send(number, keys[number])
        kill_at, until = monotonic() + dice.uniform(0.1, 1.5), monotonic() + PATIENCE
        left = {*numbers}
        while left and monotonic() < until:
            fleet.mend()
            if reached := client.blpop([f"reached:{step}" for step in STEPS], timeout=0.1):
                fleet.kill_server()
                client.rpush(reached[0].replace("reached", "go"), "on")
            elif monotonic() > kill_at:
                fleet.kill_child(dice)
                kill_at = monotonic() + dice.uniform(0.5, 3.0)
            deliver_again()
            failed = [event["number"] for event in history() if event["what"] == "failed"]
            for number in failed[told:]:  # its sender was told, and sends it again
                send(number, keys[number])
            told = len(failed)
            if left != (left := missing(history(), numbers)):
                until = monotonic() + PATIENCE
    return check(history(), numbers)


def missing(events: list[Event], numbers: Sequence[int]) -> set[int]:
    ended = {event["run"] for event in events if event["what"] == "ended"}
    return {*numbers} - {event.get("number") for event in events if event.get("run") in ended}


def check(events: list[Event], numbers: Sequence[int]) -> Verdict:
    """Return which tasks were lost, and where more of a key ran than may."""
    violations = [Violation("lost", str(one)) for one in sorted(missing(events, numbers))]
    steps: list[tuple[float, int, str]] = []
    runs: dict[str, Event] = {}
    dead: set[int] = set()
    for event in sorted(events, key=lambda one: one["at"]):
        what, over = event["what"], [event.get("run", "")]
        if what == "began" and not dead & {event["pid"], event["worker"]}:
            runs[event["run"]] = event
            steps.append((event["at"], 1, event["key"]))
        elif what in GROUPS:  # from now on it may be gone
            dead.add(event[GROUPS[what]])
            over = [one for one, run in runs.items() if run[GROUPS[what]] in dead]
        ends = [runs.pop(run) for run in over if what != "began" and run in runs]
        steps += [(event["at"], -1, run["key"]) for run in ends]
    inside: Counter[str] = Counter()
    for at, step, key in sorted(steps):
        inside[key] += step
        if inside[key] > LIMITS[key]:
            violations.append(Violation("overlapping", f"{inside[key]} of {key}", moment=at))
    kinds = Counter(event["what"] for event in events)
    return Verdict(violations, {"runs": kinds.pop("ended", 0)}, dict(kinds))


def forgive(verdict: Verdict, by_broker: int) -> None:
    """Take no task for lost that the broker has lost."""
    lost = [one for one in verdict.violations if one.rule == "lost"][:by_broker]
    verdict.violations = [one for one in verdict.violations if one not in lost]
    verdict.figures.update({"lost by the broker": len(lost), "messages lost by it": by_broker})


def main() -> int:
    """Play rounds, and print what they came to. Returns the exit code, 1 if a rule broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.parked", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    options = parser.parse_args()
    began, figures, broken = monotonic(), Counter[str](), Counter[str]()
    directory = Path(tempfile.mkdtemp(prefix="parked-"))
    print(f"seed {options.seed}, histories of broken rounds in {directory}", flush=True)
    with EmbeddedServer(port=PORT), fleet_of(directory) as fleet:
        pops, pair = Pops(), Pair(directory, fleet.lock_server)
        fleet.stack.callback(pair.kill)
        for number in range(options.rounds):
            dice = random.Random(f"{options.seed} {number}")
            pair.disturb()
            verdict = play(fleet, dice, range(number * TASKS, (number + 1) * TASKS))
            forgive(verdict, pops.lost())
            figures.update({**verdict.figures, **verdict.faults})
            broken.update(violation.rule for violation in verdict.violations)
            if verdict.violations:
                (directory / f"history-{number}.json").write_text(json.dumps(history()))
            for violation in verdict.violations:
                print(f"round {number}: {violation.rule} {violation.text}", flush=True)
            if number % 10 == 9:
                print(f"{number + 1} rounds after {monotonic() - began:.0f} s", flush=True)
        beats = pair.finish()
        told = [pair.told("noted"), pair.told("sent")]
        (directory / "beats.json").write_text(json.dumps(told))
        print(f"{options.rounds} rounds, {monotonic() - began:.0f} s")
        print(f"{dict(figures)}, lost {broken['lost']}, overlapping {broken['overlapping']}")
        print(beats.figures, *(f"{one.rule} {one.text}" for one in beats.violations), sep="\n")
    return 1 if broken or beats.violations else 0


if __name__ == "__main__":
    import django

    django.setup()
    sys.exit(main())
