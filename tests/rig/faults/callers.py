"""Faults of callers, and locks taken from them."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Thread
from time import monotonic

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockUnavailable
from tests.contracts.capabilities import lacks
from tests.rig.crew import Worker, stop
from tests.rig.faults.registry import SHORT, fault
from tests.rig.plan import ALL_NAMES
from tests.rig.stage import Stage
from tests.tools import waiters

PAUSE = (0.1, 2.0)
BEYOND_LEASE = (0.1, 0.8)
"""Seconds."""
CROWD = 100
DELAY = 1.5
"""Seconds by which stopped waiters delay one that is not stopped, however many they are."""
BUSY = 1.0
"""Seconds that a busy machine may add to it."""


@fault()
def client_killed(stage: Stage) -> bool:
    found = stage.holder()
    return _kill(stage, found[0] if found else stage.crew.any_running(stage.dice))


@fault()
def any_client_killed(stage: Stage) -> bool:
    """SIGKILL for any process of callers."""
    return _kill(stage, stage.crew.any_running(stage.dice))


def _kill(stage: Stage, worker: Worker | None) -> bool:
    if worker is not None:
        stage.crew.kill(worker, stage.site.facts.remembers)
    return worker is not None


@fault()
def client_stopped(stage: Stage) -> bool:
    found = stage.holder()
    worker = found[0] if found else stage.crew.any_running(stage.dice)
    lease = (found[1].ttl if found else None) or 0.0
    if worker is not None:
        stage.crew.pause(worker, lease + stage.dice.uniform(*BEYOND_LEASE))
    return worker is not None


@fault()
def any_client_stopped(stage: Stage) -> bool:
    """SIGSTOP for any process of callers."""
    worker = stage.crew.any_running(stage.dice)
    if worker is not None:
        stage.crew.pause(worker, stage.dice.uniform(*PAUSE))
    return worker is not None


@fault()
def waiters_stopped(stage: Stage) -> None:
    lease, name = stage.plan.longest_lease, f"crowd-{monotonic()}"
    held = lock(name, timeout=lease, auto_renew=True)
    held.acquire()
    with stage.crew.crowd(name, CROWD) as process:
        healthy = lock(name, timeout=lease, blocking_timeout=10 * DELAY)
        acquired: Future[bool] = Future()
        thread = Thread(target=lambda: acquired.set_result(healthy.acquire()))
        thread.start()
        ahead = 0 if "queue" in lacks(locks["default"]) else CROWD
        stage.heart.until(lambda: waiters(name) > ahead)
        stage.rest(*SHORT)
        stop(process.pid)
        # Counted in time in which this process ran: a machine that stands still delays everything.
        released_at = stage.heart.ran
        held.release()
        got = acquired.result()
        waited = stage.heart.ran - released_at
        if not got or waited > DELAY + BUSY:
            late = f"the lock that {CROWD} waiters of a stopped process kept for {waited:.1f} s"
            holder = locks["default"].holder(name)
            stage.recorder.note("left", keys=[f"{late}, held by {holder}"])
        thread.join()
        if got:
            healthy.release()


@fault()
def release_forced(stage: Stage) -> bool:
    """The release of a lock is forced, of any holder or only of the one seen before."""
    backend, name, since = locks["default"], stage.dice.choice(ALL_NAMES), monotonic()
    holder = backend.holder(name)
    if holder is None:
        return False
    only = holder.token_id if stage.dice.random() < 0.5 else None
    try:
        ended = backend.force_release(name, only)
    except LockUnavailable:
        stage.recorder.note("forced", name=name, fence=None, since=since)
        return False
    if ended is not None:
        stage.recorder.note("forced", name=name, fence=ended.fence, since=since)
    return ended is not None
