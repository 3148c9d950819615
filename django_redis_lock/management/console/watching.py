"""``locks list --watch``: the list, redrawn until Ctrl-C."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from django_redis_lock.management.console import facts
from django_redis_lock.management.console.selection import Backends, in_order, narrowed, selected
from django_redis_lock.management.console.table import lines, shorten
from django_redis_lock.management.console.terminal import Terminal
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible


def watch(options: dict[str, Any], terminal: Terminal) -> None:
    """Draw the list, or write a JSON object per line, until interrupted."""
    picture = _Picture(options, terminal)
    while True:
        if terminal.as_json:
            _write(options, terminal)
        else:
            terminal.redraw(picture.draw())
        time.sleep(options["watch"])


def _write(options: dict[str, Any], terminal: Terminal) -> None:
    backends = Backends(options["using"], _drop)
    found = selected(options, backends.holders(options["pattern"]))
    moment = facts.iso(facts.now())
    terminal.json_object(
        "locks",
        map(facts.holder_facts, found),
        lambda: {"at": moment, **backends.not_known()},
        one_line=True,
    )


class _Look(NamedTuple):
    """The last answer of one backend."""

    moment: str
    held: int
    first: list[Holder]
    """Those that there is room for."""


class _Picture:
    """The list as drawn; of an unavailable backend it keeps the last answer."""

    def __init__(self, options: dict[str, Any], terminal: Terminal) -> None:
        self._options = options
        self._terminal = terminal
        self._last: dict[str, _Look] = {}

    def draw(self) -> str:
        """Ask every backend and return the picture."""
        options, terminal = self._options, self._terminal
        backends = Backends(options["using"], _drop)
        moment = time.strftime("%H:%M:%S")
        for backend in backends.all:
            found = backends.of(backend, lambda one: one.holders(options["pattern"]))
            look = self._look(moment, narrowed(options, found))
            if backend.alias not in backends.silent:
                self._last[backend.alias] = look
        notices = [
            *(terminal.style.ERROR(self._cut(text)) for text in backends.silent.values()),
            *(terminal.style.WARNING(self._cut(text)) for text in self._stale(backends)),
        ]
        head = [f"{moment}  {self._count(backends)}  every {options['watch']:g} s, Ctrl-C ends", ""]
        return "\n".join([*head, *notices, *self._rows(backends, len(head) + len(notices))]) + "\n"

    def _look(self, moment: str, found: Iterator[Holder]) -> _Look:
        options, terminal = self._options, self._terminal
        most = terminal.height if terminal.is_interactive else options["limit"]
        count = 0

        def counted() -> Iterator[Holder]:
            nonlocal count
            for one in found:
                count += 1
                yield one

        holders = counted()
        order = {"reverse": options["reverse"], "limit": most}
        first = list(in_order(holders, options["sort"], **order))
        deque(holders, maxlen=0)  # count the rest
        return _Look(moment, count, first)

    def _cut(self, text: str) -> str:
        return shorten(text, self._terminal.width or 1000)

    def _count(self, backends: Backends) -> str:
        """Return how many locks are held, without the unavailable backends."""
        answering = [one.alias for one in backends.all if one.alias not in backends.silent]
        held = sum(self._last[alias].held for alias in answering)
        if not backends.silent:
            return f"{held} held"
        which = ", ".join(repr(visible(alias)) for alias in backends.silent)
        return f"{held} held, {which} not known" if answering else "not known"

    def _stale(self, backends: Backends) -> Iterator[str]:
        for alias in backends.silent:
            if last := self._last.get(alias):
                which = f" of {visible(alias)!r}" if backends.many else ""
                grey = "greyed below" if self._terminal.colourful and last.held else "below"
                yield f"Last answer{which} at {last.moment}: {last.held} held, {grey}."

    def _rows(self, backends: Backends, above: int) -> list[str]:
        terminal, options = self._terminal, self._options
        looks = [look for one in backends.all if (look := self._last.get(one.alias))]
        rows: list[Holder] = [one for look in looks for one in look.first]
        if len(looks) > 1 and options["sort"]:
            order = {"reverse": options["reverse"], "limit": None}
            rows = list(in_order(iter(rows), options["sort"], **order))
        # Leave room for a heading, a count of the rest, and the cursor's line.
        room = max(0, terminal.height - above - 3) if terminal.is_interactive else None
        total = sum(look.held for look in looks)
        if options["limit"] is not None:
            total = min(total, options["limit"])
            room = min(total, room) if room is not None else total
        drawn = lines(
            facts.holder_columns(many=backends.many),
            rows[:room],
            width=terminal.width,
            style=terminal.style,
            fade=lambda one: terminal.fade if one.using in backends.silent else None,
        )
        rest = 0 if room is None else total - room
        return [*drawn, *([f"... and {rest} more"] if rest > 0 else [])]


def _drop(notice: str) -> None:
    """Drop a notice, which the picture or the JSON contains itself."""
