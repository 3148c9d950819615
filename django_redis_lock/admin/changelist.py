"""Django's ``ChangeList`` over locks read from their backends, and its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Any, Literal, NamedTuple, TypeVar

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.db import connections
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_redis_lock.admin.filters import BackendFilter, LockFilter
from django_redis_lock.admin.wording import (
    held_for_html,
    lease_left_html,
    name_html,
    origin_html,
    waiters_text,
)
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.operators import attention_of, unwritable_because
from django_redis_lock.protocol.records import Attention, Holder
from django_redis_lock.support.text import visible, without_passwords

ERRORS = (LockError, InvalidLockBackend)
"""What a backend can raise."""
AT_ONCE = 8
"""Backends that are asked at the same time."""

Answer = TypeVar("Answer")
DEFAULT_COLUMN = "held_for"


class Column(NamedTuple):
    label: Any
    html: Callable[[Holder, Attention | None], str]
    key: Callable[[Holder], Any]
    """To sort by: unknown values are lowest, and a lease without end is highest."""


COLUMNS = {
    "lock": Column(
        _("Name"),
        # The list cuts it to one line.
        lambda one, attention: format_html('<bdi title="{0}">{0}</bdi>', visible(one.name)),
        lambda one: one.name,
    ),
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


class _Rows(list[HeldLock]):
    """In place of a queryset."""

    _clone = list.copy


class HeldLockChangeList(ChangeList):
    """Filters, searches, sorts and paginates in memory, without a database query."""

    reading: Reading

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        specs, self.has_filters, unknown, _, self.has_active_filters = self.get_filters(request)
        if unknown:
            raise IncorrectLookupParameters
        self.filter_specs = specs
        self.clear_all_filters_qs = self.get_query_string(remove=list(self.get_filters_params()))
        filters = [spec for spec in specs if isinstance(spec, LockFilter)]
        using = next((spec.value() for spec in filters if isinstance(spec, BackendFilter)), None)
        words = self.query.casefold().split()
        model_admin: Any = self.model_admin
        self.reading = read_list(model_admin.most_records, words, using)
        rows = self.reading.rows
        if self.reading.is_whole:
            rows = [row for row in rows if _matches(row, words)]
        for spec in filters:
            spec.offer(self.reading.rows)
            rows = spec.keep(rows)
        return self._in_order(rows)

    def _in_order(self, rows: list[HeldLock]) -> _Rows:
        rows = _Rows(sorted(rows, key=lambda row: (row.name, row.using)))
        names = dict(enumerate(map(str, self.list_display)))
        for index, direction in reversed(self.get_ordering_field_columns().items()):
            if column := COLUMNS.get(names.get(index, "")):
                key: Any = column.key
                rows.sort(key=lambda row: key(row.holder), reverse=direction == "desc")
        return rows

    def get_ordering_field_columns(self) -> dict[int, Literal["desc", "asc"]]:
        """Return the columns to sort by; by default the longest held first."""
        columns = list(self.list_display)
        if ORDER_VAR not in self.params and DEFAULT_COLUMN in columns:
            return {columns.index(DEFAULT_COLUMN): "desc"}
        return super().get_ordering_field_columns()

    def get_results(self, request: HttpRequest) -> None:
        """Choose the rows of the page; past the end it is the last page, as locks come and go."""
        pages = -(-len(self.queryset) // self.list_per_page)
        self.page_num = max(1, min(self.page_num, pages))
        super().get_results(request)
        self.full_result_count = self.reading.total
        self.show_admin_actions = bool(self.result_count)
        model_admin: Any = self.model_admin
        for row in self.result_list:
            row.may_release = model_admin.has_release_permission(request, row)

    @property
    def waiting(self) -> int:
        return sum(row.holder.waiters or 0 for row in self.reading.rows if row.holder)

    @property
    def attention(self) -> int:
        return sum(row.attention is not None for row in self.reading.rows)


def _matches(row: HeldLock, words: list[str]) -> bool:
    """Whether the texts known of a lock contain each word."""
    holder = row.holder
    assert holder
    known = [row.name, holder.host, holder.thread, holder.task_name, holder.task_id]
    known += [str(holder.pid), *holder.metadata, *holder.metadata.values()]
    text = "\n".join(part for part in known if part).casefold()
    return all(word in text for word in words)


# What the backends answer.


@dataclass(frozen=True)
class Problem:
    """A backend that is not available, or refuses writes, and why; safe to show."""

    using: str
    reason: str

    @classmethod
    def of(cls, using: str, error: Exception) -> Problem:
        text = str(error).removeprefix(f"LOCKS[{using!r}] is not available: ")  # the page says that
        return cls(visible(using), visible(without_passwords(text)))


@dataclass
class Reading:
    """What was read for a list of locks."""

    rows: list[HeldLock] = field(default_factory=list)
    total: int = 0
    """How many locks are held on the backends that answered."""
    is_whole: bool = True
    """Whether all of them were read; otherwise only names were searched."""
    unread: int = 0
    """How many locks whose names match were not read."""
    problems: list[Problem] = field(default_factory=list)
    unwritable: list[Problem] = field(default_factory=list)


def ask_each(
    usings: Iterable[str], question: Callable[[BaseLockBackend], Answer]
) -> tuple[dict[str, Answer], list[Problem]]:
    """Ask backends in parallel, as some may time out; return the answers and the problems."""

    def ask(using: str) -> Answer | Problem:
        try:
            return question(locks[using])
        except ERRORS as error:
            return Problem.of(using, error)
        finally:
            connections.close_all()  # a signal receiver may have opened one in this thread

    with ThreadPoolExecutor(AT_ONCE, "held-locks") as pool:
        found = dict(zip(usings, pool.map(ask, usings), strict=True))
    answers = {using: one for using, one in found.items() if not isinstance(one, Problem)}
    return answers, [one for one in found.values() if isinstance(one, Problem)]


def read_list(most: int, words: Sequence[str], using: str | None) -> Reading:
    """Read the held locks of every backend if there are at most ``most``.

    Of more locks, read at most ``most`` whose names contain each word, of one alias if ``using`` is
    given, those with the latest lease end. A backend that is not available hides no other.
    """
    try:
        asked = list(locks)
    except InvalidLockBackend as error:
        return Reading(problems=[Problem.of("LOCKS", error)])
    indexes, problems = ask_each(asked, lambda one: one.read_index())
    is_whole = sum(map(len, indexes.values())) <= most
    found = [
        (end, alias, name)
        for alias, index in indexes.items()
        for name, end in index.items()
        if is_whole or (using in (None, alias) and all(word in name.casefold() for word in words))
    ]
    rows, silent = read_rows([(alias, name) for _, alias, name in nlargest(most, found)])
    gone = {problem.using for problem in silent}
    total = sum(len(index) for alias, index in indexes.items() if visible(alias) not in gone)
    problems += silent
    return Reading(
        rows,
        len(rows) if is_whole else total,
        is_whole,
        max(0, len(found) - most),
        problems,
        unwritable(asked, problems),
    )


def read_rows(keys: Sequence[tuple[str, str]]) -> tuple[list[HeldLock], list[Problem]]:
    """Read the locks with these (alias, name), in order, without those that are free."""
    names: dict[str, list[str]] = {}
    for using, name in keys:
        names.setdefault(using, []).append(name)

    def read(backend: BaseLockBackend) -> Iterator[HeldLock]:
        for holder in backend.holders_of(names[backend.alias]):
            row = HeldLock.of(holder.using, holder.name, holder.token_id)
            row.holder = holder
            row.attention = attention_of(holder)
            yield row

    answers, problems = ask_each(names, lambda backend: list(read(backend)))
    found = {(row.using, row.name): row for answer in answers.values() for row in answer}
    return [found[key] for key in dict.fromkeys(keys) if key in found], problems


def unwritable(among: Iterable[str], silent: Iterable[Problem] = ()) -> list[Problem]:
    """Return the aliases whose server refuses writes; those with problems are not asked."""
    skipped = {problem.using for problem in silent}
    asked = [using for using in sorted(set(among)) if visible(using) not in skipped]
    reasons, _ = ask_each(asked, unwritable_because)
    return [Problem(visible(using), visible(str(why))) for using, why in reasons.items() if why]
