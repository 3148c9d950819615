"""What one call of a task is told: ``apply_async(…, single_instance={…})``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from celery import uuid

from django_redis_lock.celery.message import HEADER, Slip, headers_of
from django_redis_lock.celery.options import merge
from django_redis_lock.support.arguments import Default

ARGUMENT = "single_instance"
Overrides = Mapping[str, Any] | None


def take_overrides(message: dict[str, Any]) -> Overrides:
    """Take what a call is told out of the arguments of ``apply_async``; ``None`` for nothing.

    A message that is sent again has it in its header. Raises ``TypeError``.
    """
    if "once" in message:
        raise TypeError(
            f"once={message['once']!r} is an argument of celery-once, which does not guard this "
            f"task; single_instance={{…}} takes the options of single_instance_task for one call."
        )
    given = message.pop(ARGUMENT, None)
    slip = Slip.of(message.get("headers"), message.get("task_id"))
    before = slip.options if slip else None
    return before if given is None else merge(before or {}, _able_to_travel(given))


def overrides_of(request: Any) -> Overrides:
    """Return what the call was told that a worker, or an eager call, carries out."""
    named = HEADER in request.__dict__ or HEADER in (request.headers or ())
    if request.called_directly or not named:
        return None
    slip = Slip.of(headers_of(request), request.id)
    return slip.options if slip else None


def with_overrides(message: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return a message that tells its run what the call was told."""
    if not overrides:
        return dict(message)
    task_id = message.get("task_id") or uuid()
    headers = message.get("headers") or {}
    slip = replace(Slip.of(headers, task_id) or Slip(task_id), options=dict(overrides))
    return {**message, "task_id": task_id, "headers": {**headers, HEADER: asdict(slip)}}


def _able_to_travel(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{ARGUMENT}={given!r} must be a dict of options of single_instance_task, such as "
            f"{{'on_conflict': 'raise'}}."
        )
    for name, value in given.items():
        for part in value.values() if isinstance(value, Mapping) else (value,):
            if callable(part) or isinstance(part, Default):
                raise TypeError(
                    f"{ARGUMENT}={{{name!r}: {part!r}}} can't go along with a message; "
                    f"give plain values for one call, and a callable where the task is defined."
                )
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value
