"""``locks unpark``: send parked tasks back to Celery's broker, without a place."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.management import output
from django_redis_lock.management.output import Backends, Terminal, counted, nothing, usage
from django_redis_lock.support.text import visible, without_passwords

Row = tuple[str, int, int]
"""An alias, how many tasks have left the queue, and how many stay parked."""


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """Send them back by the current Celery app, and tell of those that it may not send."""
    try:
        from celery.app import app_or_default

        from django_redis_lock.celery.parking import publisher_of
    except ModuleNotFoundError as error:
        text = f"No task is parked without Celery, which can't be imported: {error}."
        raise CommandError(text) from error
    publisher = publisher_of(app_or_default())
    name, task_id = options["name"], options["task_id"]
    backends = Backends(options["using"], terminal)
    if backends.all and not any(one.runs_scripts for one in backends.all):
        which = ", ".join(f"LOCKS[{visible(one.alias)!r}]" for one in backends.all)
        raise usage(f"No task can be parked with {which}: that takes RedisLockBackend.")

    def unpark(backend: BaseLockBackend) -> list[Row]:
        if not backend.runs_scripts:
            return []
        gone = publisher.unpark(backend, name, task_id)
        left = [one for one in backend.waiting(name) if one.parked]
        left = [one for one in left if task_id in (None, one.task_id)]
        return [(backend.alias, gone, len(left))] if gone or left else []

    found = list(backends.each(unpark))
    unparked = sum(row[1] for row in found)
    unreachable = without_passwords(publisher.unreachable) if unparked else ""
    _say(name, found, backends, sent=not unreachable)
    if unreachable:
        raise CommandError(
            f"{counted(unparked, 'parked task')} of {visible(name)!r} left the queue, but the "
            f"broker can't be reached: {visible(unreachable)}. A worker sends what was not sent as "
            f"soon as it can.",
            returncode=output.NOT_KNOWN,
        )
    backends.finish()
    if not unparked:
        which = "No task" if task_id is None else f"No task {visible(task_id)}"
        here = " of this broker" if found else ""
        hint = output.hint_at_pattern(name, "locks list")
        raise nothing(f"{which}{here} is parked for {visible(name)!r}.{hint}")


def _say(name: str, found: list[Row], backends: Backends, *, sent: bool) -> None:
    terminal = backends.terminal
    if terminal.as_json:
        keys = ("using", "unparked", "parked")
        facts = ({"name": name, **dict(zip(keys, row, strict=True))} for row in found)
        terminal.json_object("locks", facts, backends.not_known)
    for using, gone, left in found:
        where = f"{visible(name)} (backend {visible(using)})" if backends.many else visible(name)
        if gone and sent and not terminal.as_json:
            text = f"{where}: {counted(gone, 'parked task')} sent back to the broker"
            terminal.say(terminal.style.SUCCESS(text))
        if left:
            terminal.notice(
                f"{where}: {counted(left, 'parked task')} of another broker not touched"
            )
