"""Describes holders, waiters and leases, as text and as HTML."""

from __future__ import annotations

import re

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from django_redis_lock.admin.durations import counting_down, counting_up, duration
from django_redis_lock.handler import locks
from django_redis_lock.protocol.attention import Attention, is_renewed
from django_redis_lock.protocol.records import Holder, Origin
from django_redis_lock.support.text import visible

BRIEF_ID = 8
"""Characters of a task id in the list."""

SHORT = 20
"""Characters of a text that fit into every column without a break."""
LONG = 8000
"""Characters of a text that are shown; only other programs write more."""
_ENDS_WORD = ":/.@=&,;|"
_BREAK = re.compile(
    rf"(?<=[{_ENDS_WORD}])(?=.)|(?<=[^\s{_ENDS_WORD}-]{{30}})(?=[^\s{_ENDS_WORD}-])"
)
"""Where a long text may break: after one of these signs, or after 30 characters of a word."""


def who(one: Origin) -> str:
    """Return one line that names a task, a process or another program."""
    place = _place(one)
    if one.task_id:
        task = visible(f"{one.task_name or '?'}[{one.task_id}]")
        return _("task %(task)s on %(place)s") % {"task": task, "place": place}
    return place if one.host else _("another program")


def _place(one: Origin) -> str:
    return visible(f"{one.host or '?'}:{one.pid or '?'}")


def breakable(text: str) -> SafeString:
    """Return a text with visible characters only, and ``<wbr>`` where it may break.

    Browsers find such places in prose, but not in names, paths and addresses.
    """
    text = visible(text)
    if len(text) > LONG:
        text = f"{text[:LONG]}…"
    words = _BREAK.split(text) if len(text) > SHORT else [text]
    return format_html_join(mark_safe("<wbr>"), "{}", ((word,) for word in words))


def name_html(text: str) -> SafeString:
    """Return a name, whose direction is that of its first letter."""
    return format_html("<bdi>{}</bdi>", breakable(text))


def latin(text: str) -> SafeString:
    """Return a host, an id or a path, which are left-to-right in every language."""
    return format_html('<bdi dir="ltr">{}</bdi>', breakable(text))


def holder_html(holder: Holder, *, brief: bool = False) -> SafeString:
    """Return the holder and how to find it; ``brief`` shortens a task id."""
    return origin_html(holder, brief=brief) or format_html(
        '{} <span class="lock-aside">{} {}</span>',
        _("another program"),
        _("token id"),
        latin(holder.token_id),
    )


def origin_html(one: Origin, *, brief: bool = False) -> SafeString:
    """Return the task, or the process and thread; ``""`` if none is known."""
    if one.task_id is not None:
        task_id = visible(one.task_id)
        cut = brief and len(task_id) > BRIEF_ID
        return format_html(
            '{} <span class="lock-aside"><bdi dir="ltr" title="{}">{}</bdi> {}</span>',
            latin(one.task_name or "?"),
            task_id,
            f"{task_id[:BRIEF_ID]}…" if cut else breakable(task_id),
            latin(_place(one)),
        )
    if one.host:
        return format_html(
            '{} <span class="lock-aside">{}</span>', latin(_place(one)), latin(one.thread or "")
        )
    return SafeString("")


def held_for_html(holder: Holder, attention: Attention | None) -> SafeString | str:
    """Return how long a lock has been held, ``-`` if another program holds it."""
    if holder.held_for is None:
        return "-"
    clock = counting_up(holder.held_for)
    threshold = locks[holder.using].operators.threshold(holder.name)
    if attention is not Attention.HELD_LONG or threshold is None:
        return clock
    note = _("held longer than %(duration)s") % {"duration": duration(threshold)}
    return format_html('{} <span class="lock-aside lock-wrong">{}</span>', clock, note)


def lease_left_html(holder: Holder, attention: Attention | None) -> SafeString | str:
    """Return how much of the lease is left, and whether its renewal is late."""
    if holder.ttl is None:
        if attention is not Attention.ENDLESS_OLD or holder.held_for is None:
            return _("without end")
        held_for = duration(holder.held_for).replace(" ", "\N{NO-BREAK SPACE}")
        note = _("without end, held for %(duration)s") % {"duration": held_for}
        return format_html('<span class="lock-wrong">{}</span>', note)
    left = counting_down(holder.ttl)
    if attention is Attention.RENEWAL_LATE:
        note = _("renewal is late")
        return format_html('{} <span class="lock-aside lock-wrong">{}</span>', left, note)
    if not is_renewed(holder):
        return left
    return format_html('{} <span class="lock-aside">{}</span>', left, _("renewed"))


def waiters_text(holder: Holder) -> str:
    return _("not known") if holder.waiters is None else str(holder.waiters)
