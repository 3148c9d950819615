"""The filters of the list, which work on the holders that were read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_redis_lock.operators import aliases, attention_of
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import escape_unprintable

Test = Callable[[Holder], bool]


class LockFilter(admin.SimpleListFilter):
    """A filter of a list of holders."""

    tests: ClassVar[dict[str, tuple[Any, Test]]] = {}
    """The label and the test of each choice."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(value, label) for value, (label, _test) in self.tests.items()]

    def offer(self, holders: list[Holder]) -> None:
        """Add choices that depend on the holders read."""

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        return queryset if value is None else list(filter(self.test(value), queryset))

    def test(self, value: str) -> Test:
        """Return the test of a choice; an unknown one keeps nothing."""
        return self.tests[value][1] if value in self.tests else lambda one: False


class BackendFilter(LockFilter):
    """The alias of LOCKS; hidden if there is only one."""

    title = _("alias")
    parameter_name = "using"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        found = aliases()
        return [(using, using) for using in found] if len(found) > 1 else []

    def test(self, value: str) -> Test:
        return lambda one: one.using == value


class LeaseFilter(LockFilter):
    title = _("lease")
    parameter_name = "lease"
    tests: ClassVar[dict[str, tuple[Any, Test]]] = {
        "attention": (_("Needs attention"), lambda one: attention_of(one) is not None),
        "none": (_("No expiry"), lambda one: one.ttl is None),
    }


class WaitersFilter(LockFilter):
    title = _("waiters")
    parameter_name = "waiting"
    tests: ClassVar[dict[str, tuple[Any, Test]]] = {
        "yes": (_("With waiters"), lambda one: bool(one.waiters)),
        "no": (_("Without waiters"), lambda one: one.waiters == 0),
    }


class TaskFilter(LockFilter):
    title = _("Celery task")
    parameter_name = "task"
    tests: ClassVar[dict[str, tuple[Any, Test]]] = {
        "*": (_("Any task"), lambda one: one.task_id is not None),
        "-": (_("No task"), lambda one: one.task_id is None),
    }

    def offer(self, holders: list[Holder]) -> None:
        """Add the tasks that hold a lock, and the chosen one."""
        names = {one.task_name for one in holders} | {self.value()}
        found = sorted(name for name in names if name and name not in self.tests)
        self.lookup_choices += [(name, escape_unprintable(name)) for name in found]

    def test(self, value: str) -> Test:
        return super().test(value) if value in self.tests else lambda one: one.task_name == value
