"""What the tasks record on the server while they run, and how they are told to end."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from uuid import uuid4

from redis import Redis

from benchmarks.frame.processes import is_alive

PORT = "CELERY_GUARDS_PORT"
"""The environment variable with the port of the server."""
OTHER_BROKER = "CELERY_GUARDS_BROKER"
"""The environment variable with the URL of a RabbitMQ to use in place of the server."""
BROKER, RESULTS, DIARY, LOCKS = range(4)
"""The databases of the server."""
FORGOTTEN = 60
"""Seconds after which a task ends by itself."""


def url(database: int) -> str:
    return f"redis://127.0.0.1:{os.environ[PORT]}/{database}"


@dataclass(frozen=True)
class Entry:
    """A task that began, ended, or was torn away by an exception."""

    what: str
    shop_id: int
    label: str
    task_id: str
    pid: int
    at: float
    """When, as Unix time."""
    beside: int = 0
    """How many others of the same shop were running then, in living processes."""


class Diary:
    """The entries of all tasks, in order."""

    def __init__(self) -> None:
        self._client = Redis.from_url(url(DIARY), decode_responses=True, socket_timeout=None)

    def close(self) -> None:
        self._client.close()

    def entries(self, shop_id: int, what: str, label: str = "") -> list[Entry]:
        """Return the entries of a shop whose label begins with a text."""
        found = (Entry(**json.loads(line)) for line in self._client.lrange("diary", 0, -1))
        return [
            entry
            for entry in found
            if (entry.shop_id, entry.what) == (shop_id, what) and entry.label.startswith(label)
        ]

    def let_go(self, shop_id: int, label: str = "", times: int = 1) -> None:
        """Let runs of a shop end, with one label or with any."""
        self._client.rpush(f"go:{shop_id}:{label}", *["go"] * times)

    def running(self, shop_id: int) -> int:
        """Return how many tasks of a shop run in living processes."""
        return sum(map(is_alive, map(int, self._client.hvals(f"running:{shop_id}"))))

    def wait_for_go(self, shop_id: int, label: str) -> bool:
        """Wait until the scenario lets this run end; return whether it did."""
        lists = [f"go:{shop_id}:{label}", f"go:{shop_id}:"]
        return self._client.blpop(lists, timeout=FORGOTTEN) is not None

    @contextmanager
    def run(self, shop_id: int, label: str, task_id: str) -> Iterator[None]:
        """Record the beginning and the end of a run, and how many others were running."""
        run, running, me = uuid4().hex, f"running:{shop_id}", os.getpid()
        # It adds itself before it looks: of two that begin at once, at least one sees the other.
        self._client.hset(running, run, me)
        others = self._client.hgetall(running)
        beside = sum(is_alive(int(pid)) for other, pid in others.items() if other != run)
        self._write("began", shop_id, label, task_id, beside)
        what = "torn away"
        try:
            yield
            what = "ended"
        finally:
            self._client.hdel(running, run)
            self._write(what, shop_id, label, task_id)

    def _write(self, what: str, shop_id: int, label: str, task_id: str, beside: int = 0) -> None:
        entry = Entry(what, shop_id, label, task_id, os.getpid(), time.time(), beside)
        self._client.rpush("diary", json.dumps(asdict(entry)))


@cache
def diary() -> Diary:
    """Return this process's diary; a worker's child opens its own after the fork."""
    return Diary()
