"""Django's ``ChangeList``, over locks read from their backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.http import HttpRequest

from django_redis_lock.admin.filters import BackendFilter, LockFilter
from django_redis_lock.admin.reading import Problem, aliases, read_rows
from django_redis_lock.admin.snapshots import Snapshot, snapshots
from django_redis_lock.admin.unwritable import unwritable
from django_redis_lock.models import HeldLock
from django_redis_lock.protocol.records import Holder

SORT_KEYS: dict[str, Callable[[Holder], Any]] = {
    "lock": lambda holder: holder.name,
    "holder": str,
    "held_for": lambda holder: (holder.held_for is not None, holder.held_for),
    "lease_left": lambda holder: (holder.ttl is None, holder.ttl),
    "waiters": lambda holder: (holder.waiters is not None, holder.waiters),
    "fence": lambda holder: (holder.fence is not None, holder.fence),
    "backend": lambda holder: holder.using,
}
"""By column; unknown values sort lowest, and a lease without end highest."""

DEFAULT_COLUMN = "held_for"
FROM_INDEX = ("lock", "lease_left", "backend")
"""The columns to sort by when there are too many locks to read."""
DEFAULT_FROM_INDEX = "lease_left"

Order = dict[int, Literal["desc", "asc"]]


@dataclass
class Reading:
    """How complete and how recent the list is."""

    read_at: datetime
    """When the reading of the names began."""
    age: float
    """Seconds since then; 0.0 if it was read for this page only."""
    problems: list[Problem]
    """The backends that are unavailable."""
    unwritable: list[Problem] = field(default_factory=list)
    """The backends whose server refuses writes."""
    names_only: bool = False
    """Whether there are too many locks to read, so that only names were searched."""
    unread: int = 0
    """How many were found, if these are too many to read: sorted by ``FROM_INDEX`` only."""
    refused: bool = False
    """Whether a chosen filter needs locks that are too many to read, so that none is shown."""


class HeldLockChangeList(ChangeList):
    """Filters, searches, sorts and paginates in memory, without a database query.

    With more locks than the admin's ``most_records``, it knows only the names, the ends of the
    leases and the locks of the page. What these can't answer is refused.
    """

    snapshot: Snapshot
    reading: Reading

    @property
    def _admin(self) -> Any:
        return self.model_admin

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        """Return the objects of all pages, in order."""
        self.most_records: int = self._admin.most_records
        self.snapshot = snapshots.latest(self.most_records)
        if self.snapshot.age:
            self.snapshot = self.snapshot.asked_again(self.most_records)
        self.reading = Reading(self.snapshot.read_at, self.snapshot.age, [*self.snapshot.problems])
        specs, self.has_filters, unknown, _, self.has_active_filters = self.get_filters(request)
        if unknown:
            raise IncorrectLookupParameters
        self.filter_specs = specs
        self.clear_all_filters_qs = self.get_query_string(remove=list(self.get_filters_params()))
        filters = [spec for spec in specs if isinstance(spec, LockFilter)]
        rows = self.snapshot.rows
        if rows is None:
            self.reading.names_only = True
            numbers = self._found_by_name(filters)
            if len(numbers) > self.most_records:
                return self._unread(numbers, filters)
            rows, problems = read_rows(self.snapshot.names.keys(numbers))
            self.reading.problems += problems
        kept = rows
        for spec in filters:
            spec.offer(rows)
            kept = spec.keep(kept)
        if not self.reading.names_only:
            kept = [row for row in kept if _matches(row, self.query)]
        return self._in_order(list(kept))

    def _found_by_name(self, filters: list[LockFilter]) -> Sequence[int]:
        """Return the numbers of the names that match the query, the latest lease end first."""
        names, words = self.snapshot.names, self.query.casefold().split()
        numbers: Sequence[int] = names.having(words) if words else range(len(names))
        wanted = next((spec.value() for spec in filters if isinstance(spec, BackendFilter)), None)
        return numbers if wanted is None else names.of(wanted, numbers)

    def _unread(self, numbers: Sequence[int], filters: list[LockFilter]) -> Any:
        """Return too many locks to read, sorted by what the index knows."""
        self.sortable_by = FROM_INDEX
        self.reading.unread = len(numbers)
        if any(spec.value() is not None for spec in filters if not isinstance(spec, BackendFilter)):
            self.reading.refused = True
            return []
        index, direction = next(iter(self.get_ordering_field_columns().items()), (-1, "desc"))
        column = DEFAULT_FROM_INDEX if index < 0 else self.list_display[index]
        if column != DEFAULT_FROM_INDEX:
            found, numbers = numbers, self.snapshot.by_name
            if len(found) < len(numbers):
                chosen = set(found)
                numbers = [number for number in numbers if number in chosen]
        if column == "backend":
            numbers = self.snapshot.names.by_alias(numbers)
        backwards = direction == ("asc" if column == DEFAULT_FROM_INDEX else "desc")
        return _Unread(self.snapshot, numbers[::-1] if backwards else numbers)

    def _in_order(self, rows: list[HeldLock]) -> list[HeldLock]:
        rows.sort(key=lambda row: (row.name, row.using))
        for index, direction in reversed(self.get_ordering_field_columns().items()):
            if 0 <= index < len(self.list_display):
                key = SORT_KEYS.get(str(self.list_display[index]))
                if key:
                    rows.sort(key=_of_holder(key), reverse=direction == "desc")
        return rows

    def get_ordering_field_columns(self) -> Order:
        """Return the columns to sort by; by default the longest held first.

        With too many locks to read, it is one column, by default the lease left.
        """
        columns = list(self.list_display)
        default = DEFAULT_COLUMN if self.sortable_by is not FROM_INDEX else DEFAULT_FROM_INDEX
        chosen: Order = {columns.index(default): "desc"} if default in columns else {}
        if ORDER_VAR not in self.params and chosen:
            return chosen
        asked: Order = super().get_ordering_field_columns()
        if self.sortable_by is not FROM_INDEX:
            return asked
        for index, direction in asked.items():
            if 0 <= index < len(columns) and columns[index] in FROM_INDEX:
                return {index: direction}
        return chosen

    def get_results(self, request: HttpRequest) -> None:
        """Choose the rows of the page; past the end it is the last page, as locks come and go."""
        found: Any = self.queryset
        self.paginator = self.model_admin.get_paginator(request, found, self.list_per_page)
        self.result_count = len(found)
        self.show_full_result_count = self.model_admin.show_full_result_count
        self.full_result_count = self.snapshot.total
        self.show_admin_actions = bool(self.result_count)
        self.can_show_all = self.result_count <= self.list_max_show_all
        self.multi_page = self.result_count > self.list_per_page
        if self.multi_page and not (self.show_all and self.can_show_all):
            page = self.paginator.get_page(self.page_num)
            self.page_num = page.number
            found = page.object_list
        if isinstance(found, _Unread) or self.snapshot.age:
            # Show what is held now, whatever the snapshot says.
            found, problems = read_rows(
                found.keys()
                if isinstance(found, _Unread)
                else [(row.using, row.name) for row in found]
            )
            known = self.reading.problems
            self.reading.problems += [one for one in problems if one not in known]
        else:
            found = [copy(row) for row in found]  # other requests may share the snapshot
        for row in found:
            row.may_release = self._admin.has_release_permission(request, row)
        self.result_list = self.queryset = self.paginator.object_list = found
        del self.snapshot  # Django's context is a cycle, which would keep it in memory
        self.reading.unwritable = unwritable(aliases(), self.reading.problems)


class _Unread(Sequence[Any]):
    """Locks of which only the names are known."""

    def __init__(self, snapshot: Snapshot, numbers: Sequence[int]) -> None:
        self._snapshot = snapshot
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, item: Any) -> Any:
        return _Unread(self._snapshot, self._numbers[item])

    def keys(self) -> list[tuple[str, str]]:
        return self._snapshot.names.keys(self._numbers)


def _of_holder(key: Callable[[Holder], Any]) -> Callable[[HeldLock], Any]:
    return lambda row: key(row.holder) if row.holder else None


def _matches(row: HeldLock, query: str) -> bool:
    """Whether the texts known of a lock contain each word of the query."""
    words = query.casefold().split()
    if not words or row.holder is None:
        return not words
    holder = row.holder
    known = [row.name, holder.host, holder.thread, holder.task_name, holder.task_id]
    known += [str(holder.pid), *holder.metadata, *holder.metadata.values()]
    text = "\n".join(part for part in known if part).casefold()
    return all(word in text for word in words)
