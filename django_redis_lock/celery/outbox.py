"""Publish the messages of parked tasks that have got their locks.

"Parked messages" in ``docs/explanation/celery.md`` explains the outbox, which belongs to a broker.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable
from functools import cache, partial
from operator import attrgetter
from typing import Any

from celery import bootsteps
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import worker_init
from kombu.exceptions import OperationalError
from kombu.utils.json import loads

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.celery import private
from django_redis_lock.celery.key_locks import TaskLock, end_waits, stops
from django_redis_lock.celery.options import GUARD, Options
from django_redis_lock.exceptions import LockError
from django_redis_lock.handler import locks
from django_redis_lock.protocol.calls import ask
from django_redis_lock.support.process import forget_after_fork, retain_inherited
from django_redis_lock.support.text import visible
from django_redis_lock.tasks.conflicts import logger
from django_redis_lock.transport.parking import EndParking, LookAfter, ReadOutbox, Unpark

LOOK_EVERY = 2.0
"""Seconds between looks at the outbox, at most."""
IDLE_LOOK_EVERY = 30.0
"""The same for a worker that parks no tasks; others may have parked some before a deploy."""
AT_ONCE = 20
"""How many messages are published in one go."""
LOOK_AT = 100
"""How many locks one look is about."""


def pass_on(app: Any, options: Options, lock: TaskLock) -> None:
    """Publish the message that got the lock of a run; if the lock rests, note until when."""
    backend = locks[options.using]
    rests = options.at_least_for and options.run_policy == "park" and backend.runs_scripts
    with contextlib.suppress(LockError, SoftTimeLimitExceeded):  # a worker looks later
        if lock.passed_to_message:
            publisher_of(app).publish(backend, lock.name)
        elif rests:
            publisher_of(app).look_after(backend, lock.name)


class Publisher:
    """Publishes messages of an app, over a connection of its own on which brokers confirm them."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.outbox = outbox_of(app)
        self.mutex = threading.Lock()
        self.unreachable = ""
        """Why the broker could not be reached at the last attempt, empty if it could."""
        self._producer: Any = None
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Leave the connection to the parent process."""
        retain_inherited(self._producer)
        self.mutex, self._producer = threading.Lock(), None

    def publish(self, backend: BaseLockBackend, name: str = "", most_locks: int = 0) -> float:
        """Publish what is due in the outbox, of all locks or of those that share one's shard.

        Looks after up to ``most_locks``; returns the seconds until the next one, infinite if no
        message is parked. Raises ``LockUnavailable``. What can't be published now is so later.
        """
        messages, names, pause_ms = self._publish_due(backend, name, most_locks)
        for found in names:
            self.look_after(backend, found.decode())
        if messages or names:
            return 0.0
        return pause_ms / 1000 if pause_ms >= 0 else float("inf")

    def look_after(self, backend: BaseLockBackend, name: str) -> None:
        """Grant a lock to its parked messages if it is free, and note when it may be next."""
        backend.run(ask(LookAfter(self.outbox, name)))

    def unpark(self, backend: BaseLockBackend, name: str, task_id: str | None = None) -> int:
        """Send the parked messages of a lock back to the broker, or that of one task.

        Returns how many they are. They have no place any more: a task that parks is parked again
        if it finds no room. Raises ``LockUnavailable``. If the broker is ``unreachable``, workers
        publish them later.
        """
        prefix = "" if task_id is None else digest(task_id)
        found: int = backend.run(ask(Unpark(self.outbox, name, prefix)))
        if found:
            self.look_after(backend, name)  # others who share it may be next now
        while found and self._publish_due(backend, name)[0] and not self.unreachable:
            pass
        return found

    def unpark_revoked(self, backend: BaseLockBackend, task_ids: Iterable[str]) -> None:
        """Let the broker have revoked tasks that are parked: the worker that gets one drops it."""
        call = ReadOutbox(self.outbox, "", -1, 0)
        for name in backend.run(ask(call))[1]:
            for task_id in task_ids:
                self.unpark(backend, name.decode(), task_id)

    def _publish_due(self, backend: BaseLockBackend, name: str, most_locks: int = 0) -> list[Any]:
        with self.mutex:
            answer: list[Any] = backend.run(ask(ReadOutbox(self.outbox, name, most_locks, AT_ONCE)))
            for token, message in zip(answer[0][::2], answer[0][1::2], strict=True):
                self._publish(backend, token.decode(), message)
                if self.unreachable:
                    break
        return answer

    def _publish(self, backend: BaseLockBackend, token: str, text: bytes) -> None:
        message: Any = {}
        try:
            message = loads(text)
            policy = dict(self.app.conf.task_publish_retry_policy)
            options = {**message["options"], "retry": True, "retry_policy": policy}
            self._open().publish(message["body"], **options)
        except Exception as error:  # of any broker
            known = isinstance(error, OperationalError)
            self._producer, self.unreachable = None, (str(error) or "no answer") if known else ""
            failed = "Parked task %s can't be published now; that is tried again: %s"
            log = logger.warning if known else logger.exception
            log(failed, visible(str(message.get("id"))), error)
        else:
            self.unreachable = ""
            backend.run(ask(EndParking(self.outbox, message["lock"], token)))

    def _open(self) -> Any:
        if self._producer is None:
            connection = self.app.connection_for_write()
            options = connection.transport_options
            connection.transport_options = {**options, "confirm_publish": True}
            self._producer = self.app.amqp.Producer(connection, auto_declare=False)
        return self._producer


publisher_of: Callable[[Any], Publisher] = cache(Publisher)
"""Returns the publisher of an app."""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def outbox_of(app: Any) -> str:
    """Return the id of the outbox for the broker of an app, which is the same for all its users."""
    url = app.connection_for_write().as_uri()  # without the password
    prefix = (app.conf.broker_transport_options or {}).get("global_keyprefix", "")
    return digest(f"{url} {prefix}")


_look_now = threading.Event()

look_soon = _look_now.set
"""Lets the worker of this process look now."""


class Look(bootsteps.StartStopStep):
    """The looks of a worker at the outbox, at the locks, and at the tasks that were revoked.

    It also ends the waits of tasks before the pool waits for these, however the worker is stopped.
    """

    # The processes that these fork when they start must not find the thread in an import.
    requires = ("celery.worker.components:Pool", "celery.worker.components:Beat")
    _ended = False
    _thread: threading.Thread | None = None

    def start(self, parent: Any) -> None:
        aliases, every = set(), IDLE_LOOK_EVERY
        for task in parent.app.tasks.values():
            with contextlib.suppress(Exception):  # the checks report what is wrong
                if guard := getattr(task, GUARD, None):
                    locks[guard.options.using].open()  # before its thread needs what that imports
                    aliases.add(guard.options.using)
                    every = LOOK_EVERY if guard.options.run_policy == "park" else every
        look = partial(self._look, publisher_of(parent.app), aliases, every)
        self._thread = threading.Thread(target=look, name="django-redis-lock-parked", daemon=True)
        self._thread.start()

    def _look(self, publisher: Publisher, aliases: Iterable[str], every: float) -> None:
        known, failure = frozenset[str](), ""
        while aliases and not self._ended:
            pause = every
            try:
                revoked = private.revoked_ids()
                for backend in filter(attrgetter("runs_scripts"), map(locks.__getitem__, aliases)):
                    if revoked - known:
                        publisher.unpark_revoked(backend, revoked - known)
                    pause = min(pause, publisher.publish(backend, most_locks=LOOK_AT))
                known, failure = revoked, ""
            except Exception as error:
                if repr(error) != failure:
                    logger.warning("Parked tasks can't be looked after yet: %s", error)
                failure = repr(error)
            _look_now.wait(max(pause, 0.02))
            _look_now.clear()

    close = end_waits

    def stop(self, parent: Any) -> None:
        self._ended = True
        look_soon()
        if self._thread is not None:  # else the worker failed to start
            self._thread.join(LOOK_EVERY)

    terminate = stop


@worker_init.connect(weak=False)
def _on_init(sender: Any, **kwargs: Any) -> None:
    stops[0] = 0  # an earlier worker may have run in this process
    sender.app.steps["worker"].add(Look)
