"""What a recorded history says of each lock; ``tests/chaos/history.py`` describes the format.

What holds a lock is a handle, or the ticket of one that was detached. A call of unknown outcome
happened if something shows it. Else it may have ended a hold, and no more: one less breaks no rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

Event = dict[str, Any]
Span = tuple[float, float, Event]
KINDS = {"acquire": "take", "take_over": "swap", "detach": "swap", "downgrade": "share"}
KINDS |= {"set_limit": "limit", "release": "end"}
BEGINNINGS = ("take", "swap", "share")
ENDINGS = ("wiped", "unsettled", "vote_lost", "forced")
"""What may end holds before their leases do."""
DISTURBANCES: dict[str, str | None] = {"stalled": "process", "paused": "worker", "killed": "worker"}
DISTURBANCES |= dict.fromkeys([*ENDINGS, "vote_missing", "outage", "cut"])
"""What may cost a waiter its place, and a holder what was handed off to it, in which process."""


@dataclass(eq=False)
class Operation:
    """A call that took effect at a moment from its start to its end; without an end, if at all."""

    kind: str
    """take, swap (in place of the hold ``of`` another), share, keep (it was held), gone, limit."""
    hold: str
    start: float
    asked: Event
    end: float = inf
    answer: Event = field(default_factory=lambda: {"time": inf})
    of: str = ""
    queued: float = inf
    leaves: float = inf
    """From when on a waiter may have left the queue, or lost its place."""
    ahead: list[Operation] = field(default_factory=list)
    """The waiters that were certainly queued before this was asked for."""

    @property
    def shows(self) -> bool:
        """Whether the lock was certainly held."""
        return self.kind in (*BEGINNINGS, "keep") and self.end < inf

    @property
    def fence(self) -> int | None:
        """The fence of a hold that begins, or begins to be shared."""
        return self.answer.get("fence") if self.kind in BEGINNINGS else None


class History:
    """What can be judged of a run: its ``facts``, and by the names of locks their operations."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=lambda event: event["time"])
        self.facts: Event = {}
        self.faults: defaultdict[str, list[Span]] = defaultdict(list)
        self.locks: defaultdict[str, list[Operation]] = defaultdict(list)
        self.over: defaultdict[str, float] = defaultdict(lambda: inf)
        """From when on a hold may have ended, once all has happened that shows it."""
        self._calls: defaultdict[str, list[Operation]] = defaultdict(list)
        self._disturbed: defaultdict[int, list[Span]] = defaultdict(list)  # by process; 0: all
        self._holders: dict[str, str] = {}  # by token_id
        self._taken: dict[str, float] = {}  # when a ticket was taken over, at the latest
        for event in self.events:
            if handle := event.get("handle"):
                self._read(event, handle, self._calls[handle])
            elif event["f"] == "run":
                self.facts = event
            else:
                self._read_fault(event)
        for calls in self._calls.values():
            self._add(calls, self.locks[calls[0].asked["name"]])
        for name, operations in self.locks.items():
            self._end(name, operations)
            self._queue(name, operations)

    def _read(self, event: Event, handle: str, calls: list[Operation]) -> None:
        f, time = event["f"], event["time"]
        if f == "queued":
            calls[0].queued = time
        elif f == "lost":
            calls.append(Operation("gone", handle, time, event, time))
        elif event["type"] == "invoke":
            calls.append(Operation(KINDS.get(f, "keep"), handle, time, event))
        elif call := next((one for one in reversed(calls) if one.asked["f"] == f), None):
            call.answer, call.end = event, inf if event["type"] == "info" else time
            if event["type"] == "fail":
                call.kind = "refused" if call is calls[0] else "gone"
            if "token_id" in event:
                self._holders[event["token_id"]] = handle
            if f == "take_over" and event["type"] == "ok":
                self._taken[call.asked["ticket"]] = time

    def _read_fault(self, event: Event) -> None:
        f, span = event["f"], (event.get("since", event["time"]), event["time"], event)
        self.faults[f].append(span)
        if f in DISTURBANCES:
            self._disturbed[event.get(DISTURBANCES[f], 0)].append(span)

    def _add(self, calls: list[Operation], operations: list[Operation]) -> None:
        """Add what shows that a handle held its lock or did not, and when its promise is over."""
        first, early = calls[0], self.facts.get("tolerance", 0.0)
        for one in calls[1:]:
            if one.kind == "swap":  # it was detached; if it was sent twice, perhaps too late
                one.hold, one.of = one.asked["ticket"], one.hold
                unsure = self._disturbance(first, one.start) <= one.end
                one.end = min(inf if unsure else one.end, self._taken.get(one.hold, inf))
                self.over[one.hold] = one.asked["until"] - early
        promises = [number for number, one in enumerate(calls) if "until" in one.answer]
        if first.kind == "limit":
            operations.append(first)
        elif promises:
            first.end = min(one.end for one in calls if one.shows)
            if first.kind == "swap":
                first.of = self._holders.get(first.asked["ticket"], first.asked["ticket"])
            operations += [one for one in calls if one.shows or one.kind in {"share", "gone"}]
            self.over[first.hold] = calls[promises[-1]].answer["until"] - early
            for one in calls[promises[-1] + 1 :]:
                if one.kind in {"end", "swap"} or one.asked["f"] in {"extend", "reacquire"}:
                    self.over[first.hold] = min(self.over[first.hold], one.start)

    def _end(self, name: str, operations: list[Operation]) -> None:
        """Find out when others may have ended holds, and leave out those that are excused."""
        shown: defaultdict[str, list[Operation]] = defaultdict(list)
        for one in operations:
            for hold in {one.hold, one.of} - {""} if one.shows else ():
                shown[hold].append(one)
        dropped: set[str] = set()
        for hold, shows in shown.items():
            self.over[hold] = min(self.over[hold], *self._endings(name, hold, shows), inf)
            last = max(self.over[hold], shows[-1].end)
            excuses = [span for f in self.facts.get("excused", ()) for span in self.faults[f]]
            if any(shows[0].start <= end and start <= last for start, end, _ in excuses):
                dropped.add(hold)
        for one in sorted(operations, key=lambda one: one.start):
            if one.of in dropped:  # it is not known what it follows
                dropped.add(one.hold)
        operations[:] = [one for one in operations if not dropped & {one.hold, one.of}]
        if any(one.kind == "limit" for one in operations):  # which a loss of data clears
            for start, end, event in self.faults["wiped"]:
                operations.append(Operation("limit", "", start, {**event, "limit": None}, end))

    def _endings(self, name: str, hold: str, shows: list[Operation]) -> Iterator[float]:
        """Yield from when on others may have ended a hold. What shows it came before that."""
        first, last = shows[0], shows[-1]
        keys = {hold, *(one.answer.get("fence") for one in shows if one.hold == hold)}
        for start, end, event in (span for f in ENDINGS for span in self.faults[f]):
            ids = {event.get("fence"), event.get("token_id")} - {None}  # of what was ended by force
            certain = bool(ids & keys) or (event["f"] == "wiped" and first.end <= start)
            if event.get("name", name) != name or (ids and not certain):
                continue
            for one in shows if certain else ():
                one.end = min(one.end, end)
            if end >= (first if certain else last).start:
                yield start
        if first is last and first.queued < inf:  # it may not have been claimed in time
            yield self._disturbance(first, first.start)

    def _queue(self, name: str, operations: list[Operation]) -> None:
        """Find out who was queued before each request, and until when for certain."""
        firsts = (calls[0] for calls in self._calls.values())
        waiters = [one for one in firsts if one.queued < inf and one.asked["name"] == name]
        for one in waiters:
            one.leaves = self._disturbance(one, one.queued)
            refused = one.kind == "refused"
            if refused and one.asked["mode"] == "exclusive":
                one.leaves = min(one.leaves, one.start + (one.asked["wait"] or 0))
            elif refused or one.answer["time"] < one.end:
                # It may have been granted a share before it gave up, or it is unknown why it did.
                one.leaves = one.start
        for one in operations:
            if one.kind == "take":
                one.ahead = [
                    each for each in waiters if each.queued < one.start < each.answer["time"]
                ]

    def _disturbance(self, call: Operation, after: float) -> float:
        """Return when, from a moment on, its process did not run or a server was broken."""
        name, spans = (
            call.asked["name"],
            self._disturbed[0] + self._disturbed[call.asked["process"]],
        )
        spans = [one for one in spans if one[1] >= after and one[2].get("name", name) == name]
        return min((max(start, after) for start, *_ in spans), default=inf)
