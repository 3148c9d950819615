"""The filters of the list, which work on the objects that were read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_redis_lock.admin.reading import aliases
from django_redis_lock.models import HeldLock
from django_redis_lock.support.text import visible

Test = Callable[[HeldLock], bool]


class LockFilter(admin.SimpleListFilter):
    """A filter of objects in memory."""

    tests: ClassVar[dict[str, Test]] = {}
    """The test of each choice."""

    def keep(self, rows: list[HeldLock]) -> list[HeldLock]:
        """Return the objects that pass the chosen test."""
        value = self.value()
        if value is None:
            return rows
        test = self.test(value)
        return [row for row in rows if test(row)]

    def offer(self, rows: list[HeldLock]) -> None:
        """Add choices that depend on the objects read."""

    def test(self, value: str) -> Test:
        """Return the test of a choice; an unknown one keeps nothing."""
        return self.tests.get(value, lambda row: False)

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset


class BackendFilter(LockFilter):
    """The alias of LOCKS; hidden if there is only one."""

    title = gettext_lazy("backend")
    parameter_name = "using"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        found = aliases()
        return [(using, visible(using)) for using in found] if len(found) > 1 else []

    def test(self, value: str) -> Test:
        return lambda row: row.using == value


class LeaseFilter(LockFilter):
    """Leases that need attention or never end."""

    title = gettext_lazy("lease")
    parameter_name = "lease"
    tests: ClassVar[dict[str, Test]] = {
        "attention": lambda row: row.attention is not None,
        "endless": lambda row: row.holder is not None and row.holder.ttl is None,
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("attention", _("Needs attention")), ("endless", _("Without end"))]


class WaitersFilter(LockFilter):
    """Whether there are waiters."""

    title = gettext_lazy("waiters")
    parameter_name = "waiting"
    tests: ClassVar[dict[str, Test]] = {
        "yes": lambda row: row.holder is not None and (row.holder.waiters or 0) > 0,
        "no": lambda row: row.holder is not None and row.holder.waiters == 0,
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", _("Somebody waits")), ("no", _("Nobody waits"))]


class TaskFilter(LockFilter):
    """The Celery task that holds the lock."""

    title = gettext_lazy("Celery task")
    parameter_name = "task"
    any_task = "*"
    no_task = "-"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the constant choices; ``offer`` adds the tasks."""
        return [(self.any_task, _("Any task")), (self.no_task, _("No task"))]

    def offer(self, rows: list[HeldLock]) -> None:
        """Add the tasks that hold a lock, and the chosen one."""
        names: set[str] = {
            row.holder.task_name for row in rows if row.holder and row.holder.task_name
        }
        chosen = self.value()
        if chosen and chosen not in (self.any_task, self.no_task):
            names.add(chosen)
        self.lookup_choices += [(name, visible(name)) for name in sorted(names)]

    def test(self, value: str) -> Test:
        """Return the test for one task, any task, or no task."""
        if value == self.any_task:
            return lambda row: row.holder is not None and row.holder.task_id is not None
        if value == self.no_task:
            return lambda row: row.holder is not None and row.holder.task_id is None
        return lambda row: row.holder is not None and row.holder.task_name == value
