"""Checks of guarded tasks against the limits that Celery and the broker set.

``django_redis_lock.checks`` runs them, and a worker for its own tasks when it is ready.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from celery.signals import worker_ready
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from django_redis_lock.celery.guard import guard_for
from django_redis_lock.celery.options import GUARD, SETTING, Options, project_defaults
from django_redis_lock.celery.outbox import sealed
from django_redis_lock.celery.private import active_apps
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import locks
from django_redis_lock.tasks.conflicts import logger

VISIBILITY_TIMEOUTS = {"redis": 3600.0, "rediss": 3600.0, "sentinel": 3600.0, "sqs": 1800.0}
"""The defaults, in seconds, after which a transport delivers an unacknowledged message again."""
RENEW = "Omit timeout, so the lease is renewed"


def check_tasks() -> list[checks.CheckMessage]:
    """Return errors in ``SINGLE_INSTANCE_TASK`` and risks of the guarded tasks of all apps."""
    try:
        using = project_defaults().get("using")
    except ImproperlyConfigured as error:  # every task would repeat it
        return [_found("E008", str(error))]
    with contextlib.suppress(InvalidLockBackend):  # reported by the checks of LOCKS
        if using is not None and using not in list(locks):
            return [_found("E008", f"{SETTING}: using={using!r} is not an alias of LOCKS.")]
    apps = sorted(active_apps(), key=lambda app: str(app.main))
    return list({str(found): found for app in apps for found in _check_app(app)}.values())


def _found(number: str, text: str, hint: str | None = None) -> checks.CheckMessage:
    level = checks.ERROR if number.startswith("E") else checks.WARNING
    return checks.CheckMessage(level, text, hint=hint, id=f"django_redis_lock.{number}")


def _check_app(app: Any) -> Iterator[checks.CheckMessage]:
    for name, task in sorted(app.tasks.items()):
        if (guard := getattr(task, GUARD, None)) is not None:
            try:
                options = guard.options
            except (TypeError, ValueError) as error:
                text = f"Task {name} conflicts with {SETTING}: {error}"
                yield _found("E008", text, "Set the conflicting options at the task.")
            else:
                yield from _check_task(app, task, options)
        elif guard_for(task.__class__) is not None:
            yield _found(
                "W005",
                f"Task {name} is not guarded when it is sent until it has run once in the process: "
                f"its base class was bound to an app before single_instance_task decorated it.",
                "Put @single_instance_task above Celery's decorator.",
            )


def _check_alias(task: Any, options: Options) -> Iterator[checks.CheckMessage]:
    what, instead = f"Task {task.name}", "or set using to an alias with RedisLockBackend."
    with contextlib.suppress(InvalidLockBackend):  # reported by the checks of LOCKS
        if options.using not in locks.settings:
            text = f"{what} has using={options.using!r}, which is not an alias of LOCKS."
            yield _found("E013", text, "Correct using=, or add that alias to LOCKS.")
        backend = locks[options.using]
        but = f"but LOCKS[{options.using!r}] is a {type(backend).__name__}"
        if options.concurrency != 1 and not backend.can_share:
            text = f"{what} has a concurrency, {but}, which does not support limits."
            yield _found("E010", text, f"Omit concurrency, {instead}")
        if not backend.can_pass:
            text = f"{what} is guarded, {but}, whose locks don't identify their holders."
            yield _found("E010", text, "Set using to an alias with another backend.")
        if options.run_policy == "park" and not backend.runs_scripts:
            text = f"{what} has on_conflict='park', {but}, which can't park tasks."
            yield _found("E012", text, f"Choose another policy, {instead}")


def _check_task(app: Any, task: Any, options: Options) -> Iterator[checks.CheckMessage]:
    yield from _check_alias(task, options)
    try:
        sealed({})
    except ImproperlyConfigured as error:
        if options.run_policy == "park":
            text = f"Task {task.name} has on_conflict='park', but no message can be signed: {error}"
            hint = "Set SECRET_KEY to the same value in all processes of the project."
            yield _found("E014", text, hint)
    lease = options.timeout if isinstance(options.timeout, int | float) else None
    limit = float(task.time_limit or app.conf.task_time_limit or 0)
    if lease is not None and limit and limit > lease:
        text = (
            f"Task {task.name} may run for {limit:g} s (its time limit), but its lock has a fixed "
            f"lease of {lease:g} s, after which another instance can start."
        )
        yield _found("W002", text, f"{RENEW}, or make it longer.")
    if not task.acks_late:
        return
    if lease is not None:
        text = (
            f"Task {task.name} has acks_late and a lock with a fixed lease of {lease:g} s, which "
            f"is not renewed: another instance can start during a longer run, and after a crash "
            f"the next delivery waits until the lease ends."
        )
        yield _found("W003", text, f"{RENEW}.")
    scheme = str(app.conf.broker_url or "").partition(":")[0].partition("+")[0]
    transport = app.conf.broker_transport_options or {}
    default = VISIBILITY_TIMEOUTS.get(scheme)  # others never deliver a message again
    visibility = default and float(transport.get("visibility_timeout", default))
    longest = max(lease or 0.0, limit or 0.0)
    if visibility is not None and longest > visibility:
        text = (
            f"Task {task.name} has acks_late and may run or hold its lock for {longest:g} s, but "
            f"the broker redelivers its message after {visibility:g} s "
            f"(visibility_timeout), and that delivery has to wait for the first."
        )
        setting = f"broker_transport_options = {{'visibility_timeout': {longest:g}}}"
        yield _found("W004", text, f"Set {setting} or more, or a shorter time limit.")


@worker_ready.connect(weak=False)
def _on_ready(sender: Any, **kwargs: Any) -> None:
    for message in _check_app(sender.app):
        logger.warning("%s %s (%s)", message.msg, message.hint, message.id)
