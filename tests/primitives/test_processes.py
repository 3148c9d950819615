"""Forked children, gevent and event loops: which process or greenlet owns a lock."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest.mock import MagicMock

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.backends.renewal import renewer
from django_redis_lock.exceptions import LockNotOwned
from django_redis_lock.support.process import state_of
from tests.tools import PATIENCE, ROOT, Child, connections, eventually, queue

pytestmark = [
    pytest.mark.usefixtures("server"),
    # A process with threads forks here on purpose, as web servers and Celery's pool do.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def in_fork(function: Callable[[], Any]) -> Any:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=lambda: theirs.send(function()))
    process.start()
    try:
        assert ours.poll(PATIENCE), "the forked child said nothing"
        return ours.recv()
    finally:
        process.join(1)
        process.kill()


def test_forked_child_does_not_own_its_parents_lock(name: str) -> None:
    """With no handle can a child release, extend, renew or enter a lock of its parent."""
    held = lock(name, timeout=20, auto_renew=True, reentrant=True)
    held.acquire()

    def child() -> list[Any]:
        again = lock(name, reentrant=True)
        said: list[Any] = [held.owned(), held.remaining, again.acquire(blocking=False)]
        said.append([*renewer.entries])
        for operation in (held.release, held.ensure_held, lambda: held.extend(5)):
            try:
                operation()
            except LockNotOwned as error:
                said.append("parent process" in str(error))
        return said

    assert in_fork(child) == [False, 0.0, False, [], True, True, True]
    held.ensure_held()
    held.release()


def test_forked_child_locks_waits_and_renews_for_itself(name: str) -> None:
    warm = lock(name + ":warm", timeout=20)
    warm.acquire()
    (waiting,) = queue(lock(name + ":warm", timeout=20))  # the parent has a listener now

    def child() -> list[Any]:
        with lock(name, timeout=1, auto_renew=True) as held:
            first = held.lease.deadline
            (second,) = queue(lock(name, timeout=20))
            eventually(lambda: held.lease.deadline > first)
        got = second.outcome()
        locks["default"].force_release(name)

        async def main() -> bool:
            async with lock(name):
                return True

        return [got, asyncio.run(main())]

    assert in_fork(child) == [True, True]
    warm.release()
    assert waiting.outcome() is True


def test_event_loops_that_come_and_go_leave_no_connections(name: str, client: redis.Redis) -> None:
    """Each loop closes its connection when it shuts down; async views under WSGI need that."""

    async def main() -> weakref.ref[Any]:
        async with lock(name):
            return weakref.ref(asyncio.get_running_loop())

    asyncio.run(main())
    before = connections(client)
    loops = [asyncio.run(main()) for _ in range(10)]

    def alive() -> int:
        gc.collect()
        return sum(loop() is not None for loop in loops)

    eventually(lambda: alive() == 0, "no loop is left")
    eventually(lambda: connections(client) <= before, "no connection is left")


def collect() -> int:
    gc.collect()
    return os.getpid()


def test_fork_beside_an_event_loop(name: str) -> None:
    """The child's garbage collector leaves the parent's connection and waiters alone."""

    async def main() -> None:
        async with lock(name, timeout=60):
            waiting = asyncio.create_task(lock(name, timeout=60).aacquire())
            while (await locks["default"].aholder(name)).waiters == 0:
                await asyncio.sleep(0.001)
            with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
                loop = asyncio.get_running_loop()
                for _ in range(3):
                    assert await loop.run_in_executor(pool, collect) != os.getpid()
                    async with asyncio.timeout(PATIENCE):
                        assert await lock(name).alocked()
                assert (await locks["default"].aholder(name)).waiters == 1
        async with asyncio.timeout(PATIENCE):
            assert await waiting
        await locks["default"].aforce_release(name)

    asyncio.run(main())


GEVENT = """
    import gevent
    from gevent import Timeout
    from django_redis_lock.exceptions import LockError
    name = sys.argv[1]
    order = []

    def wait(number):
        with lock(name, timeout=20):
            order.append(number)

    held = lock(name, timeout=1, auto_renew=True)
    held.acquire()
    first = held.lease.deadline
    line = []
    for number in range(9):
        line.append(gevent.spawn(wait, number))
        while locks["default"].holder(name).waiters <= number:
            gevent.sleep(0.001)
    say("listening", len([entry for entry in client.client_list() if entry["sub"] != "0"]))
    # A greenlet that is killed, and one that times out, leave the queue.
    line.pop(0).kill()
    with Timeout(0.05, False):
        lock(name).acquire(blocking_timeout=20)
    # A greenlet does not wait for itself.
    def nested():
        with lock(name + "?"):
            try: lock(name + "?").acquire()
            except LockError as error: return "this greenlet" in str(error)
    say("refused", gevent.spawn(nested).get())
    say("waiters", locks["default"].holder(name).waiters)
    while held.lease.deadline <= first:
        gevent.sleep(0.01)
    held.release()
    gevent.joinall(line)
    say("order", order == list(range(1, 9)))
"""


def test_gevent(name: str) -> None:
    """Greenlets wait in order over one connection, are renewed, and can be killed."""
    before = (
        "from gevent import monkey; monkey.patch_all()\n"
        "import redis; from tests.settings import server_url\n"
        "client = redis.Redis.from_url(server_url(), decode_responses=True)"
    )
    with Child(GEVENT, name, before=before) as child:
        said = [child.hear() for _ in range(4)]
        assert said == ["listening 1", "refused True", "waiters 8", "order True"]


@pytest.mark.parametrize("before", ["", "from gevent import monkey; monkey.patch_all()"])
def test_greenlets_are_owners_of_their_own(name: str, before: str) -> None:
    """Also where gevent patches late, as in a gunicorn that has loaded the application before."""
    program = """
        import warnings
        warnings.simplefilter("ignore")
        from gevent import monkey; monkey.patch_all()
        import gevent
        held = lock(sys.argv[1], timeout=20, reentrant=True)
        gevent.spawn(held.acquire).get()
        again = lock(sys.argv[1], timeout=20, reentrant=True)
        say("reentered", gevent.spawn(again.acquire, blocking=False).get())
        waiting = gevent.spawn(again.acquire)
        while not locks["default"].holder(sys.argv[1]).waiters:
            gevent.sleep(0.001)
        held.release()
        say("acquired", waiting.get())
    """
    with Child(program, name, before=before) as child:
        assert [child.hear(), child.hear()] == ["reentered False", "acquired True"]


def test_a_small_project() -> None:
    """Neither Celery nor django-redis is imported before it is needed, nor a database used."""
    program = (
        "import sys; sys.modules['celery'] = sys.modules['django_redis'] = None\n"
        "from django.conf import settings\n"
        "backend = 'django_redis_lock.backends.locmem.LocMemLockBackend'\n"
        "other = {'LOCATION': 'redis://127.0.0.1:1'}\n"
        "settings.configure(LOCKS={'default': {'BACKEND': backend}, 'other': other},"
        " INSTALLED_APPS=['django_redis_lock'])\n"
        "import django; django.setup()\n"
        "from django.core.management import call_command; call_command('check')\n"
        "from django_redis_lock import lock; lock('a', using='other')\n"
        "with lock('a') as held: held.ensure_held()\n"
        "assert not held.locked()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_a_process_of_which_nothing_can_be_read_may_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where ``/proc`` is that of another container."""
    monkeypatch.setattr("django_redis_lock.support.process._read_stat", lambda pid: ("?", 0))
    assert state_of(os.getpid(), 5) == "?"
    monkeypatch.setattr("os.kill", kill := MagicMock(side_effect=PermissionError))  # another user's
    assert state_of(os.getpid()) == "?"
    monkeypatch.setattr("os.name", "nt")
    assert state_of(os.getpid()) == "?"
    assert kill.call_count == 1  # which would send Ctrl-C there
