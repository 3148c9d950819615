"""Django's list of objects, over locks that were read from their backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.http import HttpRequest

from django_redis_lock.admin.filters import LockFilter
from django_redis_lock.admin.reading import Reading, read_all
from django_redis_lock.models import HeldLock
from django_redis_lock.records import Holder

SORT_KEYS: dict[str, Callable[[Holder], Any]] = {
    "lock": lambda holder: holder.name,
    "holder": str,
    "held_for": lambda holder: (holder.held_for is not None, holder.held_for),
    "lease_left": lambda holder: (holder.ttl is None, holder.ttl),
    "waiters": lambda holder: holder.waiters,
    "fence": lambda holder: (holder.fence is not None, holder.fence),
    "backend": lambda holder: holder.using,
}
"""By the name of the column; what has no figure comes first, and a lease without end last."""

DEFAULT_COLUMN = "held_for"


class HeldLockChangeList(ChangeList):
    """Reads, filters, searches, sorts and turns pages in memory; no query is made."""

    reading: Reading

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        """Return the objects to list, of all pages, in order."""
        self.reading = read_all()
        specs, self.has_filters, unknown, _, self.has_active_filters = self.get_filters(request)
        if unknown:
            raise IncorrectLookupParameters
        self.filter_specs = specs
        rows = self.reading.rows
        for spec in specs:
            if isinstance(spec, LockFilter):
                spec.offer(self.reading.rows)
                rows = spec.keep(rows)
        self.clear_all_filters_qs = self.get_query_string(remove=list(self.get_filters_params()))
        return self._in_order([row for row in rows if _matches(row, self.query)])

    def _in_order(self, rows: list[HeldLock]) -> list[HeldLock]:
        rows.sort(key=lambda row: (row.name, row.using))
        for index, direction in reversed(self.get_ordering_field_columns().items()):
            if 0 <= index < len(self.list_display):
                key = SORT_KEYS.get(str(self.list_display[index]))
                if key:
                    rows.sort(key=_of_holder(key), reverse=direction == "desc")
        return rows

    def get_ordering_field_columns(self) -> dict[int, Literal["desc", "asc"]]:
        """Return the columns to sort by; the longest held come first by default."""
        if ORDER_VAR in self.params or DEFAULT_COLUMN not in self.list_display:
            return super().get_ordering_field_columns()
        return {list(self.list_display).index(DEFAULT_COLUMN): "desc"}

    def get_results(self, request: HttpRequest) -> None:
        """Choose what is on the page; beyond the end is the last one, for locks come and go."""
        found: Any = self.queryset
        self.paginator = self.model_admin.get_paginator(request, found, self.list_per_page)
        self.result_count = len(found)
        self.show_full_result_count = self.model_admin.show_full_result_count
        self.full_result_count = len(self.reading.rows)
        self.show_admin_actions = bool(self.result_count)
        self.can_show_all = self.result_count <= self.list_max_show_all
        self.multi_page = self.result_count > self.list_per_page
        if self.multi_page and not (self.show_all and self.can_show_all):
            page = self.paginator.get_page(self.page_num)
            self.page_num = page.number
            found = page.object_list
        self.result_list = found


def _of_holder(key: Callable[[Holder], Any]) -> Callable[[HeldLock], Any]:
    return lambda row: key(row.holder) if row.holder else None


def _matches(row: HeldLock, query: str) -> bool:
    """Return whether each word of the query is somewhere in what is known of a lock."""
    words = query.casefold().split()
    if not words or row.holder is None:
        return not words
    holder = row.holder
    known = [row.name, holder.host, holder.thread, holder.task_name, holder.task_id]
    known += [str(holder.pid), *holder.metadata, *holder.metadata.values()]
    text = "\n".join(part for part in known if part).casefold()
    return all(word in text for word in words)
