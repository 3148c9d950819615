"""The guard where children, workers and messages die, are stopped, or come twice."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import celery
import pytest
import redis
from celery.exceptions import SoftTimeLimitExceeded, TaskRevokedError, TimeLimitExceeded
from kombu import Connection

from django_redis_lock import Holder, lock, locks
from example_project.embedded import EmbeddedServer
from tests.apps.celery import deaths as tasks
from tests.apps.celery.app import PATIENCE, QUEUE_NAME, REFUSED, START_METHOD, app, apps
from tests.apps.celery.backend import IMPORTED
from tests.apps.celery.settings import PROXY
from tests.settings import PORT, server_url
from tests.tools import alive, eventually, scripts_naming, state_of, waiters
from tests.tools.celery_worker import (
    WAIT,
    Worker,
    disconnect,
    events,
    free,
    go,
    running_worker,
    started,
)
from tests.tools.proxy import Proxy
from tests.tools.seccomp import PIDFD_OPEN

CALLS_FOR_A_LOCK = 2
"""Scripts that the parent of a dead child calls for a lock: it looks, and releases what it saw."""
BUSY = 4.0
"""Seconds for which a run takes no notice of anything, in which others come to wait for it."""
DUE = 4
"""Seconds after which messages are due that are revoked before."""
AT_ONCE = 3.0
"""Seconds within which the lock of a dead holder is free; a tenth of its lease."""


@contextlib.contextmanager
def worker_of_deaths(directory: Path, *options: str, **more: Any) -> Iterator[Worker]:
    """Run a worker of the app of these tests."""
    with running_worker(directory, *options, **{"concurrency": 2, **more}) as worker:
        yield worker


@pytest.fixture(scope="module")
def server_of_deaths(session_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """The session's server, empty for this module."""
    with redis.Redis.from_url(session_server.url()) as client:
        client.flushall()
    yield session_server
    locks.reset()
    disconnect(*apps)


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    """A proxy between the worker and the server, for the tasks that go by it."""
    with Proxy(PORT) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def worker(
    server_of_deaths: EmbeddedServer, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    """A worker with child processes that tests may kill."""
    directory = tmp_path_factory.mktemp("worker")
    environment = {PROXY: str(proxy.port), PATIENCE: "1"}
    environment["SKIP_CHECKS"] = "1"  # which would import the lock backends
    with worker_of_deaths(directory, concurrency=6, environment=environment) as worker:
        yield worker


@pytest.fixture
def client(server_of_deaths: EmbeddedServer) -> Iterator[redis.Redis]:
    """The database in which tasks and tests signal to each other, empty."""
    with events() as client:
        client.flushdb()
        yield client


def holder_of(name: str) -> Holder:
    """Return who holds a lock."""
    holder = locks["default"].holder(name)
    assert holder is not None
    return holder


def free_beyond_the_proxy(name: str) -> None:
    """Wait until a lock is free that was taken by way of the proxy."""
    with redis.Redis.from_url(server_url()) as server:
        eventually(lambda: not server.exists(f"proxied:{name}"), f"{name} free")


def check_one_at_a_time(client: redis.Redis, name: str, runs: int) -> None:
    """Check how often a task began, and that each time no other run of it was alive."""
    assert client.lrange(f"overlaps:{name}", 0, -1) == []
    assert int(client.get(f"runs:{name}") or 0) == runs


def deliver_again(worker: Worker, result: Any) -> None:
    """Deliver what is not acknowledged once more, as the broker does when its time is up.

    Wait until the delivery finds the first one running.
    """
    text = f"[{result.id}] waits: lock"
    before = len(worker.lines(text))
    options = {"visibility_timeout": 0}
    with Connection(server_url(10), transport_options=options) as connection:
        connection.default_channel.qos.restore_visible(interval=1)
    eventually(lambda: len(worker.lines(text)) > before, "another delivery")


def waiting(name: str) -> None:
    """Wait until a lock has a waiter."""
    eventually(lambda: waiters(name) == 1, f"a waiter for {name}")


def acknowledged() -> None:
    """Wait until no message is waiting or in the hands of a worker."""
    with redis.Redis.from_url(server_url(10)) as broker:
        eventually(
            lambda: not broker.llen(QUEUE_NAME) and not broker.hlen("unacked"),
            "all messages acknowledged",
        )


def succeeded(worker: Worker, result: Any) -> None:
    """Wait until a task has succeeded, whatever became of an earlier run of it.

    The log tells, for an earlier run's failure is stored under the same id, and may come last.
    """
    eventually(lambda: worker.lines(f"[{result.id}] succeeded"), "success")


# Children that die.


def kill(client: redis.Redis, name: str, pid: int) -> None:
    """Kill a worker's child."""
    os.kill(pid, signal.SIGKILL)


def exit_with(status: int) -> Callable[[redis.Redis, str, int], None]:
    """Let a worker's child end itself, without a word to its parent."""
    return lambda client, name, pid: go(client, name, say=f"exit {status}")


@pytest.mark.parametrize(
    "end", [kill, exit_with(0), exit_with(1)], ids=["SIGKILL", "os._exit(0)", "os._exit(1)"]
)
def test_dead_child_frees_its_lock_at_once(
    client: redis.Redis, worker: Worker, name: str, end: Callable[..., None]
) -> None:
    """Whatever it dies of, its lock is free long before its lease ends; nobody took it by force."""
    tasks.work.delay(name)
    pid = started(client, name)
    holder = holder_of(name)
    assert holder.pid == pid
    assert holder.ttl > 20
    end(client, name, pid)
    died = time.monotonic()
    free(name)
    assert time.monotonic() - died < AT_ONCE
    (entry,) = eventually(lambda: locks["default"].history(holder.name))
    assert (entry.event, entry.by, entry.pid) == ("freed", "", pid)
    again = tasks.work.delay(name)
    go(client, name)
    assert again.get(timeout=WAIT) == "go"
    check_one_at_a_time(client, name, runs=2)


def test_worker_imports_nothing_while_it_forks(client: redis.Redis, worker: Worker) -> None:
    """The parent imports the backend before the thread that watches for deaths may need it.

    In a child forked while that thread imports it, each task would wait for the import for ever.
    """
    tell = f"{worker.process.pid} {IMPORTED}"
    eventually(lambda: worker.lines(tell), "the import in the parent process")
    (line,) = worker.lines(tell)
    assert line.endswith("MainThread")


def test_dead_child_takes_nobody_elses_lock_along(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """A lock that was broken and taken anew stays with its new holders when the old one dies."""
    of_test, of_task, witness = f"{name}-test", f"{name}-task", f"{name}-witness"
    for each in (of_test, of_task, witness):
        tasks.work.delay(each)
    first, second, third = [started(client, each) for each in (of_test, of_task, witness)]
    for each in (of_test, of_task):
        locks["default"].force_release(each)
    successor = tasks.work.delay(of_task)
    assert started(client, of_task) != second
    with lock(of_test, blocking=False) as ours:
        os.kill(first, signal.SIGKILL)
        os.kill(second, signal.SIGKILL)
        eventually(lambda: not alive(first) and not alive(second))
        os.kill(third, signal.SIGKILL)
        free(witness)  # so the dead were handled
        ours.ensure_held()
        assert holder_of(of_task).task_id == successor.id
    # Twice, for the server may not have noticed yet that the dead one waits no more.
    go(client, of_task, times=2)
    assert successor.get(timeout=WAIT) == "go"


def test_silent_server_does_not_hold_up_the_locks_of_another(
    client: redis.Redis, worker: Worker, proxy: Proxy, name: str
) -> None:
    """Where the locks of one alias can't be freed, those of the others are, at once."""
    tasks.proxied.delay(name)
    others = [f"{name}-{number}" for number in range(2)]
    for other in others:
        tasks.work.delay(other)
    os.kill(started(client, name), signal.SIGKILL)
    free_beyond_the_proxy(name)  # by a connection of the worker, which is silent from now on
    proxy.silence()
    try:
        for other in others:
            os.kill(started(client, other), signal.SIGKILL)
            died = time.monotonic()
            free(other)
            assert time.monotonic() - died < AT_ONCE
    finally:
        proxy.cut()


def test_death_costs_calls_for_the_locks_of_the_dead_alone(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """Not for those of others, nor for the time until the dead child is collected."""
    with contextlib.ExitStack() as stack, redis.Redis.from_url(server_url()) as server:
        for number in range(200):
            stack.enter_context(lock(f"{name}-{number}", timeout=60))
        for _ in range(2):  # the second time the server has the scripts
            tasks.work.delay(name)
            pid = started(client, name)
            with scripts_naming(name, server) as calls:
                os.kill(pid, signal.SIGKILL)
                eventually(lambda: not server.exists(f"lock:{name}"), "the lock free")
                eventually(lambda pid=pid: state_of(pid) == "X", "the child collected")
        assert len(calls) == CALLS_FOR_A_LOCK


@pytest.mark.parametrize("depth", [2, 12], ids=["noted one by one", "more than is noted"])
def test_dead_child_frees_all_locks_that_it_held(
    client: redis.Redis, worker: Worker, name: str, depth: int
) -> None:
    """A task that called others directly held several; the ledger has room for so many."""
    tasks.deep.delay(name, depth)
    pid = started(client, name)
    held = [holder.name for holder in locks["default"].holders(pattern=f"{name}-*")]
    assert len(held) == depth
    os.kill(pid, signal.SIGKILL)
    died = time.monotonic()
    for each in held:
        free(each)
    assert time.monotonic() - died < AT_ONCE


def test_locks_of_children_that_die_young_are_freed(
    client: redis.Redis, name: str, tmp_path: Path
) -> None:
    """Nobody has seen a child that is killed as soon as it has its lock, and it is missed."""
    queue = f"queue-{name}"
    options = ("--max-tasks-per-child=1",)
    with (
        worker_of_deaths(tmp_path, *options, queue=queue) as worker,
        redis.Redis.from_url(server_url()) as server,
    ):
        for number in range(2):
            each = f"{name}-{number}"
            tasks.work.apply_async((each,), queue=queue)
            os.kill(started(client, each), signal.SIGKILL)
            died = time.monotonic()
            free(each)
            assert time.monotonic() - died < AT_ONCE
        names = [f"{name}-well-{number}" for number in range(2)]
        with scripts_naming(name, server) as calls:
            for each in names:
                go(client, each)
                result = tasks.work.apply_async((each,), queue=queue)
                assert result.get(timeout=WAIT) == "go"
        # Two are for each run; recycled children cost nothing.
        assert 2 * len(names) <= len(calls) <= 2 * len(names) + CALLS_FOR_A_LOCK
        assert not worker.lines("The watch over")


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM], ids=["ENOSYS", "EPERM"])
def test_dead_child_is_noticed_where_the_system_does_not_tell_of_it(
    client: redis.Redis, name: str, tmp_path: Path, error: int
) -> None:
    """Where ``pidfd_open`` is unknown or refused the parent looks, and says so once."""
    queue = f"queue-{name}"
    environment = {REFUSED: f"{error} {PIDFD_OPEN}"}
    with worker_of_deaths(tmp_path, queue=queue, environment=environment) as worker:
        for number in range(3):
            each = f"{name}-{number}"
            tasks.work.apply_async((each,), queue=queue)
            os.kill(started(client, each), signal.SIGKILL)
            died = time.monotonic()
            free(each)
            assert time.monotonic() - died < AT_ONCE
    assert len(worker.lines("dead children, so they are polled every 0.5 s")) == 1
    assert not worker.lines("The watch over")


def test_worker_that_cannot_watch_its_children_says_so_at_its_start(
    client: redis.Redis, name: str, tmp_path: Path
) -> None:
    """Children that are not forked share nothing with it; their tasks run nevertheless."""
    queue = f"queue-{name}"
    environment = {START_METHOD: "spawn"}
    with worker_of_deaths(tmp_path, queue=queue, environment=environment) as worker:
        (line,) = worker.lines("The children are not watched")
        assert "WARNING" in line
        assert "spawn" in line
        result = tasks.work.apply_async((name,), queue=queue)
        started(client, name)
        go(client, name)
        assert result.get(timeout=WAIT) == "go"


def test_death_in_an_outage_is_seen_to_when_the_server_answers(
    client: redis.Redis, worker: Worker, proxy: Proxy, name: str
) -> None:
    """It is told once, and tried until then."""
    tasks.proxied.delay(name)
    pid = started(client, name)
    text = "Locks of LOCKS['proxied'] can't be released yet"
    before = len(worker.lines(text))
    proxy.hold_back()
    try:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(worker.lines(text)) > before, "the line")
    finally:
        proxy.let_go()
    free_beyond_the_proxy(name)
    assert len(worker.lines(text)) == before + 1


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


def test_killed_workers_task_runs_once_more_after_its_lease(
    client: redis.Redis, name: str, tmp_path: Path
) -> None:
    """Nobody knows that a whole worker is dead: its message waits out the lease, and runs once."""
    queue = f"queue-{name}"
    with contextlib.ExitStack() as stack:
        workers = {}
        for number in range(2):
            directory = tmp_path / str(number)
            directory.mkdir()
            worker = stack.enter_context(worker_of_deaths(directory, queue=queue))
            workers[worker.process.pid] = worker
        result = tasks.brief.apply_async((name,), queue=queue)
        dead = workers.pop(os.getpgid(started(client, name)))
        os.killpg(dead.process.pid, signal.SIGKILL)
        dead.process.wait()
        holder = holder_of(name)
        (other,) = workers.values()
        deliver_again(other, result)
        started(client, name)
        assert holder.expires_at is not None
        assert holder_of(name).acquired_at >= holder.expires_at
        go(client, name)
        assert result.get(timeout=WAIT) == "go"
        acknowledged()
        assert other.lines(f"[{result.id}] takes over lock")
    check_one_at_a_time(client, name, runs=2)


# Messages that come twice.


def test_message_delivered_twice_is_dropped_when_the_first_succeeds(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """Deliveries of a running task wait for its end, and then have nothing to do."""
    result = tasks.late.delay(name)
    started(client, name)
    for _ in range(2):
        deliver_again(worker, result)
    go(client, name)
    assert result.get(timeout=WAIT) == "go"
    acknowledged()
    check_one_at_a_time(client, name, runs=1)
    free(name)


def test_message_delivered_twice_runs_when_the_first_dies(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """A delivery that waited for a run that died carries the task out."""
    result = tasks.late.delay(name)
    pid = started(client, name)
    deliver_again(worker, result)
    os.kill(pid, signal.SIGKILL)
    started(client, name)
    go(client, name)
    succeeded(worker, result)
    acknowledged()
    check_one_at_a_time(client, name, runs=2)


def test_message_delivered_twice_comes_again_until_the_first_ends(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """A delivery that waited in vain makes room for other tasks, and is not lost."""
    result = tasks.late.delay(name)
    pid = started(client, name)
    deliver_again(worker, result)
    eventually(lambda: len(worker.lines(f"[{result.id}] waits: lock")) == 2, "it came again")
    assert len(worker.lines(f"[{result.id}] received")) == 3
    os.kill(pid, signal.SIGKILL)
    started(client, name)
    go(client, name)
    succeeded(worker, result)
    acknowledged()
    check_one_at_a_time(client, name, runs=2)


# Time limits.


def test_hard_time_limit_lets_nobody_begin_before_the_child_is_dead(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """The next begins when a body was ended, or, where it can't be, its process; then at once."""
    limited = {
        f"{name}-waiting": tasks.work.apply_async((f"{name}-waiting",), time_limit=1),
        f"{name}-busy": tasks.work.apply_async((f"{name}-busy", math.inf), time_limit=1),
    }
    pids = {each: started(client, each) for each in limited}
    successors = {each: tasks.successor.delay(each) for each in limited}
    for each in limited:
        began = started(client, each)
        assert began != pids[each]
    assert not alive(pids[f"{name}-busy"])
    for each, result in limited.items():
        with pytest.raises(TimeLimitExceeded):
            result.get(timeout=WAIT)
        go(client, each)
        assert successors[each].get(timeout=WAIT) == "go"
        check_one_at_a_time(client, each, runs=2)


def test_soft_time_limit_in_the_body_frees_the_lock(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """The exception is the task's, and the lock is free."""
    result = tasks.work.apply_async((name,), soft_time_limit=1)
    started(client, name)
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=WAIT)
    free(name)


def test_soft_time_limit_while_acquiring_leaves_no_waiter(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """One who is stopped while it waits for the lock leaves the line, and the task fails so."""
    with lock(name) as ours:
        result = tasks.successor.apply_async((name,), soft_time_limit=3)
        waiting(name)
        with pytest.raises(SoftTimeLimitExceeded):
            result.get(timeout=WAIT)
        eventually(lambda: waiters(name) == 0, "no waiter")
        ours.ensure_held()
    assert locks["default"].holder(name) is None
    check_one_at_a_time(client, name, runs=0)


def test_soft_time_limit_while_releasing_keeps_the_result(
    client: redis.Redis, worker: Worker, proxy: Proxy, name: str
) -> None:
    """Work that is done stays done, and its lock is released as soon as the server answers."""
    result = tasks.proxied.apply_async((name,), soft_time_limit=2)
    started(client, name)
    proxy.silence()
    try:
        go(client, name)
        assert result.get(timeout=WAIT) == "go"
        ended = time.monotonic()
        free_beyond_the_proxy(name)
        assert time.monotonic() - ended < AT_ONCE
    finally:
        proxy.cut()
    assert worker.lines(f"[{result.id}] had ended when its soft time limit struck")


# Messages that are revoked, expire or vanish.


def revoke(*results: Any, **options: Any) -> None:
    """Revoke tasks, and wait for the worker's word that it knows."""
    ids = [result.id for result in results]
    assert app.control.revoke(ids, reply=True, limit=1, timeout=WAIT, **options)


def test_lock_of_a_message_that_is_revoked_or_expires_is_freed(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """A message that never runs frees the lock that was taken when it was sent, and no other."""
    places = {
        f"{name}-{ending}-{task.name}": (ending, task)
        for ending in ("revoked", "expired", "broken")
        for task in (tasks.queued, tasks.whole)
    }
    results, named = {}, {}
    for each, (ending, task) in places.items():
        options = {"countdown": DUE, **({"expires": 0.5} if ending == "expired" else {})}
        results[each] = task.apply_async((each,), **options)
        named[each] = f"{each}:queued" if task is tasks.queued else each
        assert holder_of(named[each]).task_id == results[each].id
    broken = {each for each, (ending, _) in places.items() if ending == "broken"}
    with contextlib.ExitStack() as stack:
        for each in broken:
            locks["default"].force_release(named[each])
        taken = [stack.enter_context(lock(named[each], blocking=False)) for each in broken]
        revoke(*(results[each] for each, (ending, _) in places.items() if ending != "expired"))
        sent = time.monotonic()
        for each in places.keys() - broken:
            free(named[each])
        assert time.monotonic() - sent < DUE + AT_ONCE
        for each in places:
            with pytest.raises(TaskRevokedError):
                results[each].get(timeout=WAIT)
        for ours in taken:
            ours.ensure_held()
    for each in places:
        check_one_at_a_time(client, each, runs=0)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_lock_of_a_run_that_is_revoked_is_freed_after_it_ended(
    client: redis.Redis, worker: Worker, name: str, how: str
) -> None:
    """Celery tells of the revocation before the child has died; the lock waits for that."""
    busy, idle = f"{name}-busy", f"{name}-idle"
    runs = {busy: tasks.whole.delay(busy, BUSY), idle: tasks.whole.delay(idle)}
    pids = {each: started(client, each) for each in runs}
    successors = {each: tasks.successor.delay(each) for each in runs}
    for each in runs:
        waiting(each)
    revoke(*runs.values(), terminate=True, signal=how)
    revoked = time.monotonic()
    for each in runs:
        assert started(client, each) != pids[each]
        go(client, each)
        assert successors[each].get(timeout=WAIT) == "go"
        check_one_at_a_time(client, each, runs=2)
    assert time.monotonic() - revoked < BUSY + AT_ONCE


def test_lock_of_a_purged_message_is_bounded_and_can_be_broken(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """A message that vanished holds its place for its lease, or until a forced release."""
    queue = f"queue-{name}"
    short, long, expiring = f"{name}-short", f"{name}-long", f"{name}-expiring"
    tasks.queued.apply_async((long,), queue=queue)
    tasks.queued.apply_async((expiring,), queue=queue, expires=10)
    with Connection(server_url(10)) as connection:
        assert connection.default_channel.queue_purge(queue) == 2
    assert 10 < holder_of(f"{expiring}:queued").ttl <= 15
    assert 30 < holder_of(f"{long}:queued").ttl <= 60
    lost = holder_of(f"{long}:queued")
    assert tasks.queued.delay(long).id == lost.task_id
    assert locks["default"].force_release(f"{long}:queued", lost.token_id) is not None
    tasks.impatient.apply_async((short,), queue=queue)
    until = time.monotonic() + holder_of(f"{short}:queued").ttl
    with lock(f"{short}:queued", blocking_timeout=WAIT):
        assert time.monotonic() - until < AT_ONCE
    with Connection(server_url(10)) as connection:
        assert connection.default_channel.queue_purge(queue) == 1
    for each, task in ((short, tasks.impatient), (long, tasks.queued)):
        result = task.delay(each)
        go(client, each)
        assert result.get(timeout=WAIT) == "go"
        check_one_at_a_time(client, each, runs=1)


# Workers that are shut down.


def test_warm_shutdown_lets_tasks_end_and_leaves_no_lock(
    client: redis.Redis, name: str, tmp_path: Path
) -> None:
    """A worker that gets TERM waits for what it runs, which frees its locks."""
    queue = f"queue-{name}"
    with worker_of_deaths(tmp_path, queue=queue) as worker:
        results = {}
        for each, task in ((f"{name}-early", tasks.work), (f"{name}-late", tasks.late)):
            results[each] = task.apply_async((each,), queue=queue)
            started(client, each)
        worker.process.send_signal(signal.SIGTERM)
        eventually(lambda: worker.lines("Warm shutdown"), "the shutdown")
        for each, result in results.items():
            assert holder_of(each).task_id == result.id
            go(client, each)
        worker.process.wait(WAIT)
        assert [locks["default"].holder(each) for each in results] == [None, None]
        assert [result.get(timeout=WAIT) for result in results.values()] == ["go", "go"]


@pytest.mark.parametrize(
    ("sent", "environment"),
    [(signal.SIGQUIT, {}), (signal.SIGTERM, {"REMAP_SIGTERM": "SIGQUIT"})],
    ids=["QUIT", "TERM as QUIT"],
)
def test_cold_shutdown_leaves_no_lock_beyond_its_lease(
    client: redis.Redis,
    name: str,
    tmp_path: Path,
    sent: signal.Signals,
    environment: dict[str, str],
) -> None:
    """What is cut off frees its lock on the way out, or, where it can't, with its lease."""
    early, late, busy = f"{name}-early", f"{name}-late", f"{name}-busy"
    queue = f"queue-{name}"
    with worker_of_deaths(tmp_path, queue=queue, concurrency=3, environment=environment) as worker:
        for each, task, *args in ((early, tasks.work), (late, tasks.late), (busy, tasks.brief, 4)):
            task.apply_async((each, *args), queue=queue)
            started(client, each)
        lease_end = time.monotonic() + holder_of(busy).ttl
        worker.process.send_signal(sent)
        sent_at = time.monotonic()
        free(early)
        free(late)
        assert time.monotonic() - sent_at < AT_ONCE
        free(busy)
        assert time.monotonic() - lease_end < AT_ONCE
        worker.process.wait(WAIT)
        assert [locks["default"].holder(each) for each in (early, late, busy)] == [None] * 3
    for each in (early, late, busy):
        check_one_at_a_time(client, each, runs=1)


@pytest.mark.parametrize("timeout", [1] if celery.VERSION >= (5, 5) else [])
def test_soft_shutdown_leaves_no_lock(
    client: redis.Redis, name: str, tmp_path: Path, timeout: int
) -> None:
    """What ends in time ends well; the rest is cut off; the locks of both are free."""
    ending, cut_off = f"{name}-ending", f"{name}-cut-off"
    options = ("--", f"worker_soft_shutdown_timeout={timeout}")
    queue = f"queue-{name}"
    with worker_of_deaths(tmp_path, *options, queue=queue) as worker:
        results = {}
        for each in (ending, cut_off):
            results[each] = tasks.late.apply_async((each,), queue=queue)
            started(client, each)
        worker.process.send_signal(signal.SIGQUIT)
        eventually(lambda: worker.lines("Initiating Soft Shutdown"), "the shutdown")
        go(client, ending)
        assert results[ending].get(timeout=WAIT) == "go"
        assert holder_of(cut_off).task_id == results[cut_off].id
        free(ending)
        free(cut_off)
        worker.process.wait(WAIT)
    for each in (ending, cut_off):
        check_one_at_a_time(client, each, runs=1)


# Pools whose tasks share a process.


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
def test_tasks_of_one_process_have_locks_of_their_own(
    client: redis.Redis, name: str, tmp_path: Path, pool: str
) -> None:
    """Keys run side by side, duplicates are skipped or wait, and nobody ends another's hold."""
    queue = f"queue-{name}"
    one, two, three = f"{name}-one", f"{name}-two", f"{name}-three"
    with worker_of_deaths(tmp_path, pool=pool, queue=queue, concurrency=8) as worker:
        first = tasks.work.apply_async((one,), queue=queue)
        second = tasks.work.apply_async((two,), queue=queue)
        third = tasks.late.apply_async((three,), queue=queue)
        assert {started(client, each) for each in (one, two, three)} == {worker.process.pid}
        before = {each: holder_of(each) for each in (one, two, three)}
        assert [holder.task_id for holder in before.values()] == [first.id, second.id, third.id]
        assert len({holder.token_id for holder in before.values()}) == 3
        duplicates = [tasks.work.apply_async((one,), queue=queue) for _ in range(3)]
        for duplicate in duplicates:
            assert duplicate.get(timeout=WAIT)["holder"]["task_id"] == first.id
        fourth = tasks.successor.apply_async((one,), queue=queue)
        waiting(one)
        deliver_again(worker, third)
        go(client, one, say="look")
        assert first.get(timeout=WAIT) == {
            "fence": before[one].fence,
            "lost": False,
            "error": None,
        }
        started(client, one)
        assert holder_of(one).task_id == fourth.id
        assert holder_of(two).token_id == before[two].token_id
        for each, result in ((one, fourth), (three, third)):
            go(client, each)
            assert result.get(timeout=WAIT) == "go"
        go(client, two, say="threads")
        assert "django-redis-lock-children" not in second.get(timeout=WAIT)
        eventually(lambda: worker.lines(f"[{third.id}] ignored"), "the second delivery dropped")
        for each, runs in ((one, 2), (two, 1), (three, 1)):
            free(each)
            check_one_at_a_time(client, each, runs)


def test_solo_pool_shares_keys_with_other_workers(
    client: redis.Redis, worker: Worker, name: str, tmp_path: Path
) -> None:
    """A worker without children has one owner of each execution as well."""
    queue = f"queue-{name}"
    one, two = f"{name}-one", f"{name}-two"
    with worker_of_deaths(tmp_path, pool="solo", queue=queue) as solo:
        first = tasks.work.apply_async((one,), queue=queue)
        next_one = tasks.work.apply_async((one,), queue=queue)
        assert started(client, one) == solo.process.pid
        assert tasks.work.delay(one).get(timeout=WAIT)["holder"]["pid"] == solo.process.pid
        second = tasks.work.delay(two)
        started(client, two)
        before = holder_of(one)
        go(client, one)
        assert first.get(timeout=WAIT) == "go"
        started(client, one)
        assert holder_of(one).task_id == next_one.id
        assert (holder_of(one).fence or 0) > (before.fence or 0)
        skipped = tasks.work.apply_async((two,), queue=queue)
        go(client, one)
        assert next_one.get(timeout=WAIT) == "go"
        assert skipped.get(timeout=WAIT)["holder"]["task_id"] == second.id
        go(client, two)
        assert second.get(timeout=WAIT) == "go"
    check_one_at_a_time(client, one, runs=2)
    check_one_at_a_time(client, two, runs=1)


# Leases that end while the task runs.


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
    assert worker.lines(f"[{old.id}] runs on without its lock")
    assert worker.lines(f"[{old.id}] ran, but its lock was not released")
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
        assert worker.lines(f"[{result.id}] ran, but its lock was not released")
