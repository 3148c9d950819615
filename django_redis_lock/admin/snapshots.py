"""Which locks are held, read once for all pages of a process that look at nearly the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from heapq import merge
from itertools import groupby
from operator import itemgetter
from time import monotonic
from typing import Any

from django.core.signals import setting_changed

from django_redis_lock.admin.names import Names
from django_redis_lock.admin.reading import Problem, aliases, ask_each, read_rows
from django_redis_lock.backends.index import Index, names_of
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.support.process import forget_after_fork
from django_redis_lock.support.text import visible

FEW = 200
"""Up to so many locks are read for each page: that costs less than the page itself."""
KEPT_FOR = 40
"""A snapshot of more locks is kept for so many times the seconds that it took."""
LEAST, MOST = 1.0, 30.0
"""Seconds for which it is kept, at least and at most."""
ANY_NAME = "-"
"""The name asked for to see whether a backend answers."""


@dataclass
class Snapshot:
    """The names of the held locks, the latest lease end first, and the locks if they are few."""

    names: Names = field(default_factory=Names)
    rows: list[HeldLock] | None = None
    """The locks themselves; ``None`` if there are too many."""
    problems: list[Problem] = field(default_factory=list)
    read_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    begun: float = field(default_factory=monotonic)
    kept_until: float = 0.0

    @property
    def age(self) -> float:
        """Seconds since its reading began; 0.0 if it was read for one page only."""
        return monotonic() - self.begun if self.kept_until else 0.0

    @property
    def total(self) -> int:
        return len(self.names) if self.rows is None else len(self.rows)

    def read(self, most_records: int) -> None:
        """Read the locks themselves if there are at most ``most_records``."""
        if self.rows is None and len(self.names) <= most_records:
            self.rows, problems = read_rows(self.names.keys(range(len(self.names))))
            self.problems += problems

    def asked_again(self, most_records: int) -> Snapshot:
        """Return it without the locks of backends that are unavailable by now."""
        known = {problem.using for problem in self.problems}
        asked = [using for using in aliases() if visible(using) not in known]
        answers, problems = ask_each(
            dict.fromkeys(asked), lambda backend, _: backend.holder(ANY_NAME)
        )
        if not problems:
            return self
        silent = set(asked) - set(answers)
        left = replace(
            self,
            names=self.names.without(silent),
            rows=self.rows and [row for row in self.rows if row.using not in silent],
            problems=self.problems + problems,
        )
        left.read(most_records)
        return left

    @cached_property
    def by_name(self) -> Sequence[int]:
        return self.names.by_name()


def take(most_records: int) -> Snapshot:
    """Read every backend; one that is unavailable does not hide the others."""
    snapshot = Snapshot()
    try:
        list(locks)
    except InvalidLockBackend as error:
        snapshot.problems.append(Problem.of("LOCKS", error))
        return snapshot
    indexes, snapshot.problems = ask_each(
        dict.fromkeys(aliases()), lambda backend, _: backend.read_index()
    )
    snapshot.names = Names(_latest_first(indexes))
    snapshot.read(most_records)
    if len(snapshot.names) > FEW:
        # A timeout does not tell what a snapshot costs, and may be over at once.
        worth = 0.0 if snapshot.problems else KEPT_FOR * (monotonic() - snapshot.begun)
        snapshot.kept_until = monotonic() + min(max(LEAST, worth), MOST)
    return snapshot


def _latest_first(indexes: Mapping[str, Index]) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield runs of names, each of one alias, the latest lease end first."""
    if len(indexes) == 1:
        yield from ((using, names_of(index)) for using, index in indexes.items())
        return

    def each(using: str) -> Iterator[tuple[float, str, str]]:
        return ((end, name, using) for name, end in indexes[using].latest())

    for using, run in groupby(merge(*map(each, indexes), reverse=True), key=itemgetter(2)):
        yield using, (name for _, name, _ in run)


class Snapshots:
    """The latest snapshot of this process. One thread takes it; the others wait for it."""

    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)
        setting_changed.connect(self._settings_changed)

    def after_fork(self) -> None:
        """Start over: a thread of the parent may have been taking one."""
        self._mutex = threading.Lock()
        self._latest: Snapshot | None = None
        self._coming: Future[Snapshot | None] | None = None

    def latest(self, most_records: int) -> Snapshot:
        """Return a snapshot that is recent enough, or take one."""
        with self._mutex:
            if self._latest is not None and monotonic() < self._latest.kept_until:
                return self._latest
            coming, mine = self._coming, Future[Snapshot | None]()
            if coming is None:
                self._coming = mine
                self._latest = None  # frees its memory while the next one is taken
        if coming is not None:
            return coming.result() or self.latest(most_records)
        snapshot = None
        try:
            snapshot = take(most_records)
        finally:
            with self._mutex:
                if self._coming is mine:  # else it may lack a release
                    self._coming, self._latest = None, snapshot
            mine.set_result(snapshot)
        return snapshot

    def forget(self) -> None:
        """Take a new one for the next page, after a release."""
        with self._mutex:
            self._coming = self._latest = None

    def _settings_changed(self, *, setting: str, **kwargs: Any) -> None:
        if setting == "LOCKS":
            self.forget()


snapshots = Snapshots()
