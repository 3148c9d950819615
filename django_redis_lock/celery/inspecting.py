"""``celery inspect guarded_tasks``: which locks a worker's tasks hold or wait for, behind whom.

The worker keeps no books for it. What it has in hand Celery knows; the key is made again of a
task's arguments; who has the lock the server knows. Keys are the project's own code and a server
may be silent, so both are left to a thread, and the worker's main loop waits a moment only.
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

from django_redis_lock.celery.family import FAMILY, lives
from django_redis_lock.celery.guard import GUARD, Guard
from django_redis_lock.celery.message import Slip
from django_redis_lock.celery.options import QUEUE, Options
from django_redis_lock.celery.places import QUEUED, Places
from django_redis_lock.celery.private import rate_limited_requests, timed_requests
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.protocol.records import Holder

PATIENCE = 0.5
"""Seconds for which the worker's main loop waits for keys and holders; Celery's own commands are
given up by who asks after one."""
LIMIT = 500
"""How many tasks are looked at."""
NOT_KNOWN = "not known"

ACTIVE, RESERVED, SCHEDULED = "active", "reserved", "scheduled"


@inspect_command(  # type: ignore[untyped-decorator]
    signature="[LOCK]", args=[("lock", str)]
)
def guarded_tasks(state: Any, lock: str | None = None, **kwargs: Any) -> dict[str, Any]:
    """List guarded tasks in hand: their locks, and who has these."""
    every = [
        _Line(stage, request, guard)
        for stage, request in _in_hand(state)
        if (guard := getattr(request.task, GUARD, None)) is not None
        and (stage == ACTIVE or request.id not in worker_state.revoked)  # kept till it is due
    ]
    lines = every[:LIMIT]
    for thread in _begin(lines):
        thread.join(max(0.0, thread.until - monotonic()))
    told = [line.told() for line in lines if lock is None or lock in line.locks()]
    not_known = sum(line.key is None for line in lines)
    return {"tasks": told, "keys_not_known": not_known, "left_out": len(every) - len(lines)}


@inspect_command(visible=False)  # type: ignore[untyped-decorator]
def messages_in_hand(state: Any, ids: list[str], **kwargs: Any) -> dict[str, Any]:
    """Tell which of some messages the worker has, and the queues it takes messages from."""
    known = {request.id for _, request in _in_hand(state)}
    consumer = state.consumer.task_consumer
    queues = [queue.name for queue in consumer.queues] if consumer else []
    return {"ids": sorted(known.intersection(ids)), "queues": queues}


@inspect_command(visible=False)  # type: ignore[untyped-decorator]
def signs_of_life(
    state: Any, tasks: list[str], processes: dict[str, list[int]], **kwargs: Any
) -> dict[str, Any]:
    """Tell which of some tasks the worker has, and which of its own processes are gone.

    Their numbers come by the family that they belong to. A worker speaks of its own alone.
    """
    known = {request.id for _, request in _in_hand(state)}
    gone = [pid for pid in processes.get(FAMILY, ()) if not lives(pid)]
    return {"family": FAMILY, "tasks": sorted(known.intersection(tasks)), "gone": gone}


def _in_hand(state: Any) -> Iterator[tuple[str, Request]]:
    """Yield each request that the worker has, with how far it has come."""
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
    """One guarded request, and what is found out about it."""

    stage: str
    request: Any
    guard: Guard
    key: str | None = None
    names: list[str] = field(default_factory=list)
    """The locks of which it needs one to run."""
    holders: dict[str, Holder | None] | None = None
    """Who has them, and the place; ``None`` while that is not known."""

    @cached_property
    def slip(self) -> Slip | None:
        """What its message says of its lock."""
        return Slip.of(self.request.request_dict, self.request.id)

    @cached_property
    def options(self) -> Options:
        """The options of this very call; of the task, where those can't be made any more."""
        try:
            return self.guard.options_for(self.slip.options if self.slip else None)
        except (TypeError, ValueError, ImproperlyConfigured):
            return self.guard.options

    def find_key(self) -> None:
        """Make the key of the arguments. Raises whatever the project's code does."""
        request, overrides = self.request, self.slip.options if self.slip else None
        args, kwargs = tuple(request.args or ()), dict(request.kwargs or {})
        key = self.guard.key(request.task, args, kwargs, overrides)
        self.names = Places(self.options, key, request.task, request.id).names
        self.key = key

    def asked_of(self) -> set[str]:
        """Return the locks whose holders say how it stands."""
        return {*self.names, *([self.slip.lock] if self.slip and self.slip.ticket else ())}

    def locks(self) -> set[str]:
        """Return the names by which one may ask for it; none as long as its key is not known."""
        if self.key is None:
            return set()
        place = f"{self.key}:{QUEUED}" if self.options.scope == QUEUE else self.key
        return {self.key, place, *self.asked_of()}

    def told(self) -> dict[str, Any]:
        """Return how it stands, as plain values."""
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
        """Return who has the lock, ``None`` where nobody else keeps this one from running."""
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
        """Return whether the message has the place that was taken when it was sent."""
        slip = self.slip
        if slip is None or not slip.ticket or self.stage == ACTIVE:
            return None
        if self.holders is None:
            return NOT_KNOWN
        holder = self.holders.get(slip.lock)
        return "held" if holder is not None and holder.token_id == slip.ticket else "lost"


class _Survey(threading.Thread):
    """Finds out about the tasks whose locks one alias of LOCKS has."""

    def __init__(self, using: str, lines: list[_Line]) -> None:
        super().__init__(name=f"django-redis-lock-inspect-{using}", daemon=True)
        self.until = monotonic() + PATIENCE
        self._using = using
        self._lines = lines

    def run(self) -> None:
        """Make the keys, then ask for each lock once."""
        try:
            for line in self._lines:
                if monotonic() < self.until:
                    self._find_key(line)
        finally:
            connections.close_all()  # which a key may have opened, for this thread alone
        names = sorted(set().union(*(line.asked_of() for line in self._lines)))
        try:
            backend = locks[self._using]
            holders = {name: backend.holder(name) for name in names if monotonic() < self.until}
        except (LockError, InvalidLockBackend, ValueError):
            return
        for line in self._lines:
            if line.key and line.asked_of() <= set(holders):
                line.holders = holders

    def _find_key(self, line: _Line) -> None:
        try:
            line.find_key()
        except Exception:
            line.key = None  # it fails in the task as well, which tells more of it


_surveys: dict[str, _Survey] = {}


def _begin(lines: list[_Line]) -> list[_Survey]:
    """Begin to find out, with a thread for each alias; one that hangs gets no second."""
    begun = []
    for using in {line.options.using for line in lines}:
        earlier = _surveys.get(using)
        if earlier is None or not earlier.is_alive():
            own = [line for line in lines if line.options.using == using]
            survey = _surveys[using] = _Survey(using, own)
            survey.start()
            begun.append(survey)
    return begun
