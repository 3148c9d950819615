"""What a worker's parent process does about the locks of children that died.

A child that dies can't release its locks. Celery tells of a death late (it may look every five
seconds only), or before it has happened (the hooks of a hard time limit and of
``revoke(terminate=True)`` run before the child is killed), or not at all (where the message is
delivered again). So the parent watches its children itself, and frees what the ledger says that one
of them held when it is gone, never before.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import billiard
from celery.signals import worker_init, worker_ready, worker_shutdown

from django_redis_lock.celery import freeing
from django_redis_lock.celery.family import lives
from django_redis_lock.celery.guard import GUARD
from django_redis_lock.celery.ledger import Ledger, forget_ledger, open_ledger
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import locks

logger = logging.getLogger("django_redis_lock.celery")

LOOK_EVERY = 0.5
"""Seconds between looks for new children, and for dead ones where the system can't tell of them."""
LAST_CHANCE = 5.0
"""Seconds that the end of a worker takes at the most to free what killed children have left."""


class ChildWatch(threading.Thread):
    """Frees the locks of a worker's children as soon as they are dead.

    A child is known from its first guarded run on. What is freed is left to other threads, so no
    server holds up the watch.
    """

    def __init__(self, ledger: Ledger, aliases: Collection[str]) -> None:
        super().__init__(name="django-redis-lock-children", daemon=True)
        self._ledger = ledger
        self._aliases = aliases
        self._children: dict[int, _Child] = {}  # by the number of their page
        self._ended = threading.Event()
        self._wake, self._waking = os.pipe()
        self._has_looked = False  # and told so
        self._failure = ""

    def run(self) -> None:
        """Watch until the worker ends."""
        while not self._ended.is_set():
            try:
                self.look(LOOK_EVERY)
            except Exception as error:
                if repr(error) != self._failure:
                    logger.exception("The watch over the worker's children failed, and goes on")
                self._failure = repr(error)
                self._ended.wait(LOOK_EVERY)

    def end(self) -> None:
        """Watch no more; see to the children that are dead by now."""
        self._ended.set()
        os.write(self._waking, b".")
        self.join()
        self.look(0)
        for number in list(self._children):
            self._children.pop(number).close()
        os.close(self._wake)
        os.close(self._waking)

    def look(self, seconds: float) -> None:
        """See to the children that are dead; wait so long for one to die."""
        for number, pid, began in self._ledger.children():
            if number not in self._children:
                self._children[number] = _Child(pid, began, self._descriptor_of(pid, began))
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for number, child in list(self._children.items()):
            if child.descriptor is not None:
                poll.register(child.descriptor, select.POLLIN)
            elif not lives(child.pid, child.began):
                self._bury(number)
        gone = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
        for number, child in list(self._children.items()):
            if child.descriptor in gone:
                self._bury(number)

    def _descriptor_of(self, pid: int, began: int) -> int | None:
        """Return what tells at once of the end of a process; ``None`` where one has to look."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        except (AttributeError, OSError) as error:  # not Linux, an old kernel, or not permitted
            if not self._has_looked:
                words = "Dead children are looked for every %g s, for nothing tells of them: %s"
                logger.info(words, LOOK_EVERY, error)
            self._has_looked = True
            return None
        if lives(pid, began):
            return descriptor
        os.close(descriptor)  # it may be that of a later process of the same number
        return None

    def _bury(self, number: int) -> None:
        """Free what a dead child held, and have done with it, collected or not."""
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
    """A process that has a page in the ledger."""

    pid: int
    began: int
    descriptor: int | None

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


_made: Ledger | Exception | None = None
_watches: list[ChildWatch] = []


def _on_init(**kwargs: Any) -> None:
    """Make the ledger before the pool forks, whatever pool that will be."""
    global _made  # noqa: PLW0603 - one process is one worker
    try:
        _made = open_ledger()
    except (OSError, ValueError) as error:
        _made = error


def _on_ready(sender: Any = None, **kwargs: Any) -> None:
    guards = [getattr(task, GUARD, None) for task in sender.app.tasks.values()]
    aliases = {guard.options.using for guard in guards if guard is not None}
    try:
        if not aliases or not _forks(sender.pool):
            forget_ledger()
            return
        for using in locks:
            # Now, for the threads call just when a child is forked in a dead one's place.
            with contextlib.suppress(InvalidLockBackend):  # which is told where it is used
                locks[using].open()
        watch = ChildWatch(_inherited_ledger(), aliases)
        watch.start()
        _watches.append(watch)
    except Exception as error:
        words = "No watch over the children: the locks of a killed one end with their leases: %s"
        logger.warning(words, error)


def _forks(pool: Any) -> bool:
    """Whether a worker's pool has child processes."""
    from celery.concurrency.prefork import TaskPool  # of which a client has no need

    return isinstance(pool, TaskPool)


def _inherited_ledger() -> Ledger:
    """Return the ledger that the children share. Raises what keeps them from it."""
    method = billiard.get_start_method()
    if method != "fork":
        raise RuntimeError(f"children that are started by {method} share no memory with it")
    if not isinstance(_made, Ledger):
        raise _made or RuntimeError("the worker was not announced by worker_init")
    return _made


def _on_shutdown(**kwargs: Any) -> None:
    while _watches:
        _watches.pop().end()
    freeing.finish(LAST_CHANCE)


worker_init.connect(_on_init, weak=False)
worker_ready.connect(_on_ready, weak=False)
worker_shutdown.connect(_on_shutdown, weak=False)
