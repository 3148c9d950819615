"""Release the locks of a worker's children that died, in the worker's parent process.

When a worker starts, it releases what workers that were killed as a whole left on its host.

Celery reports a death late (it may look only every five seconds), or too early (the hooks of a
hard time limit and of ``revoke(terminate=True)`` run before the child is killed), or not at all (if
the message is delivered again). So the parent watches its children itself. It releases what the
ledger names for a child when that child is gone, never before.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Collection
from dataclasses import dataclass
from time import monotonic
from typing import Any

import billiard
from celery.signals import worker_init, worker_ready, worker_shutdown

from django_redis_lock.celery import freeing
from django_redis_lock.celery.guard import GUARD
from django_redis_lock.celery.ledger import Ledger, forget_ledger, open_ledger
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import locks
from django_redis_lock.support.process import state_of

logger = logging.getLogger("django_redis_lock.celery")

LOOK_EVERY = 0.5
"""Seconds between looks for new children, and for dead ones if the system does not report them."""
FIRST_CHANCE = 2.0
"""Seconds that a worker's start waits at most for the release of dead workers' locks, so that a
task that comes again does not meet its own dead run."""
LAST_CHANCE = 5.0
"""Seconds that a worker's shutdown waits at most for the release of killed children's locks."""


class ChildWatch(threading.Thread):
    """Releases the locks of a worker's children as soon as they are dead.

    A child is known from its first guarded run on. The releases are left to other threads, so a
    server that does not answer can't block the watch.
    """

    def __init__(self, ledger: Ledger, aliases: Collection[str]) -> None:
        super().__init__(name="django-redis-lock-children", daemon=True)
        self._ledger = ledger
        self._aliases = aliases
        self._children: dict[int, _Child] = {}  # by page number
        self._ended = threading.Event()
        self._wake, self._waking = os.pipe()
        self._polling_told = False
        self._failure = ""

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self.look(LOOK_EVERY)
            except Exception as error:
                if repr(error) != self._failure:
                    logger.exception("The watch over the worker's children failed, and goes on")
                self._failure = repr(error)
                self._ended.wait(LOOK_EVERY)

    def end(self) -> None:
        self._ended.set()
        os.write(self._waking, b".")
        self.join()
        self.look(0)
        for number in list(self._children):
            self._children.pop(number).close()
        os.close(self._wake)
        os.close(self._waking)

    def look(self, seconds: float) -> None:
        """Release the locks of dead children, after waiting up to some seconds for a death."""
        for number, pid, began in self._ledger.children():
            if number not in self._children:
                self._children[number] = _Child(pid, began, self._descriptor_of(pid, began))
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for number, child in list(self._children.items()):
            if child.descriptor is not None:
                poll.register(child.descriptor, select.POLLIN)
            elif not state_of(child.pid, child.began):
                self._bury(number)
        gone = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
        for number, child in list(self._children.items()):
            if child.descriptor in gone:
                self._bury(number)

    def _descriptor_of(self, pid: int, began: int) -> int | None:
        """Return a descriptor that reports the end of a process; ``None`` to poll instead."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        except (AttributeError, OSError) as error:  # not Linux, an old kernel, or not permitted
            if not self._polling_told:
                text = "The system does not report dead children, so they are polled every %g s: %s"
                logger.info(text, LOOK_EVERY, error)
            self._polling_told = True
            return None
        if state_of(pid, began):
            return descriptor
        os.close(descriptor)  # it may be of a later process with the same id
        return None

    def _bury(self, number: int) -> None:
        entries, complete = self._ledger.read(number)
        for using, name, token_id in entries:
            freeing.free(using, name, token_id)
        if not complete:
            for using in self._aliases:
                freeing.free_dead(using)
        self._ledger.free(number)
        self._children.pop(number).close()


@dataclass(frozen=True)
class _Child:
    pid: int
    began: int
    descriptor: int | None

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


_made: Ledger | Exception | None = None
_watches: list[ChildWatch] = []


def _on_init(**kwargs: Any) -> None:
    """Make the ledger before the pool forks, whatever kind of pool that will be."""
    global _made  # noqa: PLW0603 - one process is one worker
    try:
        _made = open_ledger()
    except (OSError, ValueError) as error:
        _made = error


def _on_ready(sender: Any = None, **kwargs: Any) -> None:
    guards = [getattr(task, GUARD, None) for task in sender.app.tasks.values()]
    aliases = {guard.options.using for guard in guards if guard is not None}
    try:
        if not aliases:
            forget_ledger()
            return
        opened = []
        for using in locks:
            # Now, because the threads first need it while a dead child is being replaced by a fork.
            with contextlib.suppress(InvalidLockBackend):  # reported where it is used
                locks[using].open()
                opened.append(using)
        _free_dead(opened)
        if not _forks(sender.pool):
            forget_ledger()
            return
        watch = ChildWatch(_inherited_ledger(), aliases)
        watch.start()
        _watches.append(watch)
    except Exception as error:
        text = "The children are not watched: locks of killed ones end with their leases: %s"
        logger.warning(text, error)


def _free_dead(aliases: Collection[str]) -> None:
    until = monotonic() + FIRST_CHANCE
    for attempted in [freeing.free_dead(using) for using in aliases]:
        attempted.wait(max(0.0, until - monotonic()))


def _forks(pool: Any) -> bool:
    from celery.concurrency.prefork import TaskPool  # clients don't need it

    return isinstance(pool, TaskPool)


def _inherited_ledger() -> Ledger:
    """Return the ledger that the children share, or raise the reason why they don't."""
    method = billiard.get_start_method()
    if method != "fork":
        raise RuntimeError(f"children that are started by {method} share no memory with it")
    if not isinstance(_made, Ledger):
        raise _made or RuntimeError("the worker did not send worker_init")
    return _made


def _on_shutdown(**kwargs: Any) -> None:
    while _watches:
        _watches.pop().end()
    freeing.finish(LAST_CHANCE)


worker_init.connect(_on_init, weak=False)
worker_ready.connect(_on_ready, weak=False)
worker_shutdown.connect(_on_shutdown, weak=False)
