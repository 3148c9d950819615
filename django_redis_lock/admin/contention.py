"""The last hour of a lock's group, as facts and as a chart."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_redis_lock.admin.durations import duration
from django_redis_lock.admin.wording import name_html
from django_redis_lock.backends.operator_settings import OTHER
from django_redis_lock.protocol.contention import Contention, Slot, Spread

NO_BREAK = "\N{NO-BREAK SPACE}"
STEP, HEIGHT = 20, 48
"""The width of a slot in the chart, with its gap, and the height of the highest bar."""


def hour_heading(group: str) -> SafeString | str:
    if group == OTHER:
        return _("Last hour of all locks in no group")
    return format_html(_("Last hour of the group “{}”"), name_html(group))


def hour_context(hour: Contention) -> dict[str, Any]:
    """Return the facts of an hour, and its chart if anything is in it."""
    total = hour.total
    refused = _("%(busy)s at once, %(timed_out)s after a wait") % {
        "busy": number_format(total.busy, force_grouping=True),
        "timed_out": number_format(total.timed_out, force_grouping=True),
    }
    most = max(slot.acquired + slot.refused for slot in hour.slots)
    return {
        "hour": [
            (_("Acquired"), number_format(total.acquired, force_grouping=True)),
            (_("Waited"), _spread(total.waited)),
            (_("Held"), _spread(total.held)),
            (_("Refused"), refused),
            (_("Lost"), number_format(total.lost, force_grouping=True)),
        ],
        "hour_chart": _chart(hour, most) if most else "",
        "hour_began": _time(total),
        "hour_most": number_format(most, force_grouping=True),
    }


def _spread(spread: Spread) -> str:
    middle, slow = spread.quantile(0.5), spread.quantile(0.95)
    if middle is None or slow is None:
        return "-"
    return _("median %(middle)s, 95th percentile %(slow)s") % {
        "middle": _about(middle),
        "slow": _about(slow),
    }


def _about(seconds: float) -> str:
    """Return a duration that is not exact, on one line."""
    if seconds < 0.001:
        text = f"< {_milliseconds(1)}"
    elif seconds < 0.9995:
        text = f"≈ {_milliseconds(seconds * 1000)}"
    else:
        text = f"≈ {duration(round(seconds))}"
    return text.replace(" ", NO_BREAK)


def _milliseconds(number: float) -> str:
    return _("{ms} ms").format(ms=f"{number:.0f}")


def _chart(hour: Contention, most: int) -> SafeString:
    """Return a bar for each slot, of what was acquired and, on top, what was refused."""
    bars = format_html_join(
        "",
        "<g><title>{}</title>{}{}</g>",
        (_bar(n, slot, most) for n, slot in enumerate(hour.slots)),
    )
    told = "; ".join(_told(slot) for slot in hour.slots if slot.acquired or slot.refused)
    return format_html(
        '<svg class="lock-hour" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>',
        STEP * len(hour.slots),
        HEIGHT,
        told,
        bars,
    )


def _bar(number: int, slot: Slot, most: int) -> tuple[str, SafeString, SafeString]:
    acquired = HEIGHT * slot.acquired / most
    refused = HEIGHT * slot.refused / most
    return (
        _told(slot),
        _part("lock-acquired", number, HEIGHT - acquired, acquired),
        _part("lock-refused", number, HEIGHT - acquired - refused, refused),
    )


def _part(name: str, number: int, top: float, height: float) -> SafeString:
    shape = '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>'
    return format_html(shape, name, number * STEP + 1, f"{top:.1f}", STEP - 2, f"{height:.1f}")


def _told(slot: Slot) -> str:
    return _("%(time)s: %(acquired)s acquired, %(refused)s refused") % {
        "time": _time(slot),
        "acquired": slot.acquired,
        "refused": slot.refused,
    }


def _time(slot: Slot) -> str:
    """Return when a slot began, in the current time zone."""
    return date_format(timezone.localtime(slot.began), "TIME_FORMAT")
