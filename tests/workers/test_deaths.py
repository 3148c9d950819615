"""The guard where children and workers die, or lose their leases."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import celery
import pytest
import redis

from django_redis_lock import lock, locks
from tests.apps.celery import deaths as tasks
from tests.tools import eventually
from tests.tools.celery_worker import WAIT, Worker, free, go, started
from tests.workers.conftest import (
    acknowledged,
    check_one_at_a_time,
    free_beyond_the_proxy,
    holder_of,
    restore_unacknowledged,
    worker_of_deaths,
)


def kill(client: redis.Redis, name: str, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def exit_with(status: int) -> Callable[[redis.Redis, str, int], None]:
    """Let a worker's child end itself, without a word to its parent."""
    return lambda client, name, pid: go(client, name, say=f"exit {status}")


@pytest.mark.parametrize("end", [kill, exit_with(0)], ids=["SIGKILL", "os._exit(0)"])
def test_dead_child_frees_its_lock(
    client: redis.Redis, worker: Worker, name: str, end: Callable[..., None]
) -> None:
    """Whatever it dies of, its lock is free long before its lease ends, and nothing is forced."""
    tasks.work.delay(name)
    pid = started(client, name)
    holder = holder_of(name)
    assert holder.pid == pid
    assert holder.ttl > 20
    end(client, name, pid)
    free(name)
    (entry,) = eventually(lambda: locks["default"].history(holder.name))
    assert (entry.event, entry.by, entry.pid) == ("freed", "", pid)
    again = tasks.work.delay(name)
    go(client, name)
    assert again.get(timeout=WAIT) == "go"
    check_one_at_a_time(client, name, runs=2)


def test_dead_child_frees_its_own_permit_alone(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    results = [tasks.several.delay(name) for _ in range(2)]
    first, second = [started(client, name) for _ in results]
    os.kill(first, signal.SIGKILL)
    eventually(lambda: len(list(locks["default"].holders(name))) == 1, "one permit")
    assert holder_of(name).pid == second
    (entry,) = eventually(lambda: locks["default"].history(name))
    assert (entry.event, entry.pid) == ("freed", first)
    go(client, name)
    free(name)


@pytest.mark.parametrize(
    ("task", "most", "again"),
    [(tasks.rested, 1, True), (tasks.rested_permit, 2, True), (tasks.rested_requeued, 1, False)],
    ids=["run", "permit", "redelivered"],
)
def test_killed_run_keeps_its_lock_at_least_for_its_time(
    client: redis.Redis, worker: Worker, name: str, task: Any, most: int, again: bool
) -> None:
    """No further run begins before that, be it another call or the killed one's redelivery."""
    results = [task.delay(name) for _ in range(most)]
    first, *_ = [started(client, name) for _ in results]
    began = next(one for one in locks["default"].holders(name) if one.pid == first).acquired_at
    results += [task.delay(name) for _ in range(again)]
    os.kill(first, signal.SIGKILL)
    next_one = started(client, name)
    holder = next(one for one in locks["default"].holders(name) if one.pid == next_one)
    assert holder.acquired_at - began >= timedelta(seconds=tasks.REST)
    go(client, name, times=most)
    assert results[-1].get(timeout=WAIT) == "go"
    for one in locks["default"].holders(name):
        locks["default"].force_release(name, one.token_id)


UNREACHED = {
    "queue": (tasks.queued, {}),
    "whole": (tasks.whole, {}),
    "hard time limit": (tasks.whole, {"time_limit": 1}),
    "requeued": (tasks.requeued_late, {"time_limit": 3}),
}


@pytest.mark.parametrize(("task", "options"), UNREACHED.values(), ids=UNREACHED)
def test_message_whose_child_dies_before_the_run_gives_up_its_place(
    client: redis.Redis, worker: Worker, name: str, task: Any, options: dict[str, Any]
) -> None:
    """Unless it comes again, and runs."""
    what, again = f"{name}-{tasks.UNREACHED}", task is tasks.requeued_late
    reservation = f"{what}~~queued:{task.name}" if task is tasks.queued else what
    task.apply_async((what,), **options)
    pid = started(client, what)
    assert holder_of(reservation).ttl > 2 * WAIT
    if not options:
        os.kill(pid, signal.SIGKILL)
    if again:
        assert started(client, what) != pid
        go(client, what, times=2)
        acknowledged()
    free(reservation)
    eventually(lambda: again or locks["default"].history(reservation))
    assert len(locks["default"].history(reservation)) == (not again)
    check_one_at_a_time(client, what, runs=int(again))


@pytest.mark.parametrize("how", [kill, "time limit"], ids=["SIGKILL", "hard time limit"])
def test_killed_child_frees_what_its_task_has_locked(
    client: redis.Redis, name: str, tmp_path: Path, how: Any
) -> None:
    """And leaves what it has detached, and what tasks before and after it have left."""
    queue, others = f"queue-{name}", [f"{name}-before", f"{name}-after"]
    options = {"time_limit": 2} if how != kill else {}
    with worker_of_deaths(tmp_path, concurrency=1, queue=queue):
        for each in others:
            tasks.locking.apply_async((each,), queue=queue)
            started(client, each)
            go(client, each)
            if each == others[0]:
                eventually(lambda: holder_of(f"{others[0]}-fixed").held_for > 1)  # and was polled
                tasks.locking.apply_async((name,), queue=queue, **options)
                pid = started(client, name)
                assert holder_of(f"{name}-fixed").pid == pid == holder_of(f"{each}-fixed").pid
                if not options:
                    os.kill(pid, signal.SIGKILL)
                free(f"{name}-fixed")
                free(f"{name}-renewed")
    left = [
        f"{name}-detached",
        *(f"{each}-{kind}" for each in others for kind in ("detached", "fixed")),
    ]
    assert [each for each in left if locks["default"].holder(each) is None] == []


LOST = [tasks.requeued, tasks.requeued_whole]
if celery.VERSION >= (5, 7):
    LOST += [tasks.retried, tasks.retried_whole]


def test_task_of_a_dead_child_that_comes_again_runs(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """A message that is requeued or sent again for a dead child is no duplicate of the dead."""
    sent = [(f"{name}-{task.name}", task) for task in LOST]
    results = [task.delay(each) for each, task in sent]
    for each, _ in sent:
        os.kill(started(client, each), signal.SIGKILL)
    for each, _ in sent:
        started(client, each)
        go(client, each)
    assert [result.get(timeout=WAIT) for result in results] == ["go"] * len(sent)
    for each, _ in sent:
        check_one_at_a_time(client, each, runs=2)
        free(each)
    acknowledged()


def test_killed_workers_task_runs_once_more(client: redis.Redis, name: str, tmp_path: Path) -> None:
    """If a whole worker is dead, another one of its host runs the message before the lease ends."""
    queue = f"queue-{name}"
    with contextlib.ExitStack() as stack:
        workers = {}
        for number in range(2):
            directory = tmp_path / str(number)
            directory.mkdir()
            worker = stack.enter_context(worker_of_deaths(directory, queue=queue))
            workers[worker.process.pid] = worker
        result = tasks.late.apply_async((name,), queue=queue)
        dead = workers[os.getpgid(started(client, name))]
        holder = holder_of(name)
        os.killpg(dead.process.pid, signal.SIGKILL)
        dead.process.wait()
        restore_unacknowledged()
        started(client, name)
        successor = holder_of(name)
        assert successor.fence > holder.fence
        assert successor.acquired_at < holder.expires_at
        go(client, name)
        assert result.get(timeout=WAIT) == "go"
        acknowledged()
    check_one_at_a_time(client, name, runs=2)


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_worker_that_starts_frees_what_a_killed_one_left(
    client: redis.Redis, name: str, tmp_path: Path, pool: str
) -> None:
    """On the same host, on every alias, before its first task; it is no forced release."""
    queue = f"queue-{name}"
    sent = [tasks.proxied] if pool == "solo" else [tasks.proxied, tasks.work]
    with contextlib.ExitStack() as stack:
        first, second = tmp_path / "first", tmp_path / "second"
        first.mkdir()
        second.mkdir()
        killed = stack.enter_context(worker_of_deaths(first, pool=pool, queue=queue))
        for number, task in enumerate(sent):
            task.apply_async((f"{name}-{number}",), queue=queue)
            started(client, f"{name}-{number}")
        os.killpg(killed.process.pid, signal.SIGKILL)
        killed.process.wait()
        stack.enter_context(worker_of_deaths(second, pool=pool, queue=queue))
        free_beyond_the_proxy(f"{name}-0")
        if len(sent) > 1:
            free(f"{name}-1")
            (entry,) = locks["default"].history(f"{name}-1")
            assert (entry.event, entry.by) == ("freed", "")
            assert entry.reason == "its process or message is gone"
    restore_unacknowledged()  # it may have been killed before it acknowledged what had begun


LOST_IN_THE_BODY = {"lost": True, "error": "LockLost"}


def test_run_that_outlives_its_lease_knows_it_and_frees_nobody(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """The body can see that its lock is lost; the run that has it now keeps it."""
    old = tasks.fixed.delay(name)
    started(client, name)
    fence = holder_of(name).fence
    free(name)
    new = tasks.work.delay(name)
    started(client, name)
    go(client, name, say="look")  # the one who waits longer hears it
    assert old.get(timeout=WAIT) == {"fence": fence, **LOST_IN_THE_BODY}
    assert client.blpop([f"lost:{name}"], timeout=WAIT) == (f"lost:{name}", old.id)
    assert worker.lines(f"[{old.id}] continued without its lock")
    assert worker.lines(f"[{old.id}] after its run")
    assert holder_of(name).task_id == new.id
    go(client, name, say="look")
    assert new.get(timeout=WAIT)["error"] is None
    free(name)


def test_child_that_stood_still_finds_its_loss_and_leaves_its_successor_alone(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """Nothing renews the lease of a stopped process, or of one that holds the GIL in C."""
    stopped, busy = f"{name}-stopped", f"{name}-busy"
    asleep = tasks.brief.delay(stopped)
    pid = started(client, stopped)
    fence = holder_of(stopped).fence
    os.kill(pid, signal.SIGSTOP)
    try:
        computing = tasks.brief.delay(busy, 4.5)
        started(client, busy)
        with contextlib.ExitStack() as stack:
            ours = [
                stack.enter_context(lock(each, blocking_timeout=WAIT)) for each in (stopped, busy)
            ]
            assert not computing.ready()
            os.kill(pid, signal.SIGCONT)
            assert client.blpop([f"lost:{stopped}"], timeout=WAIT)[1] == asleep.id
            assert client.blpop([f"lost:{busy}"], timeout=WAIT)[1] == computing.id
            go(client, stopped, say="look")
            assert asleep.get(timeout=WAIT) == {"fence": fence, **LOST_IN_THE_BODY}
            known = computing.get(timeout=WAIT)
            assert {**known, "fence": None} == {"fence": None, **LOST_IN_THE_BODY}
            for each in ours:
                each.ensure_held()
    finally:
        os.kill(pid, signal.SIGCONT)
    for result in (asleep, computing):
        assert worker.lines(f"[{result.id}] after its run")
