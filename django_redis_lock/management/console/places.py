"""Tells which places are held for messages that are gone: their task ended, or they are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from django_redis_lock.exceptions import LockError
from django_redis_lock.handler import locks
from django_redis_lock.operators.liveness import Life, Verdict, is_place
from django_redis_lock.operators.workers import celery_app
from django_redis_lock.protocol.records import Holder

SETTLED = 60.0
"""Seconds after which the message of a place is in the broker, or never will be."""

Notice = Callable[[str], None]


def judge_places(holders: Iterable[Holder], notice: Notice) -> list[tuple[Holder, Verdict]]:
    """Return a verdict on each holder's message. In doubt it is not gone."""
    holders = list(holders)
    places = [one for one in holders if is_place(one) and one.task_id]
    verdicts: dict[str, Verdict] = {}
    app = celery_app()
    if app is None:
        notice("There is no Celery app with a broker, so the state of messages is not known.")
    elif places:
        app.loader.import_default_modules()
        verdicts = _of_results(app, places, notice)
        rest = [one for one in places if one.token_id not in verdicts]
        verdicts |= _of_broker(app, rest, notice)
    nothing = Verdict(Life.UNKNOWN, why="the state of its message is not known")
    other = Verdict(Life.UNKNOWN, why="it is not held for a message in a Celery queue")
    return [
        (one, verdicts.get(one.token_id, nothing) if is_place(one) else other) for one in holders
    ]


def _of_results(app: Any, places: list[Holder], notice: Notice) -> dict[str, Verdict]:
    """Return the verdicts on messages whose task has ended."""
    from celery import states

    found = {}
    for one in places:
        try:
            task = app.tasks.get(one.task_name)
            result = task.AsyncResult(one.task_id) if task else app.AsyncResult(one.task_id)
            state, ended = result.state, result.date_done
        except Exception as error:  # no result backend, or it is unavailable
            notice(f"The results of tasks can't be read: {error}")
            break
        # Ids can be reused: a result older than the place belongs to another message.
        if state in states.READY_STATES and _is_later(ended, one.acquired_at):
            found[one.token_id] = Verdict(Life.DEAD, why=f"its task has ended: {state}")
    return found


def _is_later(ended: Any, taken: datetime | None) -> bool:
    if not isinstance(ended, datetime) or taken is None:
        return False
    return (ended if ended.tzinfo else ended.replace(tzinfo=UTC)) >= taken


def _of_broker(app: Any, places: list[Holder], notice: Notice) -> dict[str, Verdict]:
    """Return the verdicts of the broker and the workers."""
    from django_redis_lock.management.console.broker import (  # which needs Celery
        MessagesNotKnown,
        find_messages,
    )

    young = Verdict(Life.UNKNOWN, why="its message may still be on its way to the queue")
    found = {one.token_id: young for one in places if (one.held_for or 0.0) < SETTLED}
    old = [one for one in places if one.token_id not in found]
    if not old:
        return found
    try:
        present = find_messages(app, {str(one.task_id): str(one.task_name) for one in old})
    except MessagesNotKnown as error:
        notice(f"The state of messages is not known: {error}")
        return found
    missing = [one for one in old if one.task_id not in present]
    waiting = {using: _waiting_tasks(using) for using in {one.using for one in missing}}
    for one in old:
        if one.task_id in present:
            found[one.token_id] = Verdict(Life.ALIVE, why=present[one.task_id])
        elif (tasks := waiting[one.using]) is None or one.task_id in tasks:
            found[one.token_id] = Verdict(Life.ALIVE, why="its task waits for its lock")
        else:
            why = "its message is in no queue, and no worker has it"
            found[one.token_id] = Verdict(Life.DEAD, why=why)
    return found


def _waiting_tasks(using: str) -> set[str | None] | None:
    """Return the tasks that wait for locks, in workers that may not answer; ``None`` if unknown."""
    backend = locks[using]
    try:
        return {
            waiter.task_id
            for holder in backend.holders()
            if holder.waiters != 0
            for waiter in backend.waiting(holder.name)
        }
    except LockError:
        return None
