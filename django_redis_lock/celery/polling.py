"""A worker polls the outboxes of all aliases, each in a thread of its own."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from time import monotonic
from typing import Any

from celery import bootsteps
from celery.signals import worker_init, worker_shutdown
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_redis_lock.celery import private
from django_redis_lock.celery.key_locks import TaskLock, end_waits, stops
from django_redis_lock.celery.options import GUARD
from django_redis_lock.celery.outbox import Publisher, sealed, worker_began
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import locks
from django_redis_lock.tasks.conflicts import logger

POLL_EVERY = 2.0  # seconds between polls, at most
SHORTEST = 0.02  # seconds between polls, at least, unless one is asked for
NEXT_LOCKS = 0.2  # seconds until the next of many locks are attended to, once all have been
LOCKS_AT_ONCE = 16  # how many locks ``park_poll.lua`` reads

_bells: dict[str, tuple[socket.socket, socket.socket]] = {}  # children wake the poller of an alias
_pollers: list[OutboxPoller] = []


def publish_next(lock: TaskLock) -> None:
    """Have the worker of this process publish the message that got a lock, if one did."""
    if lock.passed_to_message:
        poll_soon(lock.backend.alias)


def poll_soon(using: str) -> None:
    """Have the worker of this process, or of its parent, poll the outbox of an alias."""
    with contextlib.suppress(KeyError, OSError):  # no worker; it was woken often, or has ended
        _bells[using][1].send(b"!")


class OutboxPoller(threading.Thread):
    def __init__(self, app: Any, using: str) -> None:
        super().__init__(name=f"django-redis-lock-parked-{using}", daemon=True)
        self._publisher, self._using = Publisher(app), using
        locks[using].open()  # before the thread needs what that imports
        self._ended, self._skip, self._revoked = False, 0, frozenset[str]()
        self._knows_all = False
        self._due = 0.0  # when (monotonic) locks are to be attended to again

    def end(self) -> None:
        self._ended = True
        poll_soon(self._using)
        self.join(POLL_EVERY)

    def run(self) -> None:
        event, failure = _bells[self._using][0], ""
        while not self._ended:
            try:
                pause, failure = self._poll(), ""
            except Exception as error:
                if repr(error) != failure:
                    text = "Could not check parked tasks of LOCKS[%r]; retrying: %s"
                    logger.warning(text, self._using, error)
                pause, failure = POLL_EVERY, repr(error)
            select.select([event], [], [], max(SHORTEST, min(pause, POLL_EVERY)))
            with contextlib.suppress(BlockingIOError):
                event.recv(4096)
        self._publisher.close()

    def _poll(self) -> float:
        """Poll once; return the seconds until the next time."""
        backend, revoked = locks[self._using], private.revoked_ids()
        if not backend.runs_scripts:  # perhaps it does in the next test
            return POLL_EVERY
        if revoked - self._revoked:
            self._publisher.unpark_revoked(backend, revoked - self._revoked)
        self._revoked = revoked
        attends = monotonic() >= self._due
        pause, found = self._publisher.publish(backend, self._skip if attends else -1)
        if attends:
            if self._publisher.attend(backend, found):
                pause = 0.0
            connections.close_all()  # which functions that give limits may have opened
            self._skip = self._skip + LOCKS_AT_ONCE if len(found) >= LOCKS_AT_ONCE else 0
            self._knows_all |= not self._skip
            self._due = monotonic() + (NEXT_LOCKS * self._knows_all if self._skip else POLL_EVERY)
        return min(pause, max(0.0, self._due - monotonic()))


def parks(task: Any) -> bool:
    """Whether messages of a guarded task are parked."""
    with contextlib.suppress(Exception):  # the checks report what is wrong
        return bool(getattr(task, GUARD).options.run_policy == "park")
    return False


class Pollers(bootsteps.StartStopStep):
    """Starts the pollers of a worker, which go on until its pool has ended."""

    # The processes that these fork when they start must not find the thread in an import.
    requires = ("celery.worker.components:Pool", "celery.worker.components:Beat")

    def create(self, parent: Any) -> None:
        """Raises ``ImproperlyConfigured`` if a task parks messages, and nothing can sign them."""
        if any(map(parks, parent.app.tasks.values())):
            sealed({})

    def start(self, parent: Any) -> None:
        for using in locks:
            with contextlib.suppress(InvalidLockBackend, ImproperlyConfigured):  # checks report it
                _pollers.append(OutboxPoller(parent.app, using))
                _pollers[-1].start()

    close = end_waits  # however the worker is stopped, before its pool waits for tasks

    def terminate(self, parent: Any) -> None:
        _end_pollers()  # of a worker that sends no signal


@worker_init.connect(weak=False)
def _on_init(sender: Any, **kwargs: Any) -> None:
    _end_pollers()  # of an earlier worker in this process, which has ended its waits, too
    stops[0] = 0
    worker_began()
    for using in locks:
        _bells[using] = socket.socketpair()
        for end in _bells[using]:
            end.setblocking(False)
    sender.app.steps["worker"].add(Pollers)


@worker_shutdown.connect(weak=False)
def _end_pollers(**kwargs: Any) -> None:
    while _pollers:
        _pollers.pop().end()
    while _bells:
        for end in _bells.popitem()[1]:
            end.close()
