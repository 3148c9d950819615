"""The columns of the list: what they are called, what they show, and how they sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_redis_lock.admin.wording import (
    held_for_html,
    lease_left_html,
    name_html,
    origin_html,
    waiters_text,
)
from django_redis_lock.models import HeldLock
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible


class Column(NamedTuple):
    label: Any
    html: Callable[[HeldLock, Holder], str]
    """What is shown; markup is escaped."""
    key: Callable[[Holder], Any]
    """To sort by: unknown values are lowest, and a lease without end is highest."""


COLUMNS = {
    "lock": Column(
        _("Name"),
        # The style sheet cuts it to one line.
        lambda row, holder: format_html(
            '<bdi title="{}">{}</bdi>', visible(row.name), visible(row.name)
        ),
        lambda holder: holder.name,
    ),
    "holder": Column(_("Holder"), lambda row, holder: origin_html(holder, brief=True), str),
    "held_for": Column(
        _("Held for"),
        lambda row, holder: held_for_html(holder, row.attention),
        lambda holder: (holder.held_for is not None, holder.held_for),
    ),
    "lease_left": Column(
        _("Lease left"),
        lambda row, holder: lease_left_html(holder, row.attention),
        lambda holder: (holder.ttl is None, holder.ttl),
    ),
    "waiters": Column(
        _("Waiters"),
        lambda row, holder: waiters_text(holder),
        lambda holder: (holder.waiters is not None, holder.waiters),
    ),
    "fence": Column(
        _("Fence"),
        # Without digit separators, for comparing.
        lambda row, holder: "-" if holder.fence is None else str(holder.fence),
        lambda holder: (holder.fence is not None, holder.fence),
    ),
    "backend": Column(
        _("Backend"), lambda row, holder: name_html(row.using), lambda holder: holder.using
    ),
}


def column(name: str) -> Callable[[Any, HeldLock], SafeString]:
    """Return a column as a method of the admin; narrow screens show most labels in each row."""
    label, html, _key = COLUMNS[name]

    @admin.display(description=label, ordering=name)
    def display(self: Any, row: HeldLock) -> SafeString:
        assert row.holder, "the list has rows with holders only"
        shown = html(row, row.holder)
        if name in ("lock", "holder"):
            return SafeString(shown)
        return format_html('<span data-label="{}">{}</span>', label, shown)

    return display
