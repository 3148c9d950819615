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
from django_redis_lock.protocol.attention import Attention
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible


class Column(NamedTuple):
    label: Any
    html: Callable[[Holder, Attention | None], str]
    key: Callable[[Holder], Any]
    """To sort by: unknown values are lowest, and a lease without end is highest."""


def _name(holder: Holder, attention: Attention | None) -> SafeString:
    name = visible(holder.name)
    return format_html('<bdi title="{}">{}</bdi>', name, name)  # the list cuts it to one line


COLUMNS = {
    "lock": Column(_("Name"), _name, lambda one: one.name),
    "holder": Column(_("Holder"), lambda one, attention: origin_html(one, brief=True), str),
    "held_for": Column(
        _("Held for"), held_for_html, lambda one: (one.held_for is not None, one.held_for)
    ),
    "lease_left": Column(_("Lease left"), lease_left_html, lambda one: (one.ttl is None, one.ttl)),
    "waiters": Column(
        _("Waiters"),
        lambda one, attention: waiters_text(one),
        lambda one: (one.waiters is not None, one.waiters),
    ),
    "fence": Column(
        _("Fence"),
        # Without digit separators, for comparing.
        lambda one, attention: "-" if one.fence is None else str(one.fence),
        lambda one: (one.fence is not None, one.fence),
    ),
    "backend": Column(
        _("Backend"), lambda one, attention: name_html(one.using), lambda one: one.using
    ),
}


def column(name: str) -> Callable[[Any, HeldLock], SafeString]:
    """Return a column as a method of the admin; narrow screens show most labels in each row."""
    label, html, _key = COLUMNS[name]

    @admin.display(description=label, ordering=name)
    def display(self: Any, row: HeldLock) -> SafeString:
        assert row.holder, "the list has rows with holders only"
        shown = html(row.holder, row.attention)
        if name in ("lock", "holder"):
            return SafeString(shown)
        return format_html('<span data-label="{}">{}</span>', label, shown)

    return display
