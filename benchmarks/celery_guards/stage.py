"""What a scenario plays on: the app and the worker of one guard, and the diary of its tasks."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery import Celery
from redis import Redis

from benchmarks.celery_guards.contenders import Guard
from benchmarks.celery_guards.diary import LOCKS, Diary, Entry, url
from benchmarks.frame.processes import is_alive
from example_project.service import Service

WORKER = (
    "benchmarks.celery_guards.app",
    *("--concurrency", "4", "--loglevel", "INFO", "--queues", "guards"),
)
"""The app and the options of the worker."""
PATIENCE = 20
"""Seconds after which a scenario fails because an expected event did not come."""
SETTLE = 1.5
"""Seconds within which a call that may run at once has begun."""
PROBE_EVERY = 0.1
POLL = 0.01


class StageError(Exception):
    """A scenario could not be played; the text names what did not come."""


@dataclass
class Left:
    """The lock after its task was gone, as the next calls met it."""

    seconds: float | None
    """From the end of the task to the next run; ``None`` if no call ran within the cap."""
    cap: float
    """The seconds for which calls were made."""
    expires_in: float | None = None
    """If no call ran, the seconds until the lock expires; ``None`` for never."""


class Stage:
    """One scenario's view; `shop_id` is its own key."""

    def __init__(self, app: Celery, guard: type[Guard], worker: Service, shop_id: int) -> None:
        self.app = app
        self.guard = guard
        self.worker = worker
        self.shop_id = self._first = shop_id
        self.diary = Diary()
        self.locks = Redis.from_url(url(LOCKS), decode_responses=True)
        self.refusals: list[str] = []
        """What the guard raised in the sender."""

    def has(self, name: str) -> bool:
        """Whether the guard has a task of this kind."""
        return name in self.app.tasks

    def send(self, name: str, label: str, *, shop_id: int = 0, **options: Any) -> Any:
        """Send a task; return its result, or ``None`` if the guard raised an error."""
        arguments = (shop_id or self.shop_id, label)
        return self.attempt(lambda: self.app.tasks[name].apply_async(arguments, **options))

    def attempt(self, call: Callable[[], Any]) -> Any:
        """Make a call; record what it raises as a refusal."""
        try:
            return call()
        except Exception as error:  # each guard has its own errors
            self.refusals.append(type(error).__name__)
            return None

    def began(self, label: str = "") -> list[Entry]:
        return self.diary.entries(self.shop_id, "began", label)

    def ended(self, label: str = "") -> list[Entry]:
        return self.diary.entries(self.shop_id, "ended", label)

    def together(self) -> int:
        """Return how many runs began while another of the same key was running."""
        return sum(
            entry.beside > 0
            for shop_id in range(self._first, self.shop_id + 1)
            for entry in self.diary.entries(shop_id, "began")
        )

    def next_key(self) -> None:
        self.shop_id += 1

    def wait(self, condition: Callable[[], Any], seconds: float) -> Any:
        """Return the first true value of a condition, or the last value when the time is up."""
        until = time.monotonic() + seconds
        while not (value := condition()) and time.monotonic() < until:
            time.sleep(POLL)
        return value

    def need(self, condition: Callable[[], Any], what: str) -> Any:
        """Return the first true value of a condition that must become true."""
        value = self.wait(condition, PATIENCE)
        if not value:
            raise StageError(f"did not come: {what}")
        return value

    def received(self, *texts: str) -> None:
        """Wait until a line of the worker's log contains all texts."""
        self.need(lambda: self.worker.count(*texts), f"{texts} in the worker's log")

    def redelivered(self, task_id: str) -> None:
        """Wait until the worker has received a message twice."""
        self.need(lambda: self.worker.count(task_id, "received") > 1, "the second delivery")

    def pid_of(self, label: str) -> int:
        entries: list[Entry] = self.need(lambda: self.began(label), f"the start of {label!r}")
        return entries[0].pid

    def need_death(self, pid: int) -> float:
        """Wait until a process is dead; return when, as Unix time."""
        self.need(lambda: not is_alive(pid), f"the death of process {pid}")
        return time.time()

    def go(self, label: str = "", times: int = 1) -> None:
        self.diary.let_go(self.shop_id, label, times)

    def probe(
        self,
        cap: float,
        *,
        name: str = "work",
        since: float | None = None,
        watching: int | None = None,
        **options: Any,
    ) -> Left:
        """Call again and again until a call runs; return how long the lock was left.

        The time counts from `since`, or from the death of the process `watching`, which may still
        live. This sees only what any caller would see, so it is the same for every guard.
        """
        number, since = 0, None if watching else since or time.time()
        until = time.monotonic() + cap
        while time.monotonic() < until:
            if watching and since is None and not is_alive(watching):
                since, until = time.time(), time.monotonic() + cap
            self.send(name, f"probe {number}", **options)
            number += 1
            found = self.wait(lambda: self.began("probe"), PROBE_EVERY)
            if found:
                if watching and since is None:
                    since = self.need_death(watching)
                assert since is not None
                return Left(max(0.0, found[0].at - since), cap)
        return self.left(cap)

    def left(self, cap: float) -> Left:
        """Return what the server says of a lock that no call has got within `cap` seconds."""
        keys = list(self.locks.scan_iter(match=self.guard.lock_keys, count=1000))
        if not keys:
            raise StageError(f"no call ran within {cap:g} s, although the server has no lock")
        expiries = [self.locks.pttl(key) for key in keys]
        known = [milliseconds / 1000 for milliseconds in expiries if milliseconds >= 0]
        return Left(None, cap, max(known, default=None))

    def give_back_unacknowledged(self) -> None:
        """Let the broker redeliver what no worker has acknowledged.

        Every worker does this with messages older than the visibility timeout, which is 0 here.
        """
        with self.app.connection_for_write() as connection:
            channel = connection.default_channel
            channel.visibility_timeout = 0
            channel.qos.restore_visible(interval=1)

    @contextmanager
    def no_consumer(self) -> Iterator[None]:
        """Let messages stay in the queue for a while."""
        queue, how = self.app.conf.task_default_queue, {"reply": True, "timeout": PATIENCE}
        self.app.control.cancel_consumer(queue, limit=1, **how)
        try:
            yield
        finally:
            self.app.control.add_consumer(queue, limit=1, **how)

    def clean_up(self) -> None:
        """End all runs, so that the next scenario has a free worker."""
        keys = range(self._first, self.shop_id + 2)
        for shop_id in keys:
            self.diary.let_go(shop_id, times=200)
        self.wait(lambda: not any(map(self.diary.running, keys)), PATIENCE)
