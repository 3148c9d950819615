"""Django's ``ChangeList``, over locks read from their backends."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.http import HttpRequest

from django_redis_lock.admin.columns import COLUMNS, Column
from django_redis_lock.admin.filters import BackendFilter, LockFilter
from django_redis_lock.admin.reading import Reading, read_list
from django_redis_lock.models import HeldLock

DEFAULT_COLUMN = "held_for"


class HeldLockChangeList(ChangeList):
    """Filters, searches, sorts and paginates in memory, without a database query."""

    reading: Reading

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        """Return the objects of all pages, in order."""
        specs, self.has_filters, unknown, _, self.has_active_filters = self.get_filters(request)
        if unknown:
            raise IncorrectLookupParameters
        self.filter_specs = specs
        self.clear_all_filters_qs = self.get_query_string(remove=list(self.get_filters_params()))
        filters = [spec for spec in specs if isinstance(spec, LockFilter)]
        using = next((spec.value() for spec in filters if isinstance(spec, BackendFilter)), None)
        words = self.query.casefold().split()
        admin: Any = self.model_admin
        self.reading = read_list(admin.most_records, words, using)
        rows = self.reading.rows
        if self.reading.is_whole:
            rows = [row for row in rows if _matches(row, words)]
        for spec in filters:
            spec.offer(self.reading.rows)
            rows = spec.keep(rows)
        return self._in_order(rows)

    def _in_order(self, rows: list[HeldLock]) -> list[HeldLock]:
        rows = sorted(rows, key=lambda row: (row.name, row.using))
        for index, direction in reversed(self.get_ordering_field_columns().items()):
            if 0 <= index < len(self.list_display):
                column = COLUMNS.get(str(self.list_display[index]))
                if column:
                    rows.sort(key=partial(_sort_key, column), reverse=direction == "desc")
        return rows

    def get_ordering_field_columns(self) -> dict[int, Literal["desc", "asc"]]:
        """Return the columns to sort by; by default the longest held first."""
        columns = list(self.list_display)
        if ORDER_VAR not in self.params and DEFAULT_COLUMN in columns:
            return {columns.index(DEFAULT_COLUMN): "desc"}
        return super().get_ordering_field_columns()

    def get_results(self, request: HttpRequest) -> None:
        """Choose the rows of the page; past the end it is the last page, as locks come and go."""
        found: Any = self.queryset
        admin: Any = self.model_admin
        self.paginator = admin.get_paginator(request, found, self.list_per_page)
        self.result_count = len(found)
        self.show_full_result_count = admin.show_full_result_count
        self.full_result_count = self.reading.total
        self.show_admin_actions = bool(self.result_count)
        self.can_show_all = self.result_count <= self.list_max_show_all
        self.multi_page = self.result_count > self.list_per_page
        if self.multi_page and not (self.show_all and self.can_show_all):
            page = self.paginator.get_page(self.page_num)
            self.page_num = page.number
            found = page.object_list
        for row in found:
            row.may_release = admin.has_release_permission(request, row)
        self.result_list = found

    @property
    def waiting(self) -> int:
        """How many callers wait for the locks that were read."""
        return sum(row.holder.waiters or 0 for row in self.reading.rows if row.holder)

    @property
    def attention(self) -> int:
        """How many of the locks that were read need attention."""
        return sum(row.attention is not None for row in self.reading.rows)


def _sort_key(column: Column, row: HeldLock) -> Any:
    assert row.holder
    return column.key(row.holder)


def _matches(row: HeldLock, words: list[str]) -> bool:
    """Whether the texts known of a lock contain each word."""
    if not words or row.holder is None:
        return not words
    holder = row.holder
    known = [row.name, holder.host, holder.thread, holder.task_name, holder.task_id]
    known += [str(holder.pid), *holder.metadata, *holder.metadata.values()]
    text = "\n".join(part for part in known if part).casefold()
    return all(word in text for word in words)
