"""The columns of the list."""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_redis_lock.admin.tickets import ticket_of
from django_redis_lock.admin.wording import (
    breakable,
    held_for_html,
    holder_html,
    lease_left_html,
    name_html,
    waiters_text,
)
from django_redis_lock.models import HeldLock
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible


class Columns:
    """The columns of a list of held locks."""

    names = ("lock", "holder", "held_for", "lease_left", "waiters", "fence", "backend")

    @admin.display(description=gettext_lazy("Name"), ordering="lock")
    def lock(self, row: HeldLock) -> SafeString:
        """Return the name, with the ticket by which the script identifies the row."""
        return format_html(
            '<bdi data-ticket="{}" data-using="{}">{}</bdi>',
            ticket_of(row),
            visible(row.using),
            breakable(row.name),
        )

    @admin.display(description=gettext_lazy("Holder"), ordering="holder")
    def holder(self, row: HeldLock) -> SafeString:
        return holder_html(_read(row), brief=True)

    @admin.display(description=gettext_lazy("Held for"), ordering="held_for")
    def held_for(self, row: HeldLock) -> SafeString:
        return _labelled(_("Held for"), held_for_html(_read(row), row.attention))

    @admin.display(description=gettext_lazy("Lease left"), ordering="lease_left")
    def lease_left(self, row: HeldLock) -> SafeString:
        return _labelled(_("Lease left"), lease_left_html(_read(row), row.attention))

    @admin.display(description=gettext_lazy("Waiters"), ordering="waiters")
    def waiters(self, row: HeldLock) -> SafeString:
        return _labelled(_("Waiters"), waiters_text(_read(row)))

    @admin.display(description=gettext_lazy("Fence"), ordering="fence")
    def fence(self, row: HeldLock) -> SafeString:
        """Return the fence without digit separators, for comparing."""
        fence = _read(row).fence
        return _labelled(_("Fence"), "-" if fence is None else str(fence))

    @admin.display(description=gettext_lazy("Backend"), ordering="backend")
    def backend(self, row: HeldLock) -> SafeString:
        return _labelled(_("Backend"), name_html(row.using))


def _read(row: HeldLock) -> Holder:
    assert row.holder, "the list has rows with holders only"
    return row.holder


def _labelled(label: str, value: str) -> SafeString:
    """Return a value with its label, which narrow screens show."""
    return format_html('<span data-label="{}">{}</span>', label, value)
