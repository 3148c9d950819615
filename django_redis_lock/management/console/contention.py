"""The last hour of a lock's group, for people and as JSON."""

from __future__ import annotations

from typing import Any

from django_redis_lock.backends.operator_settings import OTHER
from django_redis_lock.management.console import facts
from django_redis_lock.management.console.durations import about
from django_redis_lock.management.console.terminal import Terminal
from django_redis_lock.protocol.contention import Contention, Slot, Spread
from django_redis_lock.support.text import visible


def contention_facts(hour: Contention) -> dict[str, Any]:
    slots = [_slot_facts(slot) for slot in hour.slots]
    return {"group": hour.group, **_slot_facts(hour.total), "slots": slots}


def _slot_facts(slot: Slot) -> dict[str, Any]:
    return {
        "began": facts.iso(slot.began),
        "acquired": slot.acquired,
        "waited": _spread_facts(slot.waited),
        "held": _spread_facts(slot.held),
        "busy": slot.busy,
        "timed_out": slot.timed_out,
        "lost": slot.lost,
    }


def _spread_facts(spread: Spread) -> dict[str, float | None]:
    return {f"p{share}": facts.seconds(spread.quantile(share / 100)) for share in (50, 95)}


def show(hour: Contention | None, group: str, terminal: Terminal) -> None:
    """Show an hour, which is ``None`` if the server did not tell."""
    which = "all locks in no group" if group == OTHER else f"group {visible(group)}"
    terminal.say(terminal.style.MIGRATE_HEADING(f"Last hour of {which}"))
    if hour is None:
        terminal.say("  Not known.")
        return
    total = hour.total
    for label, value in (
        ("acquired", str(total.acquired)),
        ("waited", _spread(total.waited)),
        ("held", _spread(total.held)),
        ("refused", f"{total.busy} busy, {total.timed_out} timed out"),
        ("lost", str(total.lost)),
    ):
        terminal.say(f"  {label:<12}{value}")


def _spread(spread: Spread) -> str:
    middle, slow = spread.quantile(0.5), spread.quantile(0.95)
    if middle is None or slow is None:
        return facts.UNKNOWN
    return f"p50 {about(middle)}, p95 {about(slow)}"
