"""The worker processes of a run: started, paused, killed, replaced, and awaited."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Self

from example_project.keeper import Keeper
from tests.chaos.heartbeat import Heartbeat
from tests.chaos.plan import Plan
from tests.tools import ROOT

DRAIN_SECONDS = 20.0
"""How long the callers may take to finish when told to end."""


@dataclass(eq=False)
class Worker:
    number: int
    kind: str
    process: subprocess.Popen[bytes]
    paused: bool = False


class Crew:
    """All the workers. They end with this process at the latest."""

    def __init__(self, plan: Plan, kinds: Sequence[str], heart: Heartbeat) -> None:
        self.workers: list[Worker] = []
        self._plan = plan
        self._kinds = kinds
        self._heart = heart
        self._recorder = heart.recorder
        self._keeper = Keeper()
        self._number = 0
        self._timers: list[threading.Timer] = []

    def __enter__(self) -> Self:
        for kind in self._kinds:
            self._start(kind)
        return self

    def __exit__(self, *_: object) -> None:
        self.all_resumed()
        self._keeper.close()

    def _start(self, kind: str) -> None:
        self._number += 1
        arguments = (self._plan.dumps(), str(self._number), kind)
        command = (sys.executable, "-m", "tests.chaos.worker", *arguments)
        with self._log(self._number).open("ab") as log:
            process = self._keeper.spawn(*command, cwd=ROOT, stderr=log)
        self.workers.append(Worker(self._number, kind, process))
        self._recorder.note("started", worker=self._number, pid=process.pid)

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
        """Kill a worker by SIGKILL, and start another in its place."""
        since = monotonic()
        worker.process.kill()
        self._keeper.stop(worker.process, grace=0)
        self._recorder.note("killed", worker=worker.number, since=since)
        self.workers.remove(worker)
        self._start(worker.kind)

    def pause(self, worker: Worker, seconds: float) -> None:
        """Stop a worker by SIGSTOP; it goes on by itself after so many seconds."""
        since, pid = monotonic(), worker.process.pid
        os.kill(pid, signal.SIGSTOP)  # its threads may run on until one of them takes the signal
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        worker.paused = True
        timer = threading.Timer(seconds, self._resume, (worker, since))
        timer.start()
        self._timers.append(timer)

    def _resume(self, worker: Worker, since: float) -> None:
        os.kill(worker.process.pid, signal.SIGCONT)
        self._recorder.note("paused", worker=worker.number, since=since)
        worker.paused = False

    def all_resumed(self) -> None:
        for timer in self._timers:
            timer.join()

    def drain(self) -> None:
        """Wait until every worker has finished; record which does not, and where it hangs."""
        self._heart.until(
            lambda: all(worker.process.poll() is not None for worker in self.workers), DRAIN_SECONDS
        )
        for worker in self.workers:
            code = worker.process.poll()
            if code is None:
                worker.process.send_signal(signal.SIGABRT)  # its log says where it hangs
                self._recorder.note(
                    "stuck", worker=worker.number, trace=str(self._log(worker.number))
                )
            elif code:
                self._recorder.note("died", worker=worker.number, code=code)

    def read_logs(self) -> None:
        """Record the tracebacks that workers logged, for no log should hold one."""
        for path in sorted(Path(self._plan.directory).glob("worker-*.log")):
            for trace in tracebacks(path.read_text(errors="replace")):
                self._recorder.note("logged", worker=int(path.stem.split("-")[1]), trace=trace)


def tracebacks(text: str) -> list[str]:
    """Return the tracebacks in a log, each with the line before it."""
    lines = text.splitlines()
    found = []
    for start in [at for at, line in enumerate(lines) if line.startswith("Traceback (most")]:
        end = start + 1
        while "".join(lines[end : end + 2]).startswith(" "):  # a line of source may be empty
            end += 1
        found.append("\n".join(lines[max(0, start - 1) : end + 1]))
    return found
