"""How holders, waiters and former holders are spoken of."""

from __future__ import annotations

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from django_redis_lock.admin.durations import counting_down, counting_up
from django_redis_lock.records import Holder, Origin
from django_redis_lock.text import visible

BRIEF_ID = 8
"""How much of a task's id is enough to tell it from others at a glance."""


def who(one: Origin) -> str:
    """Return one line that names a task, a process or a stranger."""
    place = _place(one)
    if one.task_id:
        task = visible(f"{one.task_name or '?'}[{one.task_id}]")
        return _("task %(task)s on %(place)s") % {"task": task, "place": place}
    return place if one.host else _("a foreign program")


def _place(one: Origin) -> str:
    return visible(f"{one.host or '?'}:{one.pid or '?'}")


def holder_html(holder: Holder, *, brief: bool = False) -> SafeString:
    """Return who holds a lock, with what is needed to find it; ``brief`` cuts a task's id short."""
    return origin_html(holder, brief=brief) or format_html(
        '{} <span class="lock-aside">{}</span>', _("a foreign program"), holder.token_id
    )


def origin_html(one: Origin, *, brief: bool = False) -> SafeString:
    """Return the task, or the process and thread; an empty text where none is known."""
    if one.task_id is not None:
        task_id = visible(one.task_id)
        cut = brief and len(task_id) > BRIEF_ID
        return format_html(
            '<bdi>{}</bdi> <span class="lock-aside"><bdi title="{}">{}</bdi> <bdi>{}</bdi></span>',
            _breakable(visible(one.task_name or "?")),
            task_id,
            f"{task_id[:BRIEF_ID]}…" if cut else task_id,
            _place(one),
        )
    if one.host:
        return format_html(
            '<bdi>{}</bdi> <span class="lock-aside"><bdi>{}</bdi></span>',
            _place(one),
            visible(one.thread or ""),
        )
    return SafeString("")


def _breakable(path: str) -> SafeString:
    """Return a dotted path that a narrow column breaks at its dots."""
    return format_html_join(mark_safe(".<wbr>"), "{}", ((part,) for part in path.split(".")))


def held_for_html(holder: Holder, *, overdue: bool) -> SafeString | str:
    """Return how long a lock has been held; of a foreign program's that is not known."""
    if holder.held_for is None:
        return "-"
    clock = counting_up(holder.held_for)
    if not overdue:
        return clock
    note = _("longer than its lease")
    return format_html('{} <span class="lock-aside lock-overdue">{}</span>', clock, note)


def lease_left_html(holder: Holder) -> SafeString | str:
    """Return how much of a lease is left."""
    if holder.ttl is None:
        return _("without end")
    left = counting_down(holder.ttl)
    if not holder.auto_renew:
        return left
    return format_html('{} <span class="lock-aside">{}</span>', left, _("renewed"))
