"""What a task's message says about its lock, and when the task is due."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_redis_lock.primitives.lock import Lock

HEADER = "single_instance_task"


@dataclass(frozen=True)
class Slip:
    """The header that goes along with a message from sender to worker, and through retries."""

    task_id: str
    """Whose slip it is; a slip copied into another task's message has no meaning there."""
    lock: str = ""
    """The lock taken when the task was sent."""
    ticket: str = ""
    """By which the run takes that lock over: the ``token_id`` of its holder."""
    good_until: int = 0
    """When that lock's lease ends, by the server's clock in microseconds, as a fence is."""
    attempts: int = 0
    """How often the task went back to the queue because another instance was running."""
    duplicate_of: dict[str, Any] | None = None
    """Who held the lock when the task was sent, where it was sent only to say so."""
    using: str = ""
    """The alias of LOCKS that has the lock."""
    follows: int = 0
    """The fence of the run that sent this message in its own place, by a retry or replacement."""
    options: dict[str, Any] | None = None
    """The options that were given for this call alone."""

    def header(self) -> dict[str, Any]:
        """Return what to merge into the message's headers."""
        return {HEADER: asdict(self)}

    def naming(self, lock: Lock, lease: float) -> Self:
        """Return the slip with the name of a lock taken just now, with a lease in seconds."""
        return replace(
            self,
            lock=lock.name,
            ticket=lock.token_id,
            good_until=lock.fence + round(lease * 1_000_000),
            using=lock.backend.alias,
        )

    @classmethod
    def of(cls, headers: Mapping[str, Any] | None, task_id: str | None) -> Self | None:
        """Return the slip in a message's headers, if it is the task's own."""
        found = (headers or {}).get(HEADER)
        if not isinstance(found, Mapping) or found.get("task_id") != task_id or task_id is None:
            return None
        known = cls.__dataclass_fields__
        return cls(**{key: value for key, value in found.items() if key in known})


def headers_of(request: Any) -> Mapping[str, Any]:
    """Return the custom headers of a task's request."""
    return {**(request.headers or {}), **request.__dict__}


def seconds_until_due(options: Mapping[str, Any]) -> float:
    """Return how long a message waits at least, by its ``countdown`` or ``eta``."""
    countdown, eta = options.get("countdown"), _moment(options.get("eta"))
    if countdown is not None:
        return max(0.0, float(countdown))
    return 0.0 if eta is None else max(0.0, (eta - timezone.now()).total_seconds())


def seconds_until_expiry(options: Mapping[str, Any]) -> float | None:
    """Return for how long a worker would still run a message, ``None`` for always."""
    expires = options.get("expires")
    if isinstance(expires, int | float):
        return max(0.0, float(expires))
    moment = _moment(expires)
    return None if moment is None else max(0.0, (moment - timezone.now()).total_seconds())


def _moment(value: Any) -> datetime.datetime | None:
    if isinstance(value, str):
        value = parse_datetime(value)
    if not isinstance(value, datetime.datetime):
        return None
    return value if timezone.is_aware(value) else timezone.make_aware(value, datetime.UTC)
