"""The columns of the list."""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from django_redis_lock.admin.tickets import ticket_of
from django_redis_lock.admin.wording import held_for_html, holder_html, lease_left_html
from django_redis_lock.models import HeldLock
from django_redis_lock.records import Holder
from django_redis_lock.text import visible


class Columns:
    """What the list shows of each lock; in each, ``row.holder`` is there."""

    names = ("lock", "holder", "held_for", "lease_left", "waiters", "fence", "backend")

    @admin.display(description=gettext_lazy("Name"), ordering="lock")
    def lock(self, row: HeldLock) -> SafeString:
        """Return the name, by which the script knows the row again."""
        return format_html('<bdi data-ticket="{}">{}</bdi>', ticket_of(row), visible(row.name))

    @admin.display(description=gettext_lazy("Holder"), ordering="holder")
    def holder(self, row: HeldLock) -> SafeString:
        """Return who holds it: the task, or the process."""
        return holder_html(_read(row), brief=True)

    @admin.display(description=gettext_lazy("Held for"), ordering="held_for")
    def held_for(self, row: HeldLock) -> SafeString | str:
        """Return for how long, and whether that is longer than the lease."""
        return held_for_html(_read(row), overdue=row.overdue)

    @admin.display(description=gettext_lazy("Lease left"), ordering="lease_left")
    def lease_left(self, row: HeldLock) -> SafeString | str:
        """Return how much of the lease is left, and whether it is renewed."""
        return lease_left_html(_read(row))

    @admin.display(description=gettext_lazy("Waiters"), ordering="waiters")
    def waiters(self, row: HeldLock) -> str:
        """Return how many wait."""
        return str(_read(row).waiters)

    @admin.display(description=gettext_lazy("Fence"), ordering="fence", empty_value="-")
    def fence(self, row: HeldLock) -> str | None:
        """Return the fencing number, without separators: it is there to be compared."""
        fence = _read(row).fence
        return None if fence is None else str(fence)

    @admin.display(description=gettext_lazy("Backend"), ordering="backend")
    def backend(self, row: HeldLock) -> str:
        """Return the alias."""
        return visible(row.using)


def _read(row: HeldLock) -> Holder:
    assert row.holder, "the list has rows with holders only"
    return row.holder
