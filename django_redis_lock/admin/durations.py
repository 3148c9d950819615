"""Durations and times as text, with the patterns that the script in the browser uses too."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

TIME_OF_DAY = "H:i:s T"
"""With seconds and zone, unlike Django's formats."""


def patterns() -> dict[str, str]:
    """Return the pattern of a duration by its largest unit, in the current language."""
    return {
        "s": _("{s} s"),
        "min": _("{min} min {s} s"),
        "h": _("{h} h {min} min"),
        "d": _("{d} d {h} h"),
    }


def patterns_json() -> str:
    return json.dumps(patterns())


def duration(seconds: float) -> str:
    """Return whole seconds in at most two units, such as ``2 h 5 min``."""
    left = max(0, int(seconds))
    parts: dict[str, Any] = {}
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        parts[unit], left = divmod(left, size)
    largest = next((unit for unit, amount in parts.items() if amount), "s")
    return patterns()[largest].format(**parts)


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
        duration(whole),
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
