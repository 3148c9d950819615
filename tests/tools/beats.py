"""Beats of which one leads, in processes of their own, and what they have sent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.tools import ROOT, eventually
from tests.tools.celery_worker import WAIT, events

APP = "tests.apps.celery.beats"


class Beat:
    """One beat, with a schedule and a log in its directory."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.log = directory / "beat.log"
        command = [sys.executable, "-m", "celery", "-A", APP, "beat", "-S", f"{APP}:Brief"]
        options = ["-s", str(directory / "schedule"), "-l", "INFO"]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, *options],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONDEVMODE": "",
                    "DJANGO_SETTINGS_MODULE": "tests.apps.celery.kept",
                    **environment,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def said(self, text: str) -> bool:
        return text in self.log.read_text()

    def end(self, number: int) -> int:
        """Send it a signal, and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT)


class Beats:
    """Several of them."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.all: list[Beat] = []
        self._directory, self._environment = directory, environment

    def start(self) -> Beat:
        """Start one more, and wait until it leads or stands by."""
        directory = self._directory / f"beat-{len(self.all)}"
        directory.mkdir()
        beat = Beat(directory, self._environment)
        self.all.append(beat)
        eventually(lambda: beat.said("leads, fence") or beat.said("stands by"), "it is ready")
        return beat

    def kill(self) -> None:
        for beat in self.all:
            beat.process.kill()
            beat.process.wait()

    def sent(self, entry: str = "tick") -> list[dict[str, int]]:
        """Return what was sent of an entry: in which slot, by which fence, by which process."""
        with events() as client:
            return [json.loads(line) for line in client.lrange(f"sent:{entry}", 0, -1)]

    def next_leader(self) -> Beat:
        """Return the beat that sends next."""
        before = len(self.sent())
        pid = eventually(lambda: self.sent()[before:], "something is sent")[0]["pid"]
        return next(beat for beat in self.all if beat.process.pid == pid)

    def check(self) -> None:
        """Check that nothing was sent twice, and nothing by a leader after the next one began."""
        sent = self.sent()
        slots = [one["slot"] for one in sent]
        assert slots == sorted(set(slots))
        leads = list(dict.fromkeys((one["fence"], one["pid"]) for one in sent))
        assert leads == sorted(leads)
        assert len({fence for fence, _ in leads}) == len(leads)


def stop_or_kill(beat: Beat, number: int) -> None:
    """End or freeze a beat by a signal."""
    if number == signal.SIGSTOP:
        beat.process.send_signal(number)
    else:
        assert beat.end(number) == (-number if number == signal.SIGKILL else 0)
