"""Other programs that lock by SETNX and GETSET."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from django_redis_lock import lock
from django_redis_lock.backends.settings import LONGEST_INTERVAL
from example_project.embedded import EmbeddedServer
from tests.backends.getset.conftest import Configure
from tests.tools import ROOT, Background, eventually, waiters

pytestmark = pytest.mark.usefixtures("no_workers")


INSIDE = """
import fcntl, sys, time

def inside(path, expires):
    # Alone here, except for a holder that stays beyond the end of its lease.
    with open(path, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            assert float(file.read() or "inf") < time.time(), "two inside"
            return
        file.truncate()
        file.write(f"{expires:020.6f}")
        file.flush()
        time.sleep(0.001)
        file.seek(0)
        file.truncate()
"""

FOREIGN = """
import redis
port, key, path, sections = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
TIMEOUT = 1
client = redis.Redis(port=port)

def take():
    while True:
        expires = int(time.time()) + TIMEOUT + 1
        if client.setnx(key, expires):
            return expires
        found = client.get(key)
        if found is not None and float(found) < time.time():
            expires = int(time.time()) + TIMEOUT + 1
            found = client.getset(key, expires)
            if found is None or float(found) < time.time():
                return expires
        time.sleep(0.002)

print("ready", flush=True)
sys.stdin.readline()
for _ in range(sections):
    expires = take()
    inside(path, expires)
    if time.time() < expires:
        client.delete(key)
print("done", flush=True)
"""

OURS = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
port, key, path, sections = sys.argv[1:]
import django
from django.conf import settings
settings.LOCKS = {"default": {
    "BACKEND": "django_redis_lock.backends.getset.GetSetLockBackend",
    "LOCATION": f"redis://127.0.0.1:{port}/0",
    "OPTIONS": {"KEY": "{name}", "POLL_INTERVAL": 0.005},
}}
django.setup()
from django_redis_lock import lock
from django_redis_lock.exceptions import LockLost
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sections)):
    held = lock(key, timeout=1)
    held.acquire()
    inside(path, time.time() + held.remaining)
    try:
        held.release()
    except LockLost:
        pass  # another program that came too late has overwritten our time
print("done", flush=True)
"""


def test_other_programs_and_ours_exclude_each_other(
    name: str, server: EmbeddedServer, client: redis.Redis, tmp_path: Path
) -> None:
    """There are never two holders at once, though holders die and are replaced.

    The dead are planted: a time that has passed, stored while nobody holds the lock.
    """
    path = tmp_path / "inside"
    path.touch()
    common = [str(server.port), name, str(path), "12"]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", INSIDE + program, *common],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for program in (FOREIGN, OURS) * 2
    ]
    try:
        for process in running:
            assert process.stdout.readline() == "ready\n"
        client.set(name, int(time.time()) - 10**6)
        for process in running:
            process.stdin.write("\n")
            process.stdin.flush()
        dead = 3
        while any(process.poll() is None for process in running):
            dead -= bool(dead and client.setnx(name, int(time.time()) - 1000 * dead))
            time.sleep(0.005)
        for process in running:
            out, told = process.communicate()
            assert (out, process.returncode) == ("done\n", 0), told
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_holder_of_another_program_is_waited_out(
    name: str, configure: Configure, client: redis.Redis
) -> None:
    """A holder of another program that died delays us until its lease ends, and no longer."""
    configure(KEY="lock.{name}")
    key = f"lock.{name}"
    client.set(key, f"{time.time() + 100:.6f}")
    assert not lock(name).acquire(blocking_timeout=0.05)
    held = lock(name)
    waiting = Background(held.acquire)
    client.set(key, f"{time.time() + 0.1:.6f}")
    assert waiting.outcome() is True
    assert float(client.get(key)) > time.time() + 15
    held.release()
    assert not client.exists(key)


def test_waiters_of_a_process_need_not_poll_for_each_other(name: str, configure: Configure) -> None:
    """A release wakes a waiter of the same process, however long its interval is."""
    backend = configure(POLL_INTERVAL=LONGEST_INTERVAL)
    backend.registry_for("").interval = 600.0  # longer than may be asked for, or this test waits
    held, other = lock(name, timeout=900), lock(name)
    held.acquire()
    waiting = Background(other.acquire)
    eventually(lambda: waiters(name) == 1)
    held.release()
    assert waiting.outcome() is True
    other.release()
