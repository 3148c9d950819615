"""What is done to the tasks, and what is then seen of lost work, locks left, and double runs."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import chord
from celery.exceptions import TimeoutError as NotReady

from .contenders import SHORT
from .stage import PROBE_EVERY, SETTLE, Left, Stage
from .tasks import RETRIES, work

CAP = 5.0
"""Seconds for which calls are made in order to see a lock come free."""
POWER_CUT_CAP = 45.0
CHAINS = 20
"""Retried tasks that are watched, one after the other: a race shows in some only."""
HOPELESS = 3
"""Lost chains, without one that was not, after which no more are watched."""
LIMITS = 4
"""Tasks that are watched when a hard time limit strikes, one after the other."""


@dataclass
class Seen:
    """What was observed; ``None`` where a scenario says nothing about it."""

    lost: int | None = None
    """Calls whose work was never done, though the sender was not told of a duplicate."""
    of: int = 1
    """Out of so many."""
    left: Left | None = None
    together: int | None = None
    """Runs of one key that began while another was running."""
    again: float | None = None
    """Seconds from the death of a run to the beginning of the next delivery of its message."""
    repeated: int | None = None
    """How often a task was done again though its success had been stored."""
    hung: bool | None = None
    """Whether a canvas had neither a result nor an error when it should have had."""
    note: str = ""


def killed(stage: Stage) -> Seen:
    """Kill the child that runs a task."""
    stage.send("work", "first")
    pid = stage.pid_of("first")
    os.kill(pid, signal.SIGKILL)
    left = stage.probe(CAP, watching=pid)
    return Seen(left=left, together=stage.together())


def power_cut(stage: Stage) -> Seen:
    """Kill a worker and its children at once, and start another."""
    stage.send("work", "first")
    stage.pid_of("first")
    stage.worker.kill()
    since = time.time()
    stage.worker.start()
    left = stage.probe(POWER_CUT_CAP, since=since)
    return Seen(left=left, together=stage.together())


def hard_limit(stage: Stage, name: str = "limited") -> Seen:
    """Call from the beginning on, for a lock may be freed before the child is dead."""
    lefts = []
    with stage.another_worker():
        for _ in range(LIMITS):
            stage.next_key()
            stage.send(name, "first")
            pid = stage.pid_of("first")
            lefts.append(stage.probe(CAP, watching=pid, name=name))
            stage.go(times=100)
            if lefts[-1].seconds is None:
                break
    return Seen(left=_longest(lefts), together=stage.together())


def hard_limit_busy(stage: Stage) -> Seen:
    """Do the same to a task that no signal but SIGKILL ends."""
    return hard_limit(stage, "busy")


def revoked_running(stage: Stage) -> Seen:
    """Revoke a task while it runs."""
    result = stage.send("work", "first")
    pid = stage.pid_of("first")
    stage.app.control.revoke(result.id, terminate=True)
    left = stage.probe(CAP, watching=pid)
    return Seen(left=left, together=stage.together())


def revoked_waiting(stage: Stage) -> Seen:
    """Revoke a task that a worker keeps for later."""
    result = stage.send("work", "first", countdown=2)
    stage.need(lambda: stage.worker.count(result.id, " received"), "the task in the worker")
    stage.app.control.revoke(result.id)
    discarded = ("Discarding revoked task", result.id)
    stage.need(lambda: stage.worker.count(*discarded), "the revoked task's end")
    left = stage.probe(CAP, since=time.time())
    ran = len(stage.began("first"))
    return Seen(left=left, together=stage.together(), note="it ran all the same" if ran else "")


def revoked_unseen(stage: Stage) -> Seen:
    """Revoke a task while it waits in the queue, before any worker has it."""
    with stage.no_consumer():
        result = stage.send("work", "first")
        stage.app.control.revoke(result.id)
        stage.need(lambda: stage.worker.count(result.id, "revoked"), "the revocation")
    return _after_drop(stage, result, ("Discarding revoked task", result.id))


def unregistered(stage: Stage) -> Seen:
    """Send a task that the worker does not know, as after it was renamed."""
    name = f"unregistered-{stage.shop_id}"
    guard = stage.guard()
    guard.set_up(stage.app)
    guard.task(stage.app, name, work)
    result = stage.send(name, "first")
    return _after_drop(stage, result, ("unregistered task", name), name)


def _after_drop(stage: Stage, result: Any, words: tuple[str, str], name: str = "work") -> Seen:
    """See whether the next call of a task is sent, once a worker has dropped a message of it."""
    stage.need(lambda: stage.worker.count(*words), "the end of the message")
    until = time.monotonic() + CAP
    since = time.time()
    while time.monotonic() < until:
        following = stage.send(name, "next")
        if following is not None and following.id != result.id:
            return Seen(left=Left(time.time() - since, CAP))
        time.sleep(PROBE_EVERY)
    return Seen(left=stage.left(CAP))


def moved(stage: Stage, name: str = "move") -> Seen:
    """Let a run go on under another key, call that key meanwhile, and call the old one then."""
    old = stage.shop_id
    stage.send(name, "moves")
    stage.pid_of("moves")
    stage.next_key()
    if not stage.wait(lambda: stage.began("moved"), CAP):
        return Seen(lost=1, left=stage.left(CAP), together=stage.together())
    stage.send(name, "beside")
    stage.wait(lambda: stage.began("beside"), SETTLE)
    stage.send(name, "beside", shop_id=old)
    ran = stage.wait(lambda: stage.diary.entries(old, "began", "beside"), SETTLE)
    stage.diary.let_go(old, times=10)
    stage.go(times=10)
    stage.need(lambda: stage.ended("moved"), "the end of the run under the new key")
    note = "" if ran else "the old key stays locked meanwhile"
    return Seen(lost=0, left=stage.probe(CAP, name=name), together=stage.together(), note=note)


def replaced(stage: Stage) -> Seen:
    """Do the same by a replacement."""
    return moved(stage, "replace")


def retried(stage: Stage, name: str = "retry") -> Seen:
    """Watch chains of three runs, each of which asks for the next one while its lock is held."""
    done, lefts = 0, []
    for number in range(1, CHAINS + 1):
        stage.next_key()
        stage.send(name, "run ")
        stage.need(lambda: stage.began("run 0"), "the first run of a chain")
        done += bool(stage.wait(lambda: stage.ended(f"run {RETRIES}"), SETTLE))
        lefts.append(stage.probe(SETTLE, name=name))
        if not done and number == HOPELESS:
            break
    return Seen(lost=number - done, of=number, left=_longest(lefts), together=stage.together())


def autoretried(stage: Stage) -> Seen:
    """Watch chains of tasks that fail, which Celery retries."""
    return retried(stage, "autoretry")


def in_chord(stage: Stage, name: str = "quiet") -> Seen:
    """Put two of one key and one of another into the header of a chord."""
    stage.diary.let_go(stage.shop_id + 1)
    task, callback = stage.app.tasks[name], stage.app.tasks["callback"]
    header = [(stage.shop_id, "a"), (stage.shop_id, "b"), (stage.shop_id + 1, "c")]
    result = stage.attempt(lambda: chord([task.s(*pair) for pair in header])(callback.s()))
    stage.wait(lambda: len(stage.began()) > 1, SETTLE)
    stage.go(times=10)
    if result is None:
        orphans = stage.wait(stage.began, SETTLE)
        note = f"{stage.refusals[0]} in the sender"
        note += ", members run all the same" if orphans else ""
        return Seen(hung=False, together=stage.together(), note=note)
    hung, note = False, ""
    try:
        came = result.get(timeout=CAP)
        note = f"callback got {came} results"
    except NotReady:
        hung = True
    except Exception as error:  # of a member, or of Celery for it
        note = f"{type(error).__name__} from the chord"
    return Seen(hung=hung, together=stage.together(), note=note)


def in_chord_raising(stage: Stage) -> Seen:
    """Do the same with an error for the duplicate."""
    return in_chord(stage, "raising")


def other_form(stage: Stage) -> Seen:
    """Say the same call in four more ways while it runs."""
    task, shop_id = stage.app.tasks["told_by_all"], stage.shop_id
    task.delay(shop_id)
    stage.pid_of("")
    forms: dict[str, Callable[[], object]] = {
        "keyword": lambda: task.delay(shop_id=shop_id),
        "default by position": lambda: task.delay(shop_id, ""),
        "default by keyword": lambda: task.delay(shop_id, label=""),
    }
    passed = []
    for form, call in forms.items():
        before = len(stage.began())
        stage.attempt(call)
        if stage.wait(lambda before=before: len(stage.began()) > before, SETTLE):
            passed.append(form)
    note = f"not known for the same: {', '.join(passed)}" if passed else ""
    return Seen(together=stage.together(), note=note)


def by_name(stage: Stage) -> Seen:
    """Send the duplicate as beat entries by name, and programs without the code, do."""
    stage.send("work", "first")
    stage.pid_of("first")
    stage.app.send_task("work", (stage.shop_id, "second"))
    stage.wait(lambda: stage.began("second"), SETTLE)
    return Seen(together=stage.together())


def redelivered(stage: Stage) -> Seen:
    """Deliver a message again while it runs; let the first delivery end well."""
    result = _delivered_again(stage)
    stage.wait(lambda: len(stage.began()) > 1, SETTLE)
    stage.go(times=10)
    lost = int(not stage.wait(lambda: stage.ended("first"), CAP))
    stage.need(lambda: stage.worker.count(result.id, "received") > 1, "the second delivery")
    left = stage.probe(CAP, name="late")
    times = len(stage.ended("first"))
    note = f"done {times} times" if times > 1 else ""
    return Seen(lost=lost, left=left, together=stage.together(), note=note)


def redelivered_late(stage: Stage) -> Seen:
    """Deliver a message again, so that it comes to a child when the first run has ended."""
    result = stage.send("late", "first")
    stage.pid_of("first")
    with stage.no_consumer():
        stage.give_back_unacknowledged()
        stage.go("first", times=10)
        stage.need(result.successful, "the success of the first delivery")
    stage.need(lambda: stage.worker.count(result.id, "received") > 1, "the second delivery")
    again = stage.wait(lambda: len(stage.ended("first")) > 1, SETTLE)
    left = stage.probe(CAP, name="late")
    return Seen(lost=0, left=left, together=stage.together(), repeated=int(again))


def redelivered_then_killed(stage: Stage) -> Seen:
    """Deliver a message again while it runs; then let the first delivery die."""
    _delivered_again(stage)
    stage.wait(lambda: len(stage.began()) > 1, SETTLE)
    pid = stage.pid_of("first")
    os.kill(pid, signal.SIGKILL)
    return _after_death(stage, pid, "late")


def _delivered_again(stage: Stage) -> Any:
    """Send a task, and have its message delivered twice while it runs; return its result."""
    result = stage.send("late", "first")
    stage.pid_of("first")
    stage.give_back_unacknowledged()
    stage.need(lambda: stage.worker.count(result.id, "received") > 1, "the second delivery")
    return result


def rejected_on_loss(stage: Stage) -> Seen:
    """Kill the child of a task whose message Celery then delivers again."""
    stage.send("late_rejected", "first")
    pid = stage.pid_of("first")
    os.kill(pid, signal.SIGKILL)
    return _after_death(stage, pid, "late_rejected")


def _after_death(stage: Stage, pid: int, name: str) -> Seen:
    """See whether a dead run's work is done by another delivery, and what is left then."""
    died = stage.need_death(pid)
    runs = stage.wait(lambda: stage.began("first")[1:], CAP)
    stage.go("first", times=10)
    done = bool(runs) and bool(stage.wait(lambda: stage.ended("first"), SETTLE))
    left = stage.probe(CAP, name=name, since=time.time() if done else died)
    again = max(0.0, runs[0].at - died) if runs else None
    return Seen(lost=int(not done), left=left, together=stage.together(), again=again)


def outlasted(stage: Stage, name: str = "short") -> Seen:
    """Run longer than the lease; see whether the end of that run frees its successor's lock."""
    stage.send(name, "first")
    stage.pid_of("first")
    time.sleep(SHORT + 1)
    stage.send(name, "second")
    second = stage.wait(lambda: stage.began("second"), SETTLE)
    stage.go("first")
    stage.need(lambda: stage.ended("first"), "the end of the first run")
    note = ""
    if second and stage.probe(SETTLE, name=name).seconds is not None:
        note = "the end of the first freed the lock of the second"
    return Seen(together=stage.together(), note=note)


def outlasted_fixed(stage: Stage) -> Seen:
    """Do the same where no guard renews the lease."""
    return outlasted(stage, "short_fixed")


def _longest(lefts: list[Left]) -> Left:
    """Return the worst of what was seen of a lock."""
    return max(lefts, key=lambda left: (left.seconds is None, left.seconds or 0))
