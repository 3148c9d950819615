"""What a task's message says about its lock, and the time it is due."""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self
from uuid import UUID

from celery import states
from celery.utils.time import maybe_make_aware
from django.conf import settings
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_redis_lock.celery.private import delays_by_whole_seconds, execution_options
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.protocol.records import Holder

HEADER = "single_instance_task"


@dataclass(frozen=True)
class Slip:
    """The header that travels with a message from sender to worker, and through retries."""

    task_id: str
    """The task that the slip belongs to; it is void in another task's message."""
    lock: str = ""
    """The lock taken when the task was sent."""
    ticket: str = ""
    """The ``token_id`` by which the run takes that lock over."""
    good_until: int = 0
    """When that lock's lease ends, by the server's clock in microseconds, like a fence."""
    attempts: int = 0
    """How often the task went back to the queue because another instance was running."""
    duplicate_of: dict[str, Any] | None = None
    """Who held the lock when the task was sent, if it was sent only to report that."""
    using: str = ""
    """The alias of LOCKS that has the lock."""
    follows: int = 0
    """The fence of the run that sent this message in its own place: a retry or replacement."""
    sent: float = 0.0
    """When a task with an id of the caller's was sent, in seconds since the epoch by the sender's
    clock; 0 if unknown. Retries and replacements keep it, so it also tells two such tasks apart."""
    wait_until: int = 0
    """When a task that waits gives up, like ``good_until``; 0 if it has not gone back yet."""
    redelivered: bool = False
    """Whether another delivery of the message had begun when it was sent again."""

    def header(self) -> dict[str, Any]:
        return {HEADER: asdict(self)}

    def naming(self, lock: Lock, lease: float) -> Self:
        """Return the slip for a lock that was taken just now, with a lease in seconds."""
        return replace(
            self,
            lock=lock.name,
            ticket=lock.token_id,
            good_until=lock.fence + round(lease * 1_000_000),
            using=lock.backend.alias,
        )

    @classmethod
    def of(cls, headers: Mapping[str, Any] | None, task_id: str | None) -> Self | None:
        """Return the slip in a message's headers, if it belongs to the task."""
        found = (headers or {}).get(HEADER)
        if not isinstance(found, Mapping) or found.get("task_id") != task_id or task_id is None:
            return None
        known = cls.__dataclass_fields__
        return cls(**{key: value for key, value in found.items() if key in known})


NO_SLIP = Slip("")


def slip_in(request: Any) -> Slip | None:
    """Return the slip of the message that a request was made of; eager ones have it elsewhere."""
    attributes = vars(request)
    return Slip.of(attributes if HEADER in attributes else request.headers, request.id)


def clock_at(holder: Holder, seconds: float = 0.0) -> int:
    """Return the server's clock when a holder was read, in microseconds, and some seconds on."""
    return (holder.fence or 0) + round(((holder.held_for or 0.0) + seconds) * 1_000_000)


def sent_mark(sent: float) -> dict[str, str]:
    """Return the part of a holder's metadata that tells tasks of one id apart."""
    return {"sent": repr(sent)} if sent else {}


def sent_of(holder: Holder) -> float:
    """Return what ``sent_mark`` has put into a holder's metadata; 0 for nothing."""
    return float(holder.metadata.get("sent", 0))


def is_made_up(task_id: str) -> bool:
    """Whether an id looks like those that Celery makes, which no other task has."""
    try:
        return UUID(task_id).version == 4
    except ValueError:
        return False


def stored_state(task: Any, task_id: str | None, sent: float = 0.0) -> str | None:
    """Return the state stored for a task that was sent at ``sent``, ``PENDING`` if there is none.

    An earlier task may have had the id. The end of that one does not count, nor does any end whose
    task is in doubt. ``None`` if the state can't be known: results are ignored, or their backend
    does not answer.
    """
    if task.ignore_result or task_id is None:
        return None
    try:
        result = task.AsyncResult(task_id)
        state, ended = str(result.state), _seconds_of(result.date_done)
    except Exception:  # of any result backend
        return None
    if state not in states.READY_STATES or (not sent and is_made_up(task_id)):
        return state
    return state if 0 < sent <= ended else states.PENDING


def forget_earlier(task: Any, task_id: str | None, sent: float) -> None:
    """Remove the success of an earlier task with the id of one that was sent at ``sent``.

    Some backends keep the first success of an id. And Celery takes any for that of a run whose
    child was killed, and does not run it again.
    """
    if not sent or task.ignore_result:
        return
    with contextlib.suppress(Exception):  # of any result backend
        result = task.AsyncResult(task_id)
        if result.state == states.SUCCESS and 0 < _seconds_of(result.date_done) < sent:
            result.forget()


def _seconds_of(ended: Any) -> float:
    """Return when a task ended, in seconds since the epoch; 0 if unknown, and rather too early."""
    if not isinstance(ended, datetime.datetime):
        return 0.0
    if timezone.is_aware(ended):
        return ended.timestamp()
    # Celery means UTC; without USE_TZ, Django's models give local times.
    zones = {datetime.UTC, datetime.UTC if settings.USE_TZ else timezone.get_default_timezone()}
    return min(timezone.make_aware(ended, zone).timestamp() for zone in zones)


# When a message is due.


def seconds_until_due(options: Mapping[str, Any]) -> float:
    """Return how long a message waits at least, by its ``countdown`` or ``eta``."""
    countdown = options.get("countdown")
    return _seconds_until(options.get("eta") if countdown is None else countdown) or 0.0


def due_as_broker_can(task: Any, args: Any, kwargs: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``apply_async`` with a delay that the broker can express.

    It is rounded up, so no message comes early.
    """
    seconds = seconds_until_due(message)
    options = {**execution_options(task), **message}
    if not seconds % 1 or not delays_by_whole_seconds(task, args, kwargs, options):
        return message
    return {**message, "countdown": math.ceil(seconds), "eta": None}


def seconds_until_expiry(options: Mapping[str, Any]) -> float | None:
    """Return how long a worker would still run a message; ``None`` for without limit."""
    return _seconds_until(options.get("expires"))


def _seconds_until(moment: Any) -> float | None:
    """Return how far off a time is, which may be given in seconds; ``None`` if there is none."""
    if isinstance(moment, str):
        moment = parse_datetime(moment)
    if isinstance(moment, datetime.datetime):
        moment = (maybe_make_aware(moment) - timezone.now()).total_seconds()
    return max(0.0, float(moment)) if isinstance(moment, int | float) else None
