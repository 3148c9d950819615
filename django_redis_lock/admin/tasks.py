"""The tasks of Celery's workers for a lock, as its page shows them."""

from __future__ import annotations

from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from django_redis_lock.admin.durations import moment
from django_redis_lock.admin.wording import name_html
from django_redis_lock.models import HeldLock
from django_redis_lock.operators.workers import InHand, TaskLine, in_hand
from django_redis_lock.support.text import visible


def tasks(lock: HeldLock, seconds: float) -> dict[str, Any] | None:
    """Ask the workers, which get ``seconds`` to answer; return ``None`` without Celery.

    ``silence`` is why nothing is known, empty if a worker answered.
    """
    answer = in_hand(lock.name, seconds)
    if answer is None:
        return None
    lines = answer.of(lock.using)
    return {
        "lines": [_line(line) for line in lines],
        "note": _note(answer, lines),
        "silence": answer.silence,
    }


def _line(line: TaskLine) -> dict[str, Any]:
    states = {
        "runs": _("runs"),
        "waits": _("waits"),
        "comes again": _("comes again"),
        "scheduled": _("is scheduled"),
        "reserved": _("waits for a process"),
        "active": _("has begun"),
    }
    due = line.eta and parse_datetime(line.eta)
    behind = _("not known") if line.behind == "not known" else name_html(line.behind or "-")
    return {
        "who": name_html(f"{line.task}[{line.id}]"),
        "state": states.get(line.state, visible(line.state)),
        "behind": behind,
        "due": moment(due) if due else None,
        "attempts": line.attempts,
        "worker": name_html(line.worker),
    }


def _note(answer: InHand, lines: list[TaskLine]) -> str:
    """Return a note on an answer that is empty or incomplete."""
    if answer.problem:
        return _("Not known: %(reason)s") % {"reason": visible(answer.problem)}
    if not answer.is_known:
        return _("Not known: no worker answered.")
    if answer.unclear:
        return _("Further tasks, whose lock is not known: %(count)s.") % {"count": answer.unclear}
    return "" if lines else _("None with the workers that answered.")
