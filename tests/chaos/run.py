"""One run: callers on a layout, a fault again and again, calm, and the verdict on the history."""

from __future__ import annotations

import random
from pathlib import Path
from time import monotonic

import django
from django.conf import settings

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockUnavailable
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.layouts import LAYOUTS, Layout
from tests.chaos.plan import LONGEST_LEASE, Plan
from tests.chaos.pulse import Pulse
from tests.chaos.row import Row, judge
from tests.chaos.site import Site
from tests.chaos.stage import Crew, Stage
from tests.soak.history import Recorder, read

SWEEP_SECONDS = LONGEST_LEASE + 5.0
"""How long a lock may take to come free when nobody is left: its lease, and some time."""


def run(layout: str, fault: str, seconds: float, seed: int, directory: str) -> Row:
    """Carry out a run in this process, which is good for one; the history stays behind."""
    recorder = Recorder(directory, 0)
    try:
        site = LAYOUTS[layout].open(FAULTS[fault])
        try:
            _play(site, FAULTS[fault], seconds, seed, directory, recorder)
        finally:
            site.close()
    finally:
        recorder.close()
    return verdict(LAYOUTS[layout], fault, directory)


def verdict(layout: Layout, fault: str, directory: str | Path) -> Row:
    """Return what the history in a directory came to."""
    return judge(
        fault,
        layout.name,
        read(directory),
        unpromised=layout.unpromised.get(fault, frozenset()),
        rules_off=layout.rules_off,
    )


def _play(
    site: Site, fault: Fault, seconds: float, seed: int, directory: str, recorder: Recorder
) -> None:
    plan = Plan.of(directory, seed, site.settings())
    settings.configure(**plan.settings(), INSTALLED_APPS=["django_redis_lock"])
    django.setup()
    site.prepare()
    pulse = Pulse(site, recorder)
    pulse.start()
    with Crew(plan, recorder) as crew:
        stage = Stage(site, crew, recorder, pulse, random.Random(seed), directory)
        stage.settled_in()
        end = monotonic() + seconds
        while True:
            fault.do(stage)
            recorder.note("fault", what=fault.name)
            if monotonic() >= end:
                break
            stage.settled_in(monotonic())
        calm = monotonic()
        recorder.note("calm")
        stage.settled_in(calm)
        plan.stop()
        crew.drain()
        recorder.note("drained")
        _sweep(plan, recorder)
        crew.read_logs()
    pulse.stop()
    locks.reset()
    if left := site.leftovers():
        recorder.note("left", keys=left)


def _sweep(plan: Plan, recorder: Recorder) -> None:
    """Take and release every lock: each must come free in time, whatever its holders did."""
    for name in plan.all_names():
        since = monotonic()
        swept = lock(name, timeout=5, blocking_timeout=SWEEP_SECONDS)
        try:
            if not swept.acquire():
                holder = locks["default"].holder(name)
                recorder.note("left", keys=[f"the lock {name!r}, held by {holder}"])
                continue
            swept.release()
        except LockUnavailable as error:
            recorder.note("failed", doing="sweep", trace=str(error), since=since)
