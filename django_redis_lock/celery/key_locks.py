"""The locks of one key, for runs and for messages, and what a task's message says about them."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import mmap
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from time import monotonic
from typing import Any, Self
from uuid import UUID

from celery import states
from celery.signals import worker_shutting_down
from django.conf import settings
from django.utils import timezone

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.celery.options import Arguments, Options
from django_redis_lock.celery.private import in_worker
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.primitives.lock import DETACHED, Lock
from django_redis_lock.protocol.lease import Lease, Request, token_id
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support import arguments
from django_redis_lock.support.arguments import EXCLUSIVE, Default, Sharing, check_name
from django_redis_lock.support.process import current_process, state_of
from django_redis_lock.tasks import WorkerStops
from django_redis_lock.tasks.conflicts import Conflict, Described, logger

FAMILY = secrets.token_hex(8)
"""Shared by a worker and the children that it forks: only among these a process id says whether a
process lives, because machines and containers may share a host name."""
HEADER = "single_instance_task"
MARK = "~~"  # separates a key from what the guard adds to it in the name of a lock

# What the mark ``state`` of a lock says:
QUEUED = "queued"  # it is held for a message in a queue
RESTING = "resting"  # it stays locked for some time after a short run
SUPERSEDED = "superseded"  # as a record: a newer message does the work of one still to come
SUPERSEDING = "superseding"  # the same until the newer one was sent, or has begun

# Further marks:
AT_LEAST_FOR = "at_least_for"  # seconds from its start for which a run keeps its lock at least
EXPIRES = "expires"  # when the message of a reservation expires, in seconds of the epoch
RECEIVED = "received"  # a worker has received the delivery; the next one takes over
SINCE = "queued_since"
"""From when on the work of a reservation counts as waiting: by the server's clock in seconds, or,
with a ``+``, that many seconds after the reservation was made."""
UNSENT_LEASE = 30.0  # seconds of lease for a reservation until its message was sent
POLL_EVERY = 0.8  # seconds between checks whether a lock that is waited for is held for a message

stops = mmap.mmap(-1, 1)  # 1 if the worker is to stop; children share it, as they get no signal


def is_for_message(holder: Holder) -> bool:
    """Whether a lock is held for a message, which needs a worker before it can end."""
    return holder.marks.get("state") in (QUEUED, DETACHED)


def is_dead(holder: Holder) -> bool:
    """Whether a task's holder is known to have died: its process, on this host, is gone."""
    family, here = holder.marks.get("worker"), current_process()
    held_by_process = family and not holder.marks.get("state")
    if not held_by_process or holder.host != here.host:
        return False
    ours = family == FAMILY or (here.pid_space and holder.pid_space == here.pid_space)
    return bool(ours) and not state_of(holder.pid, holder.pid_began)


def leave_to_rest(backend: BaseLockBackend, dead: Holder) -> bool:
    """Leave the lock of a dead run for the rest of its ``at_least_for``, if there is any."""
    left = float(dead.marks.get(AT_LEAST_FOR, 0.0)) - (dead.held_for or 0.0)
    if left < 0.001:
        return False
    lock = Lock(lambda: backend, dead.name, left, task_id=dead.task_id, task_name=dead.task_name)
    lock.origin["marks"] = {**dead.marks, "state": RESTING}
    if dead.shared:
        lock.sharing = Sharing(shared=True, limit=dead.limit)
    if lock.take_over(dead.token_id):
        logger.warning("Kept lock %r of dead %s for %.1f s (at_least_for)", dead.name, dead, left)
    return True


class HeldForMessage(Exception):
    """A worker must not wait for this lock: its holder is a message."""


class TaskLock(Lock):
    """A lock held by a task, or for its message."""

    task: Any = None
    until_worker_stops = False  # whether a wait ends with ``WorkerStops`` in one that is to stop
    passed_to_message = False  # its release handed it off to one that is to be published
    token = ""  # with which to take it; random by default
    _read_due = 0.0  # when (monotonic) the holder is due to be read

    def __bool__(self) -> bool:
        return True  # unlike the lock of a task that has none

    def make_request(self, backend: BaseLockBackend) -> Request:
        request = super().make_request(backend)
        request.before_sleep = self.check_wait
        request.token = self.token or request.token
        return request

    def let_go(self, lease: Lease) -> None:
        super().let_go(lease)
        self.passed_to_message = lease.passed_to_message

    def check_wait(self) -> float:
        """Raise where a worker would wait for a message, or is to stop; see ``before_sleep``."""
        if self.until_worker_stops and stops[0]:
            raise WorkerStops
        if monotonic() >= self._read_due and in_worker():
            with contextlib.suppress(LockUnavailable):  # which a waiter tolerates for some time
                holders = list(self.backend.holders_of([self.name]))
                if holders and all(map(is_for_message, holders)):
                    raise HeldForMessage
            self._read_due = monotonic() + POLL_EVERY
        return monotonic() + 0.5  # after which it notices at the latest that the worker stops


@dataclass(frozen=True)
class MessageHeader:
    """What travels with a message; ``docs/reference/celery.md`` describes its fields."""

    task_id: str
    lock: str = ""
    ticket: str = ""
    attempts: int = 0
    duplicate_of: dict[str, Any] | None = None
    using: str = ""
    follows: int = 0
    sent: float = 0.0
    wait_until: int = 0
    redelivered: bool = False
    parked: int = 0
    queued: list[str] | None = None
    supersedes: str = ""

    @property
    def tickets(self) -> list[list[str]]:
        """The locks that are reserved for the message: the name, ticket and alias of each."""
        own = [[self.lock, self.ticket, self.using]] if self.ticket else []
        return [*own, *([self.queued] if self.queued else [])]

    def as_headers(self) -> dict[str, Any]:
        return {HEADER: asdict(self)}

    def naming(self, lock: TaskLock) -> Self:
        """Return the header for a lock that is held, or that is taken once the message was sent."""
        made = lock.token or secrets.token_hex(16)
        lock.token = lock.held_lease().token if lock.is_held_here else made
        ticket = token_id(lock.token.encode())
        return replace(self, lock=lock.name, ticket=ticket, using=lock.backend.alias)

    @classmethod
    def of(cls, headers: Any, task_id: str | None) -> MessageHeader:
        """Return the header of this task in a message's headers; ``NO_HEADER`` without a valid one.

        Fields of a later version are ignored.
        """
        found = headers.get(HEADER) if isinstance(headers, Mapping) else None
        if not isinstance(found, Mapping) or found.get("task_id") != task_id or task_id is None:
            return NO_HEADER
        known = cls.__dataclass_fields__
        header = cls(**{key: value for key, value in found.items() if key in known})
        return header if header._is_well_formed() else NO_HEADER

    def _is_well_formed(self) -> bool:
        queued, holder = self.queued, self.duplicate_of
        texts = self.lock, self.ticket, self.using, self.supersedes
        numbers = self.attempts, self.follows, self.sent, self.wait_until, self.parked
        try:
            return (
                isinstance(self.task_id, str)
                and all(check_name(text) for text in texts if text != "")
                and (self.ticket == "" or self.lock != "")
                and all(type(one) in (int, float) and 0 <= one < 2**63 for one in numbers)
                and isinstance(self.redelivered, bool)
                and (queued is None or (isinstance(queued, list) and len(queued) == 3))
                and all(map(check_name, queued or ()))
                and (holder is None or isinstance(holder, dict))
                and (not holder or holder.keys() >= Described.__required_keys__)
            )
        except (TypeError, ValueError):  # of check_name
            return False


NO_HEADER = MessageHeader("")


def header_in(request: Any) -> MessageHeader:
    """Return the header of the message that a request was made of; eager ones have it elsewhere."""
    attributes = vars(request)
    return MessageHeader.of(attributes if HEADER in attributes else request.headers, request.id)


@dataclass(eq=False)
class GuardedCall:
    """A call of a guarded task, or its sending: the lock of its run, and its reservations."""

    options: Options
    task: Any
    task_id: str | None
    arguments: Arguments = ((), {})
    key: str = ""

    moment = "queue"
    policy = ""  # as in ``Conflict``
    header = NO_HEADER
    why: str | None = None  # there is no permit for a run, if known without asking the server
    sharing = EXCLUSIVE

    @property
    def name(self) -> str:
        """The lock of the run."""
        return _marked(self.key, "run") if MARK in self.key else self.key

    @cached_property
    def reservations(self) -> tuple[str, str]:
        """The locks of this task's waiting message, and of one behind it that is not superseded."""
        name = self.task.name
        return _marked(self.key, f"{QUEUED}:{name}"), _marked(self.key, f"{QUEUED}2:{name}")

    @property
    def backend(self) -> BaseLockBackend:
        backend = locks[self.options.using]
        backend.require(backend.can_pass, f"Task {self.task.name} can't be guarded")
        return backend

    def handle(
        self,
        name: str,
        timeout: float | Default | None,
        using: str = "",
        task_id: str | None = None,
        **marks: str,
    ) -> TaskLock:
        if self.header.sent:
            marks.setdefault("sent", repr(self.header.sent))
        backend = partial(locks.__getitem__, using) if using else lambda: self.backend
        about = {"task_id": task_id or self.task_id, "task_name": self.task.name}
        lock = TaskLock(backend, name, timeout, **about)
        lock.task = self.task
        lock.origin["marks"] = {"worker": FAMILY, **marks}
        return lock

    def holders(self, names: Sequence[str] = ()) -> list[Holder]:
        return list(self.backend.holders_of(names or [self.name]))

    def conflict(self, holder: Holder | None, policy: str = "") -> Conflict:
        """Return a conflict with a holder, which says why there is no permit for a run."""
        why, own = self.why, holder and self.task_id is not None and holder.task_id == self.task_id
        shared = holder is None or (holder.limit is not None and holder.name == self.name)
        if why is None and shared and not own:
            steps = self.backend.operations.why_refused(self.name, self.sharing.limit)
            why = self.backend.run(steps)
        about = self.task, self.task_id, self.key, holder, *self.arguments
        return Conflict(self.moment, *about, policy=policy or self.policy, why=why or "")

    def record_of(self, task_id: str | None, sent: float) -> str:
        """Return the name of the record that a message is superseded."""
        return _marked(self.key, f"{SUPERSEDED}:{task_id}" + (f":{sent!r}" if sent else ""))

    def record(self, name: str, state: str, seconds: float | None = None) -> TaskLock:
        """Return a handle of a record, which lasts as long as any message may come."""
        lease = max(seconds or 0.0, self.options.queue_timeout)
        return self.handle(name, UNSENT_LEASE if state == SUPERSEDING else lease, state=state)

    def share_as(self, holder: Holder | None) -> None:
        """Share the lock if a holder, to take over from, does so since an earlier deploy."""
        if holder and holder.limit is not None and not self.sharing.shared:
            self.sharing = Sharing(shared=True, limit=1)


def queued_since(reserved: Holder) -> float:
    """Return since when the work of a reservation has waited, in seconds of the server's clock."""
    text = reserved.marks.get(SINCE, "+0")
    taken_at = (reserved.fence or 0) / 1_000_000
    return float(text) + (taken_at if text.startswith("+") else 0.0)


def clock_at(holder: Holder, seconds: float = 0.0) -> int:
    """Return the server's clock when a holder was read, in microseconds, and some seconds on."""
    return (holder.fence or 0) + round(((holder.held_for or 0.0) + seconds) * 1_000_000)


def sent_of(holder: Holder) -> float:
    """Return when a holder's task was sent, if its id is the caller's; 0 if unknown."""
    return float(holder.marks.get("sent", 0))


def _marked(key: str, part: str) -> str:
    """Return the name of a lock, different for each key and part, and from every lock of a run."""
    name = f"{check_name(key)}{MARK}{part}"
    if len(name) <= arguments.MAX_NAME_LENGTH and part.isprintable() and MARK not in part:
        return name
    digest = "#" + hashlib.sha256(f"{key}\0{part}".encode()).hexdigest()[:32]
    return key[: arguments.MAX_NAME_LENGTH - len(MARK) - len(digest)] + MARK + digest


def is_generated_id(task_id: str) -> bool:
    """Whether an id looks like those that Celery makes, which no other task has."""
    try:
        return UUID(task_id).version == 4
    except ValueError:
        return False


def stored_state(task: Any, task_id: str | None, sent: float = 0.0) -> str | None:
    """Return the state stored for a task that was sent at ``sent``; ``None`` if it can't be known.

    It is ``PENDING`` if an earlier task with its id has ended.
    """
    if task.ignore_result or task_id is None:
        return None
    try:
        result = task.AsyncResult(task_id)
        state, ended = str(result.state), _seconds_of(result.date_done)
    except Exception:  # of any result backend
        return None
    if state not in states.READY_STATES or (not sent and is_generated_id(task_id)):
        return state
    return state if 0 < sent <= ended else states.PENDING


def has_ended(task: Any, reserved: Holder) -> bool:
    """Whether the task of a reservation has ended, as that of a revoked message."""
    if reserved.marks.get("state") != QUEUED:
        return False
    return stored_state(task, reserved.task_id, sent_of(reserved)) in states.READY_STATES


def forget_earlier(task: Any, task_id: str | None, sent: float) -> None:
    """Remove the success of an earlier task with the id of one that was sent at ``sent``."""
    if not sent or task.ignore_result:
        return
    # Celery would take it for that of a run whose child was killed.
    with contextlib.suppress(Exception):  # of any result backend
        result = task.AsyncResult(task_id)
        if result.state == states.SUCCESS and 0 < _seconds_of(result.date_done) < sent:
            result.forget()


def _seconds_of(ended: Any) -> float:
    """Return when a task ended, in seconds since the epoch; 0 if unknown."""
    if not isinstance(ended, datetime.datetime):
        return 0.0
    if timezone.is_aware(ended):
        return ended.timestamp()
    # Celery means UTC; without USE_TZ, Django's models give local times. The earlier one counts.
    zones = {datetime.UTC, datetime.UTC if settings.USE_TZ else timezone.get_default_timezone()}
    return min(timezone.make_aware(ended, zone).timestamp() for zone in zones)


@worker_shutting_down.connect(weak=False)
def end_waits(*args: Any, **kwargs: Any) -> None:
    stops[0] = 1
