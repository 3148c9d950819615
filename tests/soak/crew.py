"""The worker processes of a run: started, found by what they do, killed, replaced, awaited."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from example_project.keeper import Keeper
from tests.soak.history import Recorder
from tests.soak.plan import DRAIN_SECONDS, Plan, Role

DUMP_SECONDS = 2.0
_ROOT = Path(__file__).parents[2]


class Worker:
    """One process of callers."""

    def __init__(self, number: int, role: Role, process: subprocess.Popen[bytes]) -> None:
        self.number = number
        self.role = role
        self.process = process
        self.paused = False


class Crew:
    """All the workers. They end with this process at the latest."""

    program = "tests.soak.worker"
    """The module that a worker runs."""

    def __init__(self, plan: Plan, recorder: Recorder) -> None:
        self._plan = plan
        self._recorder = recorder
        self._keeper = Keeper()
        self._number = 0
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        for role in self._plan.crew():
            self._start(role)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._keeper.close()

    def _start(self, role: Role) -> None:
        self._number += 1
        arguments = [self._plan.dumps(), str(self._number), json.dumps(asdict(role))]
        command = (sys.executable, "-m", self.program, *arguments)
        with self._log(self._number).open("wb") as log:
            process = self._keeper.spawn(*command, cwd=_ROOT, stderr=log)
        self.workers.append(Worker(self._number, role, process))
        self._recorder.note("started", worker=self._number, pid=process.pid, role=asdict(role))

    def _log(self, number: int) -> Path:
        return Path(self._plan.directory) / f"worker-{number:05}.log"

    def running(self, pid: int | None = None) -> list[Worker]:
        """Return the workers that are not paused; only the one with ``pid`` if given."""
        return [
            worker
            for worker in self.workers
            if not worker.paused and pid in (None, worker.process.pid)
        ]

    def kill(self, worker: Worker) -> None:
        """Kill a worker by SIGKILL, and put another in its place."""
        since = monotonic()
        worker.process.kill()
        self._keeper.stop(worker.process, grace=0)
        self._recorder.note("killed", worker=worker.number, since=since)
        self.workers.remove(worker)
        self._start(worker.role)

    def pause(self, worker: Worker) -> None:
        """Stop a worker in its tracks."""
        self._recorder.note("paused", worker=worker.number)
        os.kill(worker.process.pid, signal.SIGSTOP)
        worker.paused = True

    def resume(self, worker: Worker) -> None:
        """Let a paused worker go on."""
        os.kill(worker.process.pid, signal.SIGCONT)
        worker.paused = False
        self._recorder.note("resumed", worker=worker.number)

    def any_running(self, dice: random.Random) -> Worker | None:
        """Return one of the workers that are not paused."""
        running = self.running()
        return dice.choice(running) if running else None

    def drain(self) -> None:
        """Wait until every worker has finished; note who does not, and where it hangs."""
        now = monotonic()
        deadline = (now if self._plan.over() else self._plan.stop_at) + DRAIN_SECONDS
        for worker in self.workers:
            try:
                code = worker.process.wait(max(0.0, deadline - monotonic()))
            except subprocess.TimeoutExpired:
                self._recorder.note("stuck", worker=worker.number, trace=self._stacks(worker))
            else:
                if code:
                    self._recorder.note("died", worker=worker.number, code=code)

    def _stacks(self, worker: Worker) -> str:
        """Return where the threads of a worker hang."""
        log = self._log(worker.number)
        written = log.stat().st_size
        worker.process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(DUMP_SECONDS)  # it goes on hanging while it writes
        return log.read_bytes()[written:].decode(errors="replace")

    def read_logs(self) -> None:
        """Note what workers logged that no log should hold: a traceback."""
        for path in sorted(Path(self._plan.directory).glob("worker-*.log")):
            text = path.read_text(errors="replace")
            for trace in _tracebacks(text):
                self._recorder.note("logged", worker=int(path.stem.split("-")[1]), trace=trace)


def _tracebacks(text: str) -> list[str]:
    """Return the tracebacks in a log, each with the line before it."""
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback (most")]
    found = []
    for start in starts:
        end = start + 1
        while "".join(lines[end : end + 2]).startswith(" "):  # a line of source may be empty
            end += 1
        trace = "\n".join(lines[max(0, start - 1) : end + 1])
        # An interruption that met a destructor: Python can only print it.
        if not (trace.startswith("Exception ignored") and "Interrupted" in trace.splitlines()[-1]):
            found.append(trace)
    return found
