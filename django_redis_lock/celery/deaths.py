"""Release the locks of a worker's children that died, in the worker's parent process.

When a worker starts, it releases what workers that were killed as a whole left on its host.

Celery reports a death late (it may look only every five seconds), or too early (the hooks of a
hard time limit and of ``revoke(terminate=True)`` run before the child is killed), or not at all (if
the message is delivered again). So the parent watches its children itself. It lists the held locks
when a child is gone, never before, and releases those whose process is.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection
from time import monotonic
from typing import Any

from celery.signals import worker_ready, worker_shutdown

from django_redis_lock.celery import freeing
from django_redis_lock.celery.guard import GUARD
from django_redis_lock.celery.private import children_of, was_recycled
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import locks
from django_redis_lock.support.process import began_at, state_of

logger = logging.getLogger("django_redis_lock.celery")

LOOK_EVERY = 0.2
"""Seconds between looks for dead children."""
FIRST_CHANCE = 2.0
"""Seconds that a worker's start waits at most for the release of dead workers' locks, so that a
task that comes again does not meet its own dead run."""
LAST_CHANCE = 5.0
"""Seconds that a worker's shutdown waits at most for the release of killed children's locks."""


class ChildWatch(threading.Thread):
    """Releases the locks of a worker's children as soon as they are dead.

    The releases are left to other threads, so a server that does not answer can't block the watch.
    """

    def __init__(self, pool: Any, aliases: Collection[str]) -> None:
        super().__init__(name="django-redis-lock-children", daemon=True)
        self._pool = pool
        self._aliases = aliases
        self._alive: dict[tuple[int, int], Any] = {}
        self._died = False
        self._ended = threading.Event()

    def run(self) -> None:
        failure = ""
        while not self._ended.wait(LOOK_EVERY):
            try:
                self.look()
            except Exception as error:
                if repr(error) != failure:
                    logger.exception("The watch over the worker's children failed, and goes on")
                failure = repr(error)

    def look(self) -> None:
        """Release the locks of dead children if one died since the last look.

        A child that was born and died between two looks shows by its successor. After a death there
        is a second look, for what the server was asked for just before.
        """
        children = children_of(self._pool)
        alive = {(pid, began_at(pid)): child for pid, child in children.items() if state_of(pid)}
        gone = [child for key, child in self._alive.items() if key not in alive]
        born = len(alive) + len(gone) - len(self._alive)
        died = born > len(gone) or not all(was_recycled(child) for child in gone)
        if died or self._died:
            free_dead(self._aliases)
        self._alive, self._died = alive, died

    def end(self) -> None:
        self._ended.set()
        self.join()
        free_dead(self._aliases)


def free_dead(aliases: Collection[str]) -> list[threading.Event]:
    return [freeing.free_dead(using) for using in aliases]


_watches: list[ChildWatch] = []


def _on_ready(sender: Any = None, **kwargs: Any) -> None:
    guards = [getattr(task, GUARD, None) for task in sender.app.tasks.values()]
    aliases = {guard.options.using for guard in guards if guard is not None}
    if not aliases:
        return
    try:
        opened = []
        for using in locks:
            # Now, because the threads first need it while a dead child is being replaced by a fork.
            with contextlib.suppress(InvalidLockBackend):  # reported where it is used
                locks[using].open()
                opened.append(using)
        until = monotonic() + FIRST_CHANCE
        for attempted in free_dead(opened):
            attempted.wait(max(0.0, until - monotonic()))
        from celery.concurrency.prefork import TaskPool  # clients don't need it

        if isinstance(sender.pool, TaskPool):
            watch = ChildWatch(sender.pool, aliases)
            watch.start()
            _watches.append(watch)
    except Exception as error:
        text = "The children are not watched: locks of killed ones end with their leases: %s"
        logger.warning(text, error)


def _on_shutdown(**kwargs: Any) -> None:
    while _watches:
        _watches.pop().end()
    freeing.finish(LAST_CHANCE)


worker_ready.connect(_on_ready, weak=False)
worker_shutdown.connect(_on_shutdown, weak=False)
