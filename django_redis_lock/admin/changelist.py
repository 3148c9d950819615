"""Django's ``ChangeList`` over locks read from their backends, and its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from itertools import chain, islice, pairwise
from typing import Any, Literal, NamedTuple, TypeVar

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.db import connections
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_redis_lock.admin import wording
from django_redis_lock.admin.filters import BackendFilter, LockFilter
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import DEFAULT_ALIAS, locks
from django_redis_lock.models import HeldLock
from django_redis_lock.operators import ORDERS, attention_of, by_lock, unheld, unwritable_because
from django_redis_lock.protocol.records import Holder, Unheld
from django_redis_lock.support.text import escape_unprintable, without_passwords

Answer = TypeVar("Answer")
DEFAULT_COLUMN = "held_for"


class Column(NamedTuple):
    label: Any
    html: Callable[[Holder], str]
    key: Callable[[Holder], Any]
    """To sort by."""


COLUMNS = {
    "lock": Column(_("Name"), partial(wording.lock_html, brief=True), ORDERS["name"]),
    "holder": Column(_("Holder"), partial(wording.origin_html, brief=True), ORDERS["holder"]),
    "held_for": Column(_("Held for"), wording.held_for_html, ORDERS["held"]),
    "lease_left": Column(_("Lease left"), wording.lease_left_html, ORDERS["lease"]),
    "waiters": Column(_("Waiters"), wording.waiters_text, ORDERS["waiters"]),
    "fence": Column(
        _("Fence"),
        # Without digit separators, for comparing.
        lambda one: "-" if one.fence is None else str(one.fence),
        ORDERS["fence"],
    ),
    "backend": Column(_("Alias"), lambda one: wording.name_html(one.using), lambda one: one.using),
}
AGAIN: dict[str, Callable[[Holder], str]] = {
    "lock": lambda one: format_html(
        '<bdi title="{0}">&ndash; {0}</bdi>', escape_unprintable(one.name)
    ),
    "waiters": lambda one: SafeString("&nbsp;"),  # nothing would be shown as "-"
}
"""The cells that differ for a further holder of a lock, in the rows below the first."""


def column(name: str) -> Callable[[Any, HeldLock], SafeString]:
    """Return a column as a method of the admin; narrow screens show most labels in each row."""
    label, html, _key = COLUMNS[name]

    @admin.display(description=label, ordering=name)
    def display(self: Any, row: HeldLock) -> SafeString:
        assert row.holder, "the list has rows with holders only"
        shown = (AGAIN.get(name, html) if row.follows else html)(row.holder)
        if name in ("lock", "holder"):
            return SafeString(shown)
        return format_html('<span data-label="{}">{}</span>', label, shown)

    return display


class _Holders(list[Holder]):
    """In place of a queryset."""

    _clone = list.copy


class HeldLockChangeList(ChangeList):
    """Filters, searches, sorts and paginates in memory, without a database query."""

    model_admin: Any
    reading: Reading
    lock_count: int
    """How many locks the rows of all pages are of."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        specs, self.has_filters, unknown, _, self.has_active_filters = self.get_filters(request)
        if unknown:
            raise IncorrectLookupParameters
        self.filter_specs = specs
        self.clear_all_filters_qs = self.get_query_string(remove=list(self.get_filters_params()))
        filters = [spec for spec in specs if isinstance(spec, LockFilter)]
        using = next((spec.value() for spec in filters if isinstance(spec, BackendFilter)), None)
        words = self.query.casefold().split()
        self.reading = read_list(self.model_admin.most_records, words, using)
        holders = self.reading.holders
        if self.reading.is_whole:
            holders = [one for one in holders if _matches(one, words)]
        for spec in filters:
            spec.offer(self.reading.holders)
            holders = spec.queryset(request, holders)
        ordered = sorted(holders, key=lambda one: (one.name, one.using, one.fence or 0))
        names = dict(enumerate(map(str, self.list_display)))
        for index, direction in reversed(self.get_ordering_field_columns().items()):
            if column := COLUMNS.get(names.get(index, "")):
                ordered.sort(key=column.key, reverse=direction == "desc")
        groups = by_lock(ordered)
        self.lock_count = len(groups)
        return _Holders(chain(*groups.values()))

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
        read = self.reading
        self.full_result_count = len(read.holders) if read.is_whole else read.total
        self.show_admin_actions = bool(self.result_count)
        self.result_list = [HeldLock.of_holder(one) for one in self.result_list]
        for before, row in pairwise([None, *self.result_list]):
            row.follows = before is not None and before.pk == row.pk
            row.may_release = self.model_admin.has_release_permission(request, row)

    @property
    def waiting(self) -> int:
        both: Iterable[Holder | Unheld] = chain(self.reading.holders, self.reading.unheld)
        return sum({(one.using, one.name): one.waiters or 0 for one in both}.values())

    @property
    def unheld(self) -> list[dict[str, Any]]:
        return [
            {
                "key": HeldLock.of(one.using, one.name).pk,
                "name": wording.name_html(one.name),
                "backend": wording.name_html(one.using),
                "limit": one.limit and one.limit.limit,
                "by": one.limit and wording.wrappable(one.limit.by),
                "at": one.limit and wording.moment(one.limit.at),
                "waiters": wording.waiters_text(one),
                "parked": one.parked,
            }
            for one in self.reading.unheld
        ]

    @property
    def attention(self) -> int:
        return sum(attention_of(one) is not None for one in self.reading.holders)


def _matches(holder: Holder, words: list[str]) -> bool:
    """Whether the texts known of a lock contain each word."""
    known = [holder.name, holder.host, holder.thread, holder.task_name, holder.task_id]
    known += [str(holder.pid), *holder.metadata, *holder.metadata.values()]
    known += [*holder.marks, *holder.marks.values()]
    text = "\n".join(part for part in known if part).casefold()
    return all(word in text for word in words)


class Problem(NamedTuple):
    """A backend that is not available, or refuses writes, and why; safe to show."""

    using: str
    reason: str

    @classmethod
    def of(cls, using: str, error: Exception) -> Problem:
        text = str(error).removeprefix(f"LOCKS[{using!r}] is not available: ")  # the page says that
        return cls(using, escape_unprintable(without_passwords(text)))


@dataclass
class Reading:
    holders: list[Holder] = field(default_factory=list)
    total: int = 0
    """How many locks are held on the backends that answered."""
    is_whole: bool = True
    """Whether all of them were read; otherwise only names were searched."""
    unread: int = 0
    """How many locks whose names match were not read."""
    problems: list[Problem] = field(default_factory=list)
    unwritable: list[Problem] = field(default_factory=list)
    unheld: list[Unheld] = field(default_factory=list)
    """What is paused, and the limits and queues without a holder, whose names match."""


def ask_each(
    usings: Iterable[str], question: Callable[[BaseLockBackend], Answer]
) -> tuple[dict[str, Answer], list[Problem]]:
    """Ask backends in parallel, as some may time out; return the answers and the problems."""

    def ask(using: str) -> Answer | Problem:
        try:
            return question(locks[using])
        except (LockError, InvalidLockBackend) as error:
            return Problem.of(using, error)
        finally:
            connections.close_all()  # a signal receiver may have opened one in this thread

    with ThreadPoolExecutor(8, "held-locks") as pool:
        found = dict(zip(usings, pool.map(ask, usings), strict=True))
    answers = {using: one for using, one in found.items() if not isinstance(one, Problem)}
    return answers, [one for one in found.values() if isinstance(one, Problem)]


def read_list(most: int, words: Sequence[str], using: str | None) -> Reading:
    """Read the held locks of every backend if there are at most ``most``.

    Of more locks, read at most ``most`` whose names contain each word, of one alias if ``using`` is
    given, those with the latest lease end. A backend that is not available hides no other.
    """
    try:
        asked = list(locks) or [DEFAULT_ALIAS]  # whose error says how to write LOCKS
    except InvalidLockBackend as error:
        return Reading(problems=[Problem.of("LOCKS", error)])

    def matches(name: str) -> bool:
        return all(word in name.casefold() for word in words)

    indexes, problems = ask_each(asked, lambda one: one.read_index())
    is_whole = sum(map(len, indexes.values())) <= most
    found = [
        (end, alias, name)
        for alias, index in indexes.items()
        for name, end in index.items()
        if is_whole or (using in (None, alias) and matches(name))
    ]
    holders, silent = read_holders([(alias, name) for _, alias, name in nlargest(most, found)])
    gone = {problem.using for problem in silent}
    counts = (len(index) for alias, index in indexes.items() if alias not in gone)
    total, unread = len(by_lock(holders)) if is_whole else sum(counts), max(0, len(found) - most)
    problems += silent
    refusals = unwritable(asked, problems)
    failed = {problem.using for problem in problems}
    others, unknown = ask_each(
        [one for one in asked if using in (None, one) and one not in failed],
        lambda one: list(islice(unheld(one, matches, 100), 100)),  # the lowest limits
    )
    for problem in unknown:
        text = _("“%(using)s” can't list limits and queues without a holder: %(reason)s")
        refusals.append(Problem(problem.using, str(text % problem._asdict())))
    queues = [*chain(*others.values())]
    return Reading(holders, total, is_whole, unread, problems, refusals, queues)


def read_holders(keys: Sequence[tuple[str, str]]) -> tuple[list[Holder], list[Problem]]:
    """Read the holders of locks with these (alias, name), in order; several share one name."""
    names: dict[str, list[str]] = {}
    for using, name in keys:
        names.setdefault(using, []).append(name)
    answers, problems = ask_each(names, lambda one: list(one.holders_of(names[one.alias])))
    found = by_lock(chain(*answers.values()))
    return [one for key in dict.fromkeys(keys) for one in found.get(key, ())], problems


def unwritable(among: Iterable[str], silent: Iterable[Problem] = ()) -> list[Problem]:
    """Return the aliases whose server refuses writes; those with problems are not asked."""
    asked = set(among) - {problem.using for problem in silent}
    reasons, _ = ask_each(sorted(asked), unwritable_because)
    return [Problem(using, escape_unprintable(str(why))) for using, why in reasons.items() if why]
