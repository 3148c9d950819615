"""Warns of servers that refuse writes, on the pages that release locks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from weakref import WeakKeyDictionary

from django_redis_lock.admin.reading import ERRORS, Problem, ask_each
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.handler import locks
from django_redis_lock.operators.writability import Reason, unwritable_because
from django_redis_lock.support.text import visible

KEPT_FOR = 1.0
"""Seconds for which an answer serves all pages of this process."""

_told: WeakKeyDictionary[BaseLockBackend, tuple[float, Reason]] = WeakKeyDictionary()


def unwritable(among: Iterable[str], silent: Iterable[Problem]) -> list[Problem]:
    """Return the aliases whose server refuses writes; those with problems are not asked."""
    skipped = {problem.using for problem in silent}
    backends: dict[str, BaseLockBackend] = {}
    for using in sorted(set(among)):
        with suppress(*ERRORS):
            if visible(using) not in skipped:
                backends[using] = locks[using]
    now = monotonic()
    outdated = [
        using for using, backend in backends.items() if _told.get(backend, (0.0, ""))[0] <= now
    ]
    if outdated:
        answers, _ = ask_each(
            dict.fromkeys(outdated), lambda backend, _: unwritable_because(backend)
        )
        for using, why in answers.items():
            _told[backends[using]] = (monotonic() + KEPT_FOR, why)
    whys = {using: _told.get(backend, (0.0, ""))[1] for using, backend in backends.items()}
    return [Problem(visible(using), visible(str(why))) for using, why in whys.items() if why]
