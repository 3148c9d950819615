"""More about a holder: whether it is alive, and links about its task."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import quote

from django_redis_lock.admin.durations import moment
from django_redis_lock.handler import locks
from django_redis_lock.operators.liveness import judge
from django_redis_lock.protocol.attention import is_renewed
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible


def task_links(holder: Holder) -> list[tuple[str, str]]:
    """Return the (title, URL) of the alias's ``TASK_LINKS`` for the holder's task."""
    if holder.task_id is None:
        return []
    links = locks[holder.using].operators.task_links
    task_id = quote(holder.task_id, safe="")
    return [(title, url.format(task_id=task_id)) for title, url in links.items()]


def liveness(holder: Holder) -> dict[str, Any]:
    """Return whether a holder is alive, why, and when its lease was last renewed."""
    verdict = judge(holder)
    return {
        "life": str(verdict.life),
        "why": visible(verdict.why),
        "renewed_at": _renewed_at(holder),
    }


def _renewed_at(holder: Holder) -> str | None:
    """Return when the lease was last renewed, as far as its end and its length tell."""
    lease = holder.lease
    if not is_renewed(holder) or lease is None or holder.ttl is None or holder.ttl > lease:
        return None  # not renewed, or its holder set another length
    if holder.held_for is None or holder.held_for <= lease / 3:
        return None
    assert holder.expires_at
    return moment(holder.expires_at - timedelta(seconds=lease))
