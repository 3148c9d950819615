"""Beats of which one leads, in processes of their own, and what they have sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.tools import eventually
from tests.tools.celery_worker import Worker, events

APP = "tests.apps.celery.beats"


class Beats:
    """Several of them, each with a schedule and a log in a directory of its own."""

    scheduler = f"{APP}:Brief"

    def __init__(self, directory: Path, **environment: str) -> None:
        self.all: list[Worker] = []
        self._directory = directory
        self._environment = {"DJANGO_SETTINGS_MODULE": "tests.apps.celery.kept", **environment}

    def start(self) -> Worker:
        directory = self._directory / f"beat-{len(self.all)}"
        directory.mkdir()
        schedule = ("-S", self.scheduler, "-s", str(directory / "schedule"))
        words = ("-A", APP, "beat", "-l", "INFO", *schedule)
        beat = Worker(directory / "beat.log", *words, **self._environment)
        self.all.append(beat)
        eventually(lambda: beat.lines("leads, fence") or beat.lines("stands by"), "it is ready")
        return beat

    def kill(self) -> None:
        for beat in self.all:
            beat.process.kill()
            beat.process.wait()

    def sent(self, entry: str = "tick", what: str = "sent") -> list[dict[str, Any]]:
        """Return what was sent of an entry: in which slot, by which fence, by which process."""
        with events() as client:
            return [json.loads(line) for line in client.lrange(f"{what}:{entry}", 0, -1)]

    def next_leader(self) -> Worker:
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
