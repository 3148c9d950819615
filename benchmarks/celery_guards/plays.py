"""What is done to the tasks, and what is then seen of lost work, remaining locks and double runs.

Each function plays on a stage with the tasks of one name.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import chord
from celery.exceptions import TimeoutError as NotReady

from benchmarks.celery_guards.contenders import SHORT, Wanted
from benchmarks.celery_guards.diary import OTHER_BROKER
from benchmarks.celery_guards.stage import PROBE_EVERY, SETTLE, WORKER, Left, Stage
from benchmarks.celery_guards.tasks import RETRIES, work
from benchmarks.frame.celery_worker import celery_worker, restart

CAP = 5.0
"""Seconds for which calls are made to see a lock become free."""
POWER_CUT_CAP = 45.0
CHAINS = 20
"""The number of retried tasks, one after the other: a race shows only in some."""
HOPELESS = 3
"""If so many chains are lost and none is not, no more are tried."""
PROCESSES = 4
"""The children of the worker."""
OTHER = 50
"""From a shop to another whose calls are not compared with those of the first."""
REPLACED_FOR = 20.0
"""Seconds for which calls replace the one in the queue, if none runs."""
LIMITS = 4
"""The number of tasks that meet a hard time limit, one after the other."""


@dataclass
class Seen:
    """What was observed; ``None`` for what a scenario does not show."""

    lost: int | None = None
    """Calls whose work was never done, although the sender was not told of a duplicate."""
    of: int = 1
    """The number of calls."""
    left: Left | None = None
    together: int | None = None
    """Runs that began while another run of the same key was running."""
    again: float | None = None
    """Seconds from the death of a run to the start of the next delivery of its message."""
    repeated: int | None = None
    """How often a task ran again although its success was stored."""
    hung: bool | None = None
    """Whether a canvas had neither a result nor an error when it should have had one."""
    note: str = ""


def killed(stage: Stage, name: str) -> Seen:
    stage.send(name, "first")
    pid = stage.pid_of("first")
    os.kill(pid, signal.SIGKILL)
    return Seen(left=stage.probe(CAP, watching=pid), together=stage.together())


def power_cut(stage: Stage, name: str) -> Seen:
    """Kill a worker and its children at once, and start it again."""
    stage.send(name, "first")
    stage.pid_of("first")
    stage.worker.kill()
    since = time.time()
    restart(stage.worker)
    return Seen(left=stage.probe(POWER_CUT_CAP, since=since), together=stage.together())


def hard_limit(stage: Stage, name: str) -> Seen:
    """Call from the start, since a guard may free the lock before the child is dead."""
    lefts = []
    with celery_worker(*WORKER):
        for _ in range(LIMITS):
            stage.next_key()
            stage.send(name, "first")
            pid = stage.pid_of("first")
            lefts.append(stage.probe(CAP, watching=pid, name=name))
            stage.go(times=100)
            if lefts[-1].seconds is None:
                break
    return Seen(left=_longest(lefts), together=stage.together())


def revoked_running(stage: Stage, name: str) -> Seen:
    result = stage.send(name, "first")
    pid = stage.pid_of("first")
    stage.app.control.revoke(result.id, terminate=True)
    return Seen(left=stage.probe(CAP, watching=pid), together=stage.together())


def revoked_waiting(stage: Stage, name: str) -> Seen:
    result = stage.send(name, "first", countdown=2)
    stage.received(result.id, " received")
    stage.app.control.revoke(result.id)
    stage.received("Discarding revoked task", result.id)
    left = stage.probe(CAP, since=time.time())
    note = "it ran anyway" if stage.began("first") else ""
    return Seen(left=left, together=stage.together(), note=note)


def revoked_unseen(stage: Stage, name: str) -> Seen:
    """Revoke a task while it waits in the queue, before any worker has it."""
    with stage.no_consumer():
        result = stage.send(name, "first")
        stage.app.control.revoke(result.id)
        stage.received(result.id, "revoked")
    return _after_drop(stage, result, ("Discarding revoked task", result.id), name)


def unregistered(stage: Stage, _name: str) -> Seen:
    """Send a task that the worker does not know, as after it was renamed."""
    name = f"unregistered-{stage.shop_id}"
    guard = stage.guard()
    guard.set_up(stage.app)
    guard.task(stage.app, name, work, Wanted())
    result = stage.send(name, "first")
    return _after_drop(stage, result, ("unregistered task", name), name)


def _after_drop(stage: Stage, result: Any, texts: tuple[str, str], name: str) -> Seen:
    """See whether the next call is sent, once a worker has dropped a message."""
    stage.received(*texts)
    until = time.monotonic() + CAP
    since = time.time()
    while time.monotonic() < until:
        following = stage.send(name, "next")
        if following is not None and following.id != result.id:
            return Seen(left=Left(time.time() - since, CAP))
        time.sleep(PROBE_EVERY)
    return Seen(left=stage.left(CAP))


def moved(stage: Stage, name: str) -> Seen:
    """Let a run continue under another key; call that key meanwhile, and then the old one."""
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


def retried(stage: Stage, name: str) -> Seen:
    """Watch chains of three runs, each of which asks for the next while it holds its lock."""
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


def in_chord(stage: Stage, name: str) -> Seen:
    """Put two tasks with one key and one with another into the header of a chord."""
    stage.diary.let_go(stage.shop_id + 1)
    task, callback = stage.app.tasks[name], stage.app.tasks["callback"]
    header = [(stage.shop_id, "a"), (stage.shop_id, "b"), (stage.shop_id + 1, "c")]
    result = stage.attempt(lambda: chord([task.s(*pair) for pair in header])(callback.s()))
    stage.wait(lambda: len(stage.began()) > 1, SETTLE)
    stage.go(times=10)
    if result is None:
        orphans = stage.wait(stage.began, SETTLE)
        note = f"{stage.refusals[0]} in the sender"
        note += ", members run anyway" if orphans else ""
        return Seen(hung=False, together=stage.together(), note=note)
    hung, note = False, ""
    try:
        note = f"callback got {result.get(timeout=CAP)} results"
    except NotReady:
        hung = True
    except Exception as error:  # of a member, or of Celery on its behalf
        note = f"{type(error).__name__} from the chord"
    return Seen(hung=hung, together=stage.together(), note=note)


def other_form(stage: Stage, name: str) -> Seen:
    task, shop_id = stage.app.tasks[name], stage.shop_id
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
    note = f"not recognized: {', '.join(passed)}" if passed else ""
    return Seen(together=stage.together(), note=note)


def by_name(stage: Stage, name: str) -> Seen:
    """Send the duplicate by name, as beat and programs without the code do."""
    stage.send(name, "first")
    stage.pid_of("first")
    stage.app.send_task(name, (stage.shop_id, "second"))
    stage.wait(lambda: stage.began("second"), SETTLE)
    return Seen(together=stage.together())


def redelivered(stage: Stage, name: str) -> Seen:
    """Redeliver a message while its task runs; let the first delivery succeed."""
    _redeliver(stage, name)
    stage.wait(lambda: len(stage.began()) > 1, SETTLE)
    stage.go(times=10)
    lost = int(not stage.wait(lambda: stage.ended("first"), CAP))
    left = stage.probe(CAP, name=name)
    times = len(stage.ended("first"))
    note = f"done {times} times" if times > 1 else ""
    return Seen(lost=lost, left=left, together=stage.together(), note=note)


def redelivered_late(stage: Stage, name: str) -> Seen:
    """Redeliver a message so that a child gets it when the first run has ended."""
    result = stage.send(name, "first")
    stage.pid_of("first")
    with stage.no_consumer():
        stage.give_back_unacknowledged()
        stage.go("first", times=10)
        stage.need(result.successful, "the success of the first delivery")
    stage.redelivered(result.id)
    again = stage.wait(lambda: len(stage.ended("first")) > 1, SETTLE)
    left = stage.probe(CAP, name=name)
    return Seen(lost=0, left=left, together=stage.together(), repeated=int(again))


def redelivered_then_killed(stage: Stage, name: str) -> Seen:
    """Redeliver a message while its task runs; then kill the first delivery."""
    _redeliver(stage, name)
    stage.wait(lambda: len(stage.began()) > 1, SETTLE)
    return _kill_first(stage, name)


def _redeliver(stage: Stage, name: str) -> None:
    """Send a task, and have its message delivered a second time while it runs."""
    result = stage.send(name, "first")
    stage.pid_of("first")
    stage.give_back_unacknowledged()
    stage.redelivered(result.id)


def rejected_on_loss(stage: Stage, name: str) -> Seen:
    """Kill the child of a task whose message Celery then redelivers."""
    stage.send(name, "first")
    return _kill_first(stage, name)


def _kill_first(stage: Stage, name: str) -> Seen:
    """Kill a run; see whether another delivery does its work, and what is left of the lock."""
    pid = stage.pid_of("first")
    os.kill(pid, signal.SIGKILL)
    died = stage.need_death(pid)
    runs = stage.wait(lambda: stage.began("first")[1:], CAP)
    stage.go("first", times=10)
    done = bool(runs) and bool(stage.wait(lambda: stage.ended("first"), SETTLE))
    left = stage.probe(CAP, name=name, since=time.time() if done else died)
    again = max(0.0, runs[0].at - died) if runs else None
    return Seen(lost=int(not done), left=left, together=stage.together(), again=again)


def outlasted(stage: Stage, name: str) -> Seen:
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


def waiting_for_a_message(stage: Stage, name: str) -> Seen:
    """Fill the worker with duplicates that wait for a task whose retry is in the queue."""
    stage.send(name, "first")
    stage.pid_of("asks")
    for _ in range(PROCESSES):  # by name: as the sender of a duplicate that knows of no guard
        stage.app.send_task(name, (stage.shop_id, "waiter"))
    stage.need(lambda: stage.worker.count(name, "received") > PROCESSES, "the duplicates")
    stage.go(times=100)
    ended = stage.wait(lambda: stage.ended("first"), SETTLE + CAP)
    return Seen(hung=not ended, together=stage.together())


def own_id(stage: Stage, name: str) -> Seen:
    """Send a second message with the id of the running task; then kill the run."""
    task_id = f"own-{stage.shop_id}"
    stage.send(name, "first", task_id=task_id)
    stage.pid_of("first")
    stage.send(name, "second", task_id=task_id)
    stage.wait(lambda: stage.began("second"), SETTLE)
    return _kill_first(stage, name)


def own_id_again(stage: Stage, name: str) -> Seen:
    """Use the id of a task that has succeeded; restart the worker while it has the message."""
    task_id = f"own-{stage.shop_id}"
    stage.go("first")
    result = stage.send(name, "first", task_id=task_id)
    stage.need(result.successful, "the success of the first task")
    stage.send(name, "second", task_id=task_id, countdown=2)
    stage.redelivered(task_id)
    stage.worker.stop()
    restart(stage.worker)
    began = stage.wait(lambda: stage.began("second"), CAP)
    return Seen(lost=int(not began), together=stage.together())


def half_seconds(stage: Stage, name: str) -> Seen:
    """Let a duplicate come again every half second, on a quorum queue of RabbitMQ."""
    from tests.brokers.rabbitmq import RabbitMQ  # a program of the system

    def call(label: str) -> None:
        command = ("-A", WORKER[0], "call", name, "--args", json.dumps([stage.shop_id, label]))
        subprocess.run([sys.executable, "-m", "celery", *command], check=True)

    with RabbitMQ() as broker:
        os.environ[OTHER_BROKER] = f"amqp://127.0.0.1:{broker.port}//"
        try:
            with celery_worker(*WORKER):
                call("first")
                stage.pid_of("first")
                call("second")
                stage.wait(lambda: stage.began("second"), SETTLE)
                stage.go(times=10)
                done = stage.wait(lambda: stage.ended("second"), CAP)
        finally:
            del os.environ[OTHER_BROKER]
    return Seen(lost=int(not done), together=stage.together())


def newest_first(stage: Stage, name: str) -> Seen:
    """Replace the one in the queue again and again, faster than the queue delivers it."""
    until, began = time.monotonic() + REPLACED_FOR, []
    while not began and time.monotonic() < until:
        stage.send(name, "call", countdown=1)
        began = stage.wait(stage.began, PROBE_EVERY)
    return Seen(lost=int(not began), together=stage.together())


def like_its_own_names(stage: Stage, name: str) -> Seen:
    """Call with a key that looks like a name of the guard's own, and then with its beginning."""
    for ending in (":queued", "#1", f"~~queued:{name}", "~~1"):
        stage.next_key()
        beginning, label = f"{stage.shop_id}", f"{stage.shop_id}{ending}"
        stage.send(name, label)
        stage.pid_of(label)
        for _ in range(2):  # of another key, so that it may run beside
            stage.send(name, beginning, shop_id=stage.shop_id + OTHER)
        stage.send(name, label)
        stage.wait(lambda label=label: stage.began(label)[1:], SETTLE)
        stage.go(times=2)
        stage.diary.let_go(stage.shop_id + OTHER, times=2)
    return Seen(together=stage.together())


def other_in_the_worker(stage: Stage, name: str) -> Seen:
    """Give a tuple, which the worker gets as a list."""
    kwargs = {"items": (1, 2)}
    stage.send(name, "first", kwargs=kwargs)
    stage.pid_of("first")
    stage.send(name, "second", kwargs=kwargs)
    second = stage.wait(lambda: stage.began("second"), SETTLE)
    stage.go(times=10)
    stage.need(lambda: stage.ended("first"), "the end of the first run")
    left = stage.probe(CAP, name=name, kwargs=kwargs)
    note = "the duplicate ran, too" if second and not stage.together() else ""
    return Seen(left=left, together=stage.together(), note=note)


def shared_key(stage: Stage, name: str) -> Seen:
    """Send two tasks that share a key, while neither runs yet."""
    with stage.no_consumer():
        stage.send(name, "first")
        stage.send(f"{name}_too", "second")
    stage.go(times=10)
    done = stage.wait(lambda: stage.ended("first") and stage.ended("second"), CAP)
    return Seen(lost=int(not done), of=2, together=stage.together())


def _longest(lefts: list[Left]) -> Left:
    return max(lefts, key=lambda left: (left.seconds is None, left.seconds or 0))
