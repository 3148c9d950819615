"""Describes holders, waiters, leases and times, as text and as HTML."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from django_redis_lock.handler import locks
from django_redis_lock.operators import attention_of, in_units, sharing
from django_redis_lock.protocol.records import Attention, Holder, Origin, Unheld, Waiter, is_renewed
from django_redis_lock.support.text import escape_unprintable

SHORT = 20
"""Characters of a text that fit into every column without wrapping."""
LONG, PARTS = 8000, 20
"""Characters of a text that are shown, and ``<wbr>`` in it; only other programs write more."""
_ENDS_WORD = re.compile("(?<=[:/.@=&,;|])(?=.)")
_LONG_WORD = re.compile(r"[^\s:/.@=&,;|-]{31}")


def duration(seconds: float) -> str:
    """Return whole seconds in at most two units, such as ``2 h 5 min``, or ``2 h``."""
    texts = {"d": _("{d} d"), "h": _("{h} h"), "m": _("{min} min"), "s": _("{s} s")}
    found = in_units(max(0, int(seconds)))
    return " ".join(texts[unit].format(d=n, h=n, min=n, s=n) for n, unit in found)


def _unbroken(seconds: float) -> str:
    return duration(seconds).replace(" ", "\N{NO-BREAK SPACE}")


def duration_html(seconds: float | None) -> SafeString | str:
    """Return a duration in one line, ``-`` if it is not known."""
    return "-" if seconds is None else format_html("<bdi>{}</bdi>", _unbroken(seconds))


def moment(at: datetime | None) -> SafeString | None:
    """Return a time with seconds in the current time zone; the title has UTC."""
    if at is None:
        return None
    utc = at.astimezone(UTC)
    try:
        here = timezone.localtime(at)
    except OverflowError:  # another program's lease may end in the last year there is
        here = utc
    return format_html(
        '<time dir="auto" datetime="{}" title="{}"><span>{},</span> <span>{}</span></time>',
        utc.isoformat(timespec="seconds"),
        f"{utc:%Y-%m-%d %H:%M:%S} UTC",
        date_format(here, "DATE_FORMAT"),
        date_format(here, "H:i:s T"),  # with seconds and zone, unlike Django's formats
    )


def who(one: Origin) -> str:
    """Return one line that names a task, a process or another program."""
    address = _address(one)
    if one.task_id:
        task = escape_unprintable(f"{one.task_name or '?'}[{one.task_id}]")
        return _("task %(task)s on %(place)s") % {"task": task, "place": address}
    return address if one.host else _("another program")


def _address(one: Origin) -> str:
    return escape_unprintable(f"{one.host or '?'}:{one.pid or '?'}")


def wrappable(text: str) -> SafeString:
    """Return a text with visible characters only; the style sheet wraps what has no ``<wbr>``."""
    text = escape_unprintable(text)
    if len(text) > LONG:
        text = f"{text[:LONG]}…"
    words = _ENDS_WORD.split(text, maxsplit=PARTS) if len(text) > SHORT else [text]
    html = format_html_join(mark_safe("<wbr>"), "{}", ((word,) for word in words))
    is_long = len(words) > PARTS or _LONG_WORD.search(text)
    return format_html('<span class="lock-long">{}</span>', html) if is_long else html


def name_html(text: str) -> SafeString:
    """Return a name, whose direction is that of its first letter."""
    return format_html("<bdi>{}</bdi>", wrappable(text))


def latin(text: str) -> SafeString:
    """Return a host, an id or a path, which are left-to-right in every language."""
    return format_html('<bdi dir="ltr">{}</bdi>', wrappable(text))


def aside(text: str, *, wrong: bool = False) -> SafeString:
    """Return a note on a value; a wrong one is red."""
    return format_html('<span class="lock-aside{}">{}</span>', " lock-wrong" if wrong else "", text)


def origin_html(one: Origin, *, brief: bool = False) -> SafeString:
    """Return the task, or the process and thread; ``brief`` shortens a task id."""
    if one.task_id is not None:
        task_id = escape_unprintable(one.task_id)
        shown = format_html(
            '<bdi dir="ltr" title="{}">{}</bdi> {}',
            task_id,
            f"{task_id[:8]}…" if brief and len(task_id) > 8 else wrappable(task_id),
            latin(_address(one)),
        )
        return format_html("{} {}", latin(one.task_name or "?"), aside(shown))
    if one.host:
        return format_html("{} {}", latin(_address(one)), aside(latin(one.thread or "")))
    token = getattr(one, "token_id", None)
    known = format_html("{} {}", _("token id"), latin(token)) if token else ""
    cut = _("its record was cut") if getattr(one, "cut", False) else ""
    return format_html("{} {} {}", _("another program"), aside(known), cut)


def sharing_of(one: Holder | Waiter) -> str:
    return sharing(one.shared, one.limit, one.holders if isinstance(one, Holder) else None)


def lock_html(one: Holder, *, brief: bool = False) -> SafeString:
    """Return the name and who shares it; ``brief`` is for the list, which cuts it to one line."""
    listed = format_html('<bdi title="{0}">{0}</bdi>', escape_unprintable(one.name))
    sharers = aside(format_html("<bdi>{}</bdi>", sharing_of(one))) if one.shared else ""
    return format_html("{} {}", listed if brief else name_html(one.name), sharers)


def held_for_html(holder: Holder) -> SafeString | str:
    """Return how long a lock has been held, ``-`` if another program holds it."""
    held_for = duration_html(holder.held_for)
    threshold = locks[holder.using].operators.threshold(holder.name)
    if threshold is None or attention_of(holder) is not Attention.HELD_LONG:
        return held_for
    note = _("held longer than %(duration)s") % {"duration": _unbroken(threshold)}
    return format_html("{} {}", held_for, aside(note, wrong=True))


def lease_left_html(holder: Holder) -> SafeString | str:
    """Return how much of the lease is left, and why it may not be renewed."""
    attention = attention_of(holder)
    notes = {
        Attention.DEAD: _("its process is gone"),
        Attention.STOPPED: _("its process is stopped"),
        Attention.RENEWAL_LATE: _("renewal is late"),
    }
    wrong = ' class="lock-wrong"' if attention is Attention.ENDLESS_OLD else ""
    left = _("no expiry") if holder.ttl is None else _unbroken(math.ceil(holder.ttl))
    left = format_html("<bdi{}>{}</bdi>", SafeString(wrong), left)
    if attention in notes:
        return format_html("{} {}", left, aside(notes[attention], wrong=True))
    return format_html("{} {}", left, aside(_("renewed"))) if is_renewed(holder) else left


def waiters_text(one: Holder | Unheld) -> str:
    return _("not known") if one.waiters is None else str(one.waiters)
