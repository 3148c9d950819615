"""Durations and times as text, with the patterns that the script in the browser uses too."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

TIME_OF_DAY = "H:i:s T"
"""With seconds and zone, unlike Django's formats."""


SIZES = {"d": 86400, "h": 3600, "min": 60, "s": 1}
"""Seconds per unit."""


def _units() -> dict[str, str]:
    return {"d": _("{d} d"), "h": _("{h} h"), "min": _("{min} min"), "s": _("{s} s")}


def patterns_json() -> str:
    """Return the pattern of a clock by its largest unit, in the current language."""
    units = list(_units().items())
    return json.dumps(
        {unit: " ".join(text for _, text in units[n : n + 2]) for n, (unit, _) in enumerate(units)}
    )


def duration(seconds: float, *, is_clock: bool = False) -> str:
    """Return whole seconds in at most two units, such as ``2 h 5 min``, or ``2 h``.

    A clock shows a zero, too: ``2 h 0 min``.
    """
    left, parts = max(0, int(seconds)), {}
    for unit, size in SIZES.items():
        parts[unit], left = divmod(left, size)
    texts = [text.format(**parts) for text in _units().values()]
    amounts = list(parts.values())
    first = next((n for n, amount in enumerate(amounts) if amount), len(amounts) - 1)
    several = is_clock or any(amounts[first + 1 : first + 2])
    return " ".join(texts[first : first + 2] if several else texts[first : first + 1])


def counting_up(seconds: float) -> SafeString:
    """Return a duration that the script counts up."""
    return _clock(seconds, math.floor(seconds), "up")


def counting_down(seconds: float) -> SafeString:
    """Return a duration that the script counts down."""
    return _clock(seconds, math.ceil(seconds), "down")


def _clock(seconds: float, whole: int, direction: str) -> SafeString:
    return format_html(
        '<bdi class="lock-clock" data-seconds="{}" data-direction="{}">{}</bdi>',
        f"{max(0.0, seconds):.3f}",
        direction,
        duration(whole, is_clock=True),
    )


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
        '<time datetime="{}" title="{}"><span>{},</span> <span>{}</span></time>',
        utc.isoformat(timespec="seconds"),
        f"{utc:%Y-%m-%d %H:%M:%S} UTC",
        date_format(here, "DATE_FORMAT"),
        date_format(here, TIME_OF_DAY),
    )
