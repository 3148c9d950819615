"""Two beats run beside parked tasks. One leads, and each due entry must be sent once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from example_project.embedded import EmbeddedServer
from tests.apps.celery.kept import KEPT
from tests.chaos.history import Event
from tests.chaos.story import Verdict, Violation
from tests.tools.beats import APP, Beats
from tests.tools.celery_worker import WAIT, Worker


class Pair(Beats):
    """Two beats. One may be stopped, and a killed one is replaced."""

    scheduler = f"{APP}:Noting"

    def __init__(self, directory: Path, lock_server: EmbeddedServer) -> None:
        super().__init__(directory, **{KEPT: str(lock_server.port)})
        self.killed: list[int] = []
        self.stops = 0
        self._stopped: list[Worker] = []

    def mend(self) -> list[Worker]:
        """Let both run; return them."""
        while self._stopped:
            self._stopped.pop().process.send_signal(signal.SIGCONT)
        while len(running := [one for one in self.all if one.process.poll() is None]) < 2:
            self.start()
        return running

    def disturb(self) -> None:
        """Kill the leader; every other time, stop it until the next call."""
        self.mend()
        beat = self.next_leader()
        if len(self.killed) <= self.stops:
            beat.process.kill()
            beat.process.wait()
            self.killed.append(beat.process.pid)
        else:
            beat.process.send_signal(signal.SIGSTOP)
            self._stopped.append(beat)
            self.stops += 1

    def told(self, what: str) -> list[Event]:
        """Return what was noted, or sent, of all entries."""
        return [one for entry in ("tick", "tock") for one in self.sent(entry, what)]

    def finish(self) -> Verdict:
        """End them when one has sent something more; return what happened, of which all has to."""
        running = self.mend()
        self.next_leader()
        for beat in running:
            beat.process.terminate()
        for beat in running:
            beat.process.wait(WAIT)
        noted, sent = self.told("noted"), self.told("sent")
        ends = {"beats killed": len(self.killed), "beats stopped": self.stops}
        figures = {"sent": len(sent), "leads": len({one["fence"] for one in sent}), **ends}
        missing = [Violation("too little", what) for what, number in figures.items() if not number]
        return Verdict(check(noted, sent, self.killed) + missing, figures)


def check(noted: list[Event], sent: list[Event], killed: Iterable[int]) -> list[Violation]:
    """Return which due times were noted or sent more than once, or not sent though they were noted.
    Only a beat that ended may have lost one, its last: it was killed, or led at the end."""
    violations: list[Violation] = []
    noted = sorted(noted, key=lambda one: (one["fence"], one["at"]))
    times = Counter((one["name"], one["slot"]) for one in sent)
    last = {one["pid"]: one for one in noted}
    lost = [last.get(pid) for pid in killed] + noted[-1:]
    before: dict[str, int] = {}
    for one in noted:
        name, slot = one["name"], one["slot"]
        number = times.pop((name, slot), 0)
        if before.get(name, -1) >= slot:
            violations.append(Violation("noted twice", f"{one}"))
        elif number != 1 and (number or one not in lost):
            violations.append(Violation("sent twice" if number else "not sent", f"{one}"))
        before[name] = slot
    return violations + [Violation("not noted", f"{name} in {slot}") for name, slot in times]
