"""One run in a process of its own: ``python -m tests.chaos.play LAYOUT FAULT SECONDS SEED DIR``."""

from __future__ import annotations

import contextlib
import sys
from time import monotonic

from tests.chaos.layouts import LAYOUTS, QUIET_LEASES
from tests.rig.faults import FAULTS, LONG, SHORT, Fault
from tests.rig.plan import ALONE, TASKS, THREADS, Plan, Role
from tests.rig.run import run
from tests.rig.stage import Stage

LISTENER_SILENCE = 1.0
"""Seconds; a run is over before the usual ones have passed."""
ROLES = [Role(THREADS, 4), Role(TASKS, 4), *ALONE]


def play(layout: str, fault: str, seconds: float, seed: int, directory: str) -> None:
    """Play a fault on a layout again and again; the history stays behind."""
    with contextlib.closing(LAYOUTS[layout].open(FAULTS[fault])) as site:
        plan = Plan(
            directory,
            seed,
            site.settings(),
            QUIET_LEASES,
            pause=0.1,
            listener_silence=LISTENER_SILENCE,
        )
        run(site, plan, ROLES, lambda stage: _repeat(stage, FAULTS[fault], seconds), downtime=LONG)


def _repeat(stage: Stage, fault: Fault, seconds: float) -> None:
    end = monotonic() + seconds
    while True:
        if fault.play(stage) is not False:
            stage.recorder.note("fault", what=fault.name)
        stage.rest(*SHORT)
        if monotonic() >= end:
            return
        stage.settled_in(monotonic())


if __name__ == "__main__":
    play(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
