"""``celery inspect guarded_tasks``: the guarded tasks that a worker has, and their locks.

The worker keeps no records for it: Celery knows the tasks, their arguments give the keys, and the
server knows the holders. Keys run the project's code, and a server may not answer. So threads do
both, and the worker's main loop waits for them only briefly.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic
from typing import Any

from celery.worker import state as worker_state
from celery.worker.control import inspect_command
from celery.worker.request import Request
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_redis_lock.celery.guard import GUARD, Guard
from django_redis_lock.celery.ledger import FAMILY
from django_redis_lock.celery.message import Slip
from django_redis_lock.celery.options import Options
from django_redis_lock.celery.places import Places
from django_redis_lock.celery.private import rate_limited_requests, timed_requests
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import STOPPED, state_of

TIME_FOR_KEYS = 0.5
"""Seconds for which the worker's main loop waits for keys and holders; Celery's clients give up
after one second."""
LIMIT = 500
"""How many tasks are reported at most."""
NOT_KNOWN = "not known"

ACTIVE, RESERVED, SCHEDULED = "active", "reserved", "scheduled"


@inspect_command(signature="[LOCK]", args=[("lock", str)])
def guarded_tasks(state: Any, lock: str | None = None, **kwargs: Any) -> dict[str, Any]:
    """List guarded tasks in hand: their locks, and the holders of these."""
    every = [
        _Line(stage, request, guard)
        for stage, request in _in_hand(state)
        if (guard := getattr(request.task, GUARD, None)) is not None
        and (stage == ACTIVE or request.id not in worker_state.revoked)  # kept until due
    ]
    lines = every[:LIMIT]
    for thread in _begin(lines):
        thread.join(max(0.0, thread.until - monotonic()))
    told = [line.told() for line in lines if lock is None or lock in line.locks()]
    not_known = sum(line.key is None for line in lines)
    return {"tasks": told, "keys_not_known": not_known, "left_out": len(every) - len(lines)}


@inspect_command(visible=False)
def messages_in_hand(state: Any, ids: list[str], **kwargs: Any) -> dict[str, Any]:
    """Report which of some messages the worker has, and the queues that it consumes."""
    known = {request.id for _, request in _in_hand(state)}
    consumer = state.consumer.task_consumer
    queues = [queue.name for queue in consumer.queues] if consumer else []
    return {"ids": sorted(known.intersection(ids)), "queues": queues}


@inspect_command(visible=False)
def signs_of_life(
    state: Any, tasks: list[str], processes: dict[str, list[int]], **kwargs: Any
) -> dict[str, Any]:
    """Report which of some tasks the worker has, and which of its own processes do not run.

    ``processes`` has process ids by the family that they belong to.
    """
    known = {request.id for _, request in _in_hand(state)}
    states = {pid: state_of(pid) for pid in processes.get(FAMILY, ())}
    return {
        "family": FAMILY,
        "tasks": sorted(known.intersection(tasks)),
        "gone": [pid for pid, state in states.items() if not state],
        "stopped": [pid for pid, state in states.items() if state in STOPPED],
    }


def _in_hand(state: Any) -> Iterator[tuple[str, Request]]:
    active = list(state.tset(worker_state.active_requests))
    reserved = list(state.tset(worker_state.reserved_requests))
    stages = (
        (ACTIVE, active),
        (RESERVED, reserved),
        (SCHEDULED, timed_requests(state.consumer)),
        (RESERVED, rate_limited_requests(state.consumer)),
    )
    seen: set[int] = set()
    for stage, requests in stages:
        for request in requests:
            if isinstance(request, Request) and id(request) not in seen:
                seen.add(id(request))
                yield stage, request


@dataclass
class _Line:
    stage: str
    request: Any
    guard: Guard
    key: str | None = None
    names: list[str] = field(default_factory=list)
    """The locks of which it needs one to run."""
    waiting: str = ""
    """The lock of its place in the queue, if its scope has one."""
    holders: dict[str, Holder | None] | None = None
    """The holders of these locks and of its place; ``None`` if unknown."""

    @cached_property
    def slip(self) -> Slip | None:
        return Slip.of(self.request.request_dict, self.request.id)

    @cached_property
    def options(self) -> Options:
        try:
            return self.guard.options_for(self.slip.options if self.slip else None)
        except (TypeError, ValueError, ImproperlyConfigured):
            return self.guard.options

    def find_key(self) -> None:
        request, overrides = self.request, self.slip.options if self.slip else None
        args, kwargs = tuple(request.args or ()), dict(request.kwargs or {})
        key = self.guard.key(request.task, args, kwargs, overrides)
        places = Places(self.options, key, request.task, request.id)
        self.names, self.waiting = places.names, places.waiting
        self.key = key

    def relevant_locks(self) -> set[str]:
        """Return the locks whose holders decide its state."""
        return {*self.names, *([self.slip.lock] if self.slip and self.slip.ticket else ())}

    def locks(self) -> set[str]:
        """Return the names by which it can be found; none while its key is unknown."""
        if self.key is None:
            return set()
        return {self.key, self.waiting, *self.relevant_locks()}

    def told(self) -> dict[str, Any]:
        slip, request = self.slip, self.request
        behind = self._behind()
        attempts = slip.attempts if slip else 0
        return {
            "task": request.task.name,
            "id": request.id,
            "lock": self.key or NOT_KNOWN,
            "using": self.options.using,
            "state": self._state(behind, attempts),
            "behind": str(behind) if isinstance(behind, Holder) else behind,
            "place": self._place(),
            "eta": request.eta.isoformat() if request.eta else None,
            "attempts": attempts,
        }

    def _own(self, holder: Holder | None) -> bool:
        return holder is not None and holder.task_id == self.request.id

    def _behind(self) -> Holder | str | None:
        """Return the holder that keeps this request from running, ``None`` if there is none."""
        if self.holders is None:
            return NOT_KNOWN
        found = [self.holders.get(name) for name in self.names]
        if None in found or any(map(self._own, found)):
            return None
        return found[0]

    def _state(self, behind: Holder | str | None, attempts: int) -> str:
        if self.stage == SCHEDULED and attempts:
            return "comes again"
        if self.stage != ACTIVE or behind == NOT_KNOWN:
            return self.stage
        if behind is not None:
            return "waits"
        holders = self.holders or {}
        return "runs" if any(self._own(holders.get(name)) for name in self.names) else self.stage

    def _place(self) -> str | None:
        """Return whether the message still has the place that was taken when it was sent."""
        slip = self.slip
        if slip is None or not slip.ticket or self.stage == ACTIVE:
            return None
        if self.holders is None:
            return NOT_KNOWN
        holder = self.holders.get(slip.lock)
        return "held" if holder is not None and holder.token_id == slip.ticket else "lost"


class _Survey(threading.Thread):
    def __init__(self, using: str, lines: list[_Line]) -> None:
        super().__init__(name=f"django-redis-lock-inspect-{using}", daemon=True)
        self.until = monotonic() + TIME_FOR_KEYS
        self._using = using
        self._lines = lines

    def run(self) -> None:
        try:
            for line in self._lines:
                if monotonic() < self.until:
                    self._find_key(line)
        finally:
            connections.close_all()  # a key may have opened one for this thread
        names = sorted(set().union(*(line.relevant_locks() for line in self._lines)))
        try:
            backend = locks[self._using]
            holders = {name: backend.holder(name) for name in names if monotonic() < self.until}
        except (LockError, InvalidLockBackend, ValueError):
            return
        for line in self._lines:
            if line.key and line.relevant_locks() <= set(holders):
                line.holders = holders

    def _find_key(self, line: _Line) -> None:
        try:
            line.find_key()
        except Exception:
            line.key = None  # the task fails with it as well, and reports more


_surveys: dict[str, _Survey] = {}


def _begin(lines: list[_Line]) -> list[_Survey]:
    """Start a thread for each alias, unless an earlier one still hangs."""
    begun = []
    for using in {line.options.using for line in lines}:
        earlier = _surveys.get(using)
        if earlier is None or not earlier.is_alive():
            own = [line for line in lines if line.options.using == using]
            survey = _surveys[using] = _Survey(using, own)
            survey.start()
            begun.append(survey)
    return begun
