"""The filters of the list, which work on the objects that were read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_redis_lock.models import HeldLock
from django_redis_lock.operators import aliases
from django_redis_lock.support.text import visible

Test = Callable[[HeldLock], bool]


class LockFilter(admin.SimpleListFilter):
    """A filter of objects in memory."""

    tests: ClassVar[dict[str, tuple[Any, Test]]] = {}
    """The label and the test of each choice."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(value, label) for value, (label, _test) in self.tests.items()]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset

    def offer(self, rows: list[HeldLock]) -> None:
        """Add choices that depend on the objects read."""

    def keep(self, rows: list[HeldLock]) -> list[HeldLock]:
        """Return the objects that pass the chosen test."""
        value = self.value()
        return rows if value is None else list(filter(self.test(value), rows))

    def test(self, value: str) -> Test:
        """Return the test of a choice; an unknown one keeps nothing."""
        return self.tests[value][1] if value in self.tests else lambda row: False


class BackendFilter(LockFilter):
    """The alias of LOCKS; hidden if there is only one."""

    title = _("backend")
    parameter_name = "using"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        found = aliases()
        return [(using, visible(using)) for using in found] if len(found) > 1 else []

    def test(self, value: str) -> Test:
        return lambda row: row.using == value


class LeaseFilter(LockFilter):
    """Leases that need attention or never end."""

    title = _("lease")
    parameter_name = "lease"
    tests: ClassVar[dict[str, tuple[Any, Test]]] = {
        "attention": (_("Needs attention"), lambda row: row.attention is not None),
        "endless": (_("Without end"), lambda row: bool(row.holder and row.holder.ttl is None)),
    }


class WaitersFilter(LockFilter):
    """Whether there are waiters."""

    title = _("waiters")
    parameter_name = "waiting"
    tests: ClassVar[dict[str, tuple[Any, Test]]] = {
        "yes": (_("With waiters"), lambda row: bool(row.holder and row.holder.waiters)),
        "no": (_("Without waiters"), lambda row: bool(row.holder and row.holder.waiters == 0)),
    }


class TaskFilter(LockFilter):
    """The Celery task that holds the lock."""

    title = _("Celery task")
    parameter_name = "task"
    tests: ClassVar[dict[str, tuple[Any, Test]]] = {
        "*": (_("Any task"), lambda row: bool(row.holder and row.holder.task_id is not None)),
        "-": (_("No task"), lambda row: bool(row.holder and row.holder.task_id is None)),
    }

    def offer(self, rows: list[HeldLock]) -> None:
        """Add the tasks that hold a lock, and the chosen one."""
        names = {row.holder.task_name for row in rows if row.holder} | {self.value()}
        found = sorted(name for name in names if name and name not in self.tests)
        self.lookup_choices += [(name, visible(name)) for name in found]

    def test(self, value: str) -> Test:
        """Return the test for one task, any task, or no task."""
        if value in self.tests:
            return super().test(value)
        return lambda row: bool(row.holder and row.holder.task_name == value)
