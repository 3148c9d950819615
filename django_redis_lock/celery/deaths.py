"""What a worker's parent process does about locks that no child will release.

A child that dies can't release its locks. Celery tells of a death late (it may look every five
seconds only), or before it has happened (the hooks of a hard time limit and of
``revoke(terminate=True)`` run before the child is killed), or not at all (where the message is
delivered again). So the parent watches its children itself, and frees what one of them held when it
is gone, never before. And a message that is revoked or expires while it waits never comes to a
child; what was taken for it when it was sent is freed here as well.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Any

from celery.signals import task_revoked, worker_ready, worker_shutdown

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.celery.family import is_dead
from django_redis_lock.celery.guard import GUARD
from django_redis_lock.celery.message import Slip, headers_of
from django_redis_lock.celery.private import EX_RECYCLE
from django_redis_lock.exceptions import LockError
from django_redis_lock.handler import locks

logger = logging.getLogger("django_redis_lock.celery")

LOOK_EVERY = 0.5
"""Seconds between looks for new children, and for dead ones where the system can't tell of them."""


class ChildWatch(threading.Thread):
    """Frees the locks of a worker's children as soon as they are dead.

    There is one for each alias of LOCKS, so that a server which does not answer holds up nothing on
    another one.
    """

    def __init__(self, pool: Any, using: str) -> None:
        super().__init__(name=f"django-redis-lock-children-{using}", daemon=True)
        self._pool = pool
        self._using = using
        self._ended = threading.Event()
        self._descriptors: dict[int, int] = {}  # of the children, by the number of their process
        self._to_free = False

    def run(self) -> None:
        """Watch until the worker ends."""
        while not self._ended.is_set():
            try:
                self._look()
            except Exception:
                logger.exception("The watch over the worker's children failed, and goes on")
                self._ended.wait(LOOK_EVERY)
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def end(self) -> None:
        """Watch no more; free what killed children have left."""
        self._ended.set()
        self._free()

    def _look(self) -> None:
        self._find_children()
        if not self._descriptors:
            self._ended.wait(LOOK_EVERY)
        poll = select.poll()
        for descriptor in self._descriptors.values():
            poll.register(descriptor, select.POLLIN)
        gone = {descriptor for descriptor, _ in poll.poll(LOOK_EVERY * 1000)}
        for pid, descriptor in list(self._descriptors.items()):
            if descriptor in gone:
                self._to_free |= not _was_recycled(descriptor)
                os.close(self._descriptors.pop(pid))
        if self._to_free:
            self._to_free = not self._free()

    def _find_children(self) -> None:
        try:
            children = self._pool.info.get("processes", ())
        except AttributeError:  # the pool has ended before the worker
            return
        for pid in children:
            if pid in self._descriptors:
                continue
            try:
                self._descriptors[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                self._to_free = True

    def _free(self) -> bool:
        """Free the locks of all dead children; return False if the server could not be asked."""
        try:
            backend = locks[self._using]
            for holder in list(backend.holders()):
                if is_dead(holder):
                    release_for(backend, holder.name, holder.token_id)
        except LockError as error:
            logger.warning("The locks of a dead worker child could not be freed: %s", error)
            return False
        return True


def _was_recycled(descriptor: int) -> bool:
    """Whether a child ended as it should, with no task in hand."""
    try:
        end = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:  # its parent has collected it
        return False
    return end is not None and (end.si_code, end.si_status) == (os.CLD_EXITED, EX_RECYCLE)


def release_for(backend: BaseLockBackend, name: str, token_id: str) -> None:
    """Release a lock for its holder, who can't. Raises ``LockError``."""
    why = "the process or message that it was held for is no more"
    holder = backend.force_release(name, token_id, by="the Celery worker", reason=why)
    if holder is not None:
        logger.warning("Lock %r was freed, for %s can't release it", name, holder)


_watches: list[ChildWatch] = []


def _on_ready(sender: Any = None, **kwargs: Any) -> None:
    guards = [getattr(task, GUARD, None) for task in sender.app.tasks.values()]
    if hasattr(os, "pidfd_open") and sender.pool.info.get("processes"):
        for using in {guard.options.using for guard in guards if guard is not None}:
            # Now, for the thread calls just when a child is forked in a dead one's place.
            locks[using].open()
            watch = ChildWatch(sender.pool, using)
            watch.start()
            _watches.append(watch)


def _on_shutdown(**kwargs: Any) -> None:
    while _watches:
        _watches.pop().end()


def _on_revoked(sender: Any = None, request: Any = None, **kwargs: Any) -> None:
    guard = getattr(sender, GUARD, None)
    slip = request and Slip.of(headers_of(request), request.id)
    if guard is None or not slip or not slip.ticket:
        return
    backend = locks[guard.options.using]
    _in_background(lambda: release_for(backend, slip.lock, slip.ticket))


def _in_background(work: Callable[[], None]) -> None:
    """Work without holding up the worker's parent, which serves all its children."""

    def run() -> None:
        try:
            work()
        except LockError as error:
            logger.warning("The lock of a revoked task could not be freed: %s", error)

    threading.Thread(target=run, name="django-redis-lock-revoked", daemon=True).start()


worker_ready.connect(_on_ready, weak=False)
worker_shutdown.connect(_on_shutdown, weak=False)
task_revoked.connect(_on_revoked, weak=False)
