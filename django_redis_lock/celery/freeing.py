"""Release, in the background, the locks whose holders can't release them.

"Watching the children" in ``docs/explanation/how-tasks-are-guarded.md`` explains when that is.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

from celery import signals
from celery.exceptions import TimeLimitExceeded

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.celery import private
from django_redis_lock.celery.key_locks import MessageHeader, header_in, is_dead, leave_to_rest
from django_redis_lock.celery.options import GUARD
from django_redis_lock.celery.polling import poll_soon
from django_redis_lock.exceptions import InvalidLockBackend, LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import began_at, current_process, state_of
from django_redis_lock.tasks.conflicts import logger

POLL_EVERY = 0.2  # seconds between checks for dead children
FIRST_CHANCE = 2.0  # seconds that a worker's start waits at most for locks of dead workers
LAST_CHANCE = 5.0  # seconds that a worker's shutdown waits at most for locks of killed children
RETRY_EVERY = 0.5  # seconds between attempts while a server does not answer
MOST = 10_000  # how many locks of one alias can be pending; more end with their leases

Work = Callable[[BaseLockBackend], None]
Killed = Mapping[int, float]  # by process id: since when (monotonic) its last task ran


def free(using: str, name: str, token_id: str) -> None:
    """Release a lock as soon as the server is available, if this holder still has it."""
    _later(using, partial(_release, name=name, token_id=token_id))


def free_dead(aliases: Iterable[str], killed: Killed) -> list[threading.Event]:
    """Release the locks of this host's dead tasks, and what ``killed`` children had locked.

    The events are set after the first attempt.
    """
    return [_later(using, partial(_release_dead, killed=killed)) for using in aliases]


def _later(using: str, work: Work) -> threading.Event:
    attempted = threading.Event()
    with _mutex:
        freer = _freers.get(using)
        if freer is None or not freer.is_alive():
            freer = _freers[using] = _Freer(using)
            freer.start()
    if freer.pending.qsize() < MOST:
        freer.pending.put((work, attempted))
    return attempted


def finish(seconds: float) -> None:
    """Wait up to some seconds for pending work, and drop the rest."""
    until = monotonic() + seconds
    for freer in _freers.values():
        freer.ended.set()
        freer.pending.put(None)
    for freer in _freers.values():
        freer.join(max(0.0, until - monotonic()))
    _freers.clear()


def _release(backend: BaseLockBackend, name: str, token_id: str) -> None:
    reason = "its process or message is gone"
    if (holder := backend.free(name, token_id, reason=reason)) is not None:
        logger.warning("Released lock %r, as its holder is gone: %s", name, holder)
        poll_soon(backend.alias)  # for a parked task may have it now


def _release_dead(backend: BaseLockBackend, killed: Killed) -> None:
    for holder in list(backend.holders()):
        if (is_dead(holder) or _was_cut_off(holder, killed)) and not leave_to_rest(backend, holder):
            _release(backend, holder.name, holder.token_id)


def _was_cut_off(holder: Holder, killed: Killed) -> bool:
    """Whether a lock was held by the task in which a child was killed, and by no earlier one."""
    since, here = killed.get(holder.pid or 0), current_process()
    if since is None or holder.held_for is None or holder.marks.get("state"):
        return False
    ours = (holder.host, holder.pid_space) == (here.host, here.pid_space)
    in_task = holder.auto_renew or holder.held_for <= monotonic() - since
    return ours and in_task and not state_of(holder.pid, holder.pid_began)


class _Freer(threading.Thread):
    """Does the pending work for one alias, in order."""

    def __init__(self, using: str) -> None:
        super().__init__(name=f"django-redis-lock-free-{using}", daemon=True)
        self._using = using
        self.pending: queue.Queue[tuple[Work, threading.Event] | None] = queue.Queue()
        self.ended = threading.Event()  # allows one further attempt

    def run(self) -> None:
        warned = False
        item = self.pending.get()
        while item is not None:
            work, attempted = item
            try:
                work(locks[self._using])
                warned = False
            except LockUnavailable as error:
                if not warned:
                    text = "Could not release locks of LOCKS[%r]; retrying: %s"
                    logger.warning(text, self._using, error)
                warned = True
                attempted.set()
                if self.ended.is_set():
                    return
                self.ended.wait(RETRY_EVERY)
                continue
            except Exception as error:  # also of names from another program's message
                logger.warning("Could not release a lock of LOCKS[%r]: %s", self._using, error)
            attempted.set()
            item = self.pending.get()


_mutex = threading.Lock()
_freers: dict[str, _Freer] = {}


class ChildWatch(threading.Thread):
    """Releases the locks of a worker's children as soon as they are dead, in other threads."""

    def __init__(self, pool: Any, aliases: Collection[str]) -> None:
        super().__init__(name="django-redis-lock-children", daemon=True)
        self._pool = pool
        self._aliases = aliases
        self._alive: dict[tuple[int, int], Any] = {}
        self._seen = monotonic()
        self._gone: dict[int, tuple[Any, float]] = {}  # until the pool has removed them
        self._jobs: dict[int, Any] = {}
        self._killed: Killed = {}
        self._died = False
        self._ended = threading.Event()

    def run(self) -> None:
        failure = ""
        while not self._ended.wait(POLL_EVERY):
            try:
                self.poll()
            except Exception as error:
                if repr(error) != failure:
                    logger.exception("Could not check the worker's children; retrying")
                failure = repr(error)

    def poll(self) -> None:
        """Release the locks of dead children if one died since the last poll, or the one before."""
        self._jobs |= private.jobs_of(self._pool)
        self._free(private.children_of(self._pool))

    def _free(self, children: Mapping[int, Any]) -> None:
        alive = {(pid, began_at(pid)): child for pid, child in children.items() if state_of(pid)}
        gone = {pid: child for (pid, at), child in self._alive.items() if (pid, at) not in alive}
        self._gone |= {pid: (child, self._seen) for pid, child in gone.items()}
        killed = {}
        for pid in self._gone.keys() - children.keys():
            if since := private.cut_off_since(*self._gone.pop(pid), self._jobs.get(pid)):
                killed[pid] = since
        born = len(alive) + len(gone) - len(self._alive)  # also who died unseen had a successor
        died = born > len(gone) or bool(killed) or not all(map(private.was_recycled, gone.values()))
        if died or self._died:
            free_dead(self._aliases, {**self._killed, **killed})
        self._alive, self._seen, self._died, self._killed = alive, monotonic(), died, killed
        self._jobs = {pid: job for pid, job in self._jobs.items() if pid in children}

    def end(self) -> None:
        self._ended.set()
        self.join()
        self._died = True
        self._free({})


_watches: list[ChildWatch] = []


@signals.worker_ready.connect(weak=False)
def _on_ready(sender: Any, **kwargs: Any) -> None:
    tasks = sender.app.tasks.values()
    aliases = {getattr(task, GUARD).options.using for task in tasks if hasattr(task, GUARD)}
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
        for attempted in free_dead(opened, {}):
            attempted.wait(until - monotonic())
        from celery.concurrency.prefork import TaskPool  # clients don't need it

        if isinstance(sender.pool, TaskPool):
            watch = ChildWatch(sender.pool, aliases)
            watch.start()
            _watches.append(watch)
    except Exception as error:
        text = "Could not watch the children; locks of killed ones end with their leases: %s"
        logger.warning(text, error)


@signals.worker_shutdown.connect(weak=False)
def _on_shutdown(**kwargs: Any) -> None:
    while _watches:
        _watches.pop().end()
    finish(LAST_CHANCE)


def _free_reservation(header: MessageHeader) -> None:
    for lock, ticket, using in header.tickets:
        if using in locks.settings:
            free(using, lock, ticket)
        else:
            text = "Dropped message %s, but could not release its lock %r: LOCKS has no alias %r"
            logger.info(text, header.task_id, lock, using)


@signals.task_revoked.connect(weak=False)
def _on_revoked(request: Any, **kwargs: Any) -> None:
    _free_reservation(header_in(request))


@signals.task_unknown.connect(weak=False)
@signals.task_rejected.connect(weak=False)
def _on_dropped(message: Any, **kwargs: Any) -> None:
    headers = message.headers if isinstance(message.headers, Mapping) else {}
    task_id = headers.get("id") or message.properties.get("correlation_id")
    _free_reservation(MessageHeader.of(headers, task_id))


_received: WeakValueDictionary[str, Any] = WeakValueDictionary()


@signals.task_received.connect(weak=False)
def _on_received(request: Any, **kwargs: Any) -> None:
    if MessageHeader.of(request.request_dict, request.id).tickets:
        _received[request.id] = request


@signals.task_failure.connect(weak=False)
def _on_failure(sender: Any, task_id: str, exception: Any, **kwargs: Any) -> None:
    """Give up the reservation of a message whose child died before it came to a run."""
    timed_out = isinstance(exception, TimeLimitExceeded) and sender.acks_late
    requeued = timed_out and not getattr(sender, "acks_on_timeout", True)  # from Celery 5.7 on
    request = _received.get(task_id)
    if request is not None and not requeued and not private.in_worker():
        _free_reservation(MessageHeader.of(request.request_dict, request.id))
