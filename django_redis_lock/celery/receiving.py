"""Parks messages where a worker receives them: in its main process, so that no child has to."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import Counter, defaultdict, deque
from dataclasses import replace
from typing import Any

from celery.concurrency.prefork import TaskPool
from celery.worker.state import task_ready
from celery.worker.strategy import default
from django.db import connections

from django_redis_lock.celery import key_locks, outbox
from django_redis_lock.celery.options import GUARD
from django_redis_lock.celery.polling import parks
from django_redis_lock.celery.run import Run
from django_redis_lock.exceptions import InvalidLockBackend, LockError, LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.tasks.conflicts import logger

AT_ONCE = 50  # how many messages are parked before the first of them is acknowledged, at most


def strategy(task: Any, app: Any, consumer: Any) -> Any:
    """Return what handles a guarded task's messages; Celery's own gives them to the pool."""
    to_pool = consumer.on_task_request
    if consumer.hub and isinstance(consumer.pool, TaskPool) and parks(task):
        parker = vars(consumer).get("lock_parker") or _Parker(consumer)
        consumer.lock_parker, consumer.on_task_request = parker, parker.receive
        if parker.event.fileno() not in consumer.hub.readers:  # a loop forgets lost connections
            consumer.hub.add_reader(parker.event, parker.finish)
    try:
        return default(task, app, consumer)
    finally:
        consumer.on_task_request = to_pool


def _is_new(request: Any) -> bool:
    """Whether a message may be parked, and was not received or parked before."""
    headers, scope = request.request_dict, getattr(request.task, GUARD).options.scope
    again = request.delivery_info.get("redelivered") or headers.get("retries")
    if again or request.eta or request.expires or not request.content_type:
        return False
    first = key_locks.MessageHeader.of(headers, request.id) is key_locks.NO_HEADER
    is_unique = first and key_locks.is_generated_id(request.id)
    return is_unique and scope != "queue" and parks(request.task)


def _run_of(request: Any) -> Run | None:
    """Return the run of a message; ``None`` if a function of it raises, as it does in a child."""
    context, arguments = request._context, (tuple(request.args), dict(request.kwargs))
    context.called_directly = False  # as in children
    try:
        return Run(getattr(request.task, GUARD), request.task, arguments, context)
    except BaseException:  # SystemExit, too: it must not end this thread
        return None


class _Parker(threading.Thread):
    """Parks the messages of a consumer, whose event loop acknowledges them."""

    def __init__(self, consumer: Any) -> None:
        super().__init__(name="django-redis-lock-park", daemon=True)
        self._consumer, self._to_pool = consumer, consumer.on_task_request
        self._came: queue.SimpleQueue[Any] = queue.SimpleQueue()  # requests and connections
        self._done: deque[Any] = deque()  # the same, and whether it is parked, and else its header
        self.event, self._rope = socket.socketpair()
        consumer.hub.on_close.add(self.finish)
        self.start()

    def receive(self, request: Any) -> None:
        if _is_new(request):
            self._came.put((request, self._consumer.connection))
        else:
            self._to_pool(request)

    def run(self) -> None:
        while not key_locks.stops[0]:
            batch = deque([self._came.get()])
            while len(batch) < AT_ONCE and not self._came.empty():
                batch.append(self._came.get())
            try:
                with contextlib.suppress(LockUnavailable, InvalidLockBackend):  # as children raise
                    self._park(batch)
            except Exception:
                logger.exception("Could not park messages here; passed them to the children")
            self._done.extend((*one, False, None) for one in batch)
            connections.close_all()  # which functions that make keys may have opened
            self._rope.send(b"!")

    def _park(self, batch: deque[Any]) -> None:
        """Park messages in their order, and take those that are done from the batch."""
        runs = [_run_of(request) for request, _ in batch]
        names = {(run.options.using, run.name) for run in runs if run is not None}
        self._known, self._why = defaultdict[Any, list[Any]](list), dict[Any, str]()
        self._parked = Counter[Any]()
        for using in {using for using, _ in names}:
            for holder in locks[using].holders_of(name for of, name in names if of == using):
                self._known[using, holder.name].append(holder)
        for run in runs:
            one, parked = batch.popleft(), False
            try:
                parked = run is not None and not key_locks.stops[0] and self._parks(run, one[0])
            finally:
                self._done.append((*one, parked, run and run.reservation))

    def _parks(self, run: Run, request: Any) -> bool:
        """Park the message of a run. Returns False if a child goes on with ``run.reservation``."""
        lock, limit = (run.options.using, run.name), run.sharing.limit
        found, marks = self._known[lock], {"state": key_locks.QUEUED, key_locks.RECEIVED: "yes"}
        reserved = run.handle(run.name, run.options.queue_timeout, **marks)
        reserved.sharing, header = run.sharing, run.header_to_send().naming(reserved)
        has_room = len(found) < (1 if limit is None else limit) and not self._parked[lock]
        if run.among(found):
            return False
        if has_room and reserved.acquire(blocking=False):
            run.reservation = header
            return False
        holder = min(found, key=key_locks.is_for_message, default=None)
        if holder is not None:
            run.why = self._why.get((lock, limit))
            run.why = self._why[lock, limit] = run.conflict(holder).why
            holder = replace(holder, waiters=(holder.waiters or 0) + self._parked[lock])
        body = request.body, request.content_type, request.content_encoding
        parked = outbox.park(run, holder, body)
        self._parked[lock] += parked
        if run.reservation is not None:  # it would have the same ticket if it had been parked
            with contextlib.suppress(LockError):
                if reserved.take_over(run.reservation.ticket):
                    run.reservation = header
        return parked

    def finish(self, closing: Any = None) -> None:
        """Acknowledge what is parked, and give the rest to children unless the loop is closing."""
        with contextlib.suppress(BlockingIOError):
            self.event.recv(4096, socket.MSG_DONTWAIT)
        while self._done:
            request, connection, parked, header = self._done.popleft()
            if parked:
                task_ready(request)
                request.acknowledge()
            elif not closing and connection is self._consumer.connection:  # or it is redelivered
                for headers in (request.request_dict, request._context) if header else ():
                    headers.update(header.as_headers())
                self._to_pool(request)
