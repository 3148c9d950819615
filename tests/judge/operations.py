"""What a recorded history says of each lock; ``tests/chaos/history.py`` describes the format.

What holds a lock is a handle, or the ticket of one that was detached. A call of unknown outcome
happened if something shows it. Else it may have ended a hold, and no more: one less breaks no rule.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

Event = dict[str, Any]
KINDS = {"acquire": "take", "take_over": "swap", "detach": "swap", "downgrade": "share"}
KINDS |= {"set_limit": "limit", "release": "end"}
CHANGES = {"release", "detach", "extend", "reacquire"}
"""What may end a promise, or make it shorter."""
ENDINGS = ("wiped", "unsettled", "vote_lost", "forced")
"""What may end holds before their leases do."""
DISTURBANCES = dict.fromkeys([*ENDINGS, "vote_missing", "outage", "cut"], "")
DISTURBANCES |= {"stalled": "process", "paused": "worker", "killed": "worker"}
"""What may cost a waiter its place, and a holder what was handed off to it, in which process."""


@dataclass(eq=False)
class Operation:
    """A call that took effect at a moment from its start to its end; without an end, if at all."""

    kind: str  # take, swap (in place of the hold ``of`` another), share, keep (it was held), limit
    hold: str
    of: str
    start: float
    asked: Event
    end: float = inf
    answer: Event = field(default_factory=lambda: {"time": inf})
    queued: float = inf
    fence: int = 0  # of a hold that begins, or begins to be shared

    @property
    def shows(self) -> bool:  # that the lock was held
        return self.end < inf and self.kind in {"take", "swap", "share", "keep"}


class History:
    """What can be judged of one run: its ``facts``, and by the names of locks their operations."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=lambda event: event["time"])
        (self.facts,) = [event for event in self.events if event["f"] == "run"] or [{}]
        self.locks: defaultdict[str, list[Operation]] = defaultdict(list)
        self.fenced: dict[str, list[Operation]] = {}  # from the greatest fence on
        self.waiters: defaultdict[str, list[Operation]] = defaultdict(list)
        self._shown: defaultdict[str, list[Operation]] = defaultdict(list)  # what shows a hold
        self.over: defaultdict[str, float] = defaultdict(lambda: inf)
        """From when on a hold may have ended, once what shows it is over."""
        self._faults: list[tuple[float, float, set[Any], Event]] = []
        self._excused: set[str] = set()
        handles: defaultdict[str, list[Operation]] = defaultdict(list)
        for event in self.events:
            if handle := event.get("handle"):
                _read(event, handle, handles[handle])
            elif event["f"] in DISTURBANCES:
                whom = {event.get("name"), event.get(DISTURBANCES[event["f"]])} - {None}
                self._faults.append((event.get("since", event["time"]), event["time"], whom, event))
        for calls in reversed(handles.values()):  # who took over is before who detached
            self._add(calls, calls[0])
        for name, operations in self.locks.items():
            operations.sort(key=lambda one: one.start)
            for hold in {one.hold: one for one in operations if one.shows}:
                self._end(name, hold, self._shown[hold])
            operations[:] = [one for one in operations if not {one.hold, one.of} & self._excused]
            fenced = [one for one in operations if one.fence]
            self.fenced[name] = sorted(fenced, key=lambda one: one.fence, reverse=True)
            for start, end, _, event in self._faults:
                if event["f"] == "wiped":  # an operator's limit as well
                    operations.append(Operation("limit", "", "", start, event, end))

    def _add(self, calls: list[Operation], first: Operation) -> None:
        """Add what shows that a handle held its lock, and from when on nothing promises it."""
        name, early = first.asked["name"], self.facts.get("tolerance", 0.0)
        self.waiters[name] += [first] if first.queued < inf else []
        for one in calls:
            if "until" in one.answer:
                self.over[first.hold] = one.answer["until"] - early
            elif one.asked["f"] in CHANGES and one.kind != "refused":
                self.over[first.hold] = min(self.over[first.hold], one.start)
        for one in reversed(calls):
            if one.asked["f"] == "detach":
                self.over[one.hold] = one.asked["until"] - early
                if self._disturbance(first, one.start) <= one.end:  # sent twice, perhaps too late
                    one.end = inf
            if one.kind in {"take", "swap"}:
                one.end = min([one.end, *(each.end for each in self._shown[one.hold])])
            for hold in {one.hold, one.of} if one.shows else ():
                self._shown[hold].append(one)
            if one.shows or one.kind in {"share", "limit"}:
                self.locks[name].append(one)

    def _end(self, name: str, hold: str, shows: list[Operation]) -> None:
        """Find out from when on others may have ended a hold; what shows it came before that."""
        keys = {hold, *(one.answer.get("fence") for one in shows)}
        begun, first = min(one.start for one in shows), min(one.end for one in shows)
        last = max(one.start for one in shows)
        for start, end, whom, event in self._faults:
            ids = {event.get("fence"), event.get("token_id")} - {None}
            certain = bool(ids & keys) or (event["f"] == "wiped" and first <= start)
            if event["f"] in ENDINGS and whom <= {name} and (certain or not ids):
                if certain or end >= last:
                    self.over[hold] = min(self.over[hold], start)
                for one in shows if certain else ():
                    one.end = min(one.end, end)
        if len(shows) == 1 and shows[0].queued < inf:  # it may not have been claimed in time
            self.over[hold] = min(self.over[hold], self._disturbance(shows[0], shows[0].start))
        self.over[hold] = max(self.over[hold], last)
        excuses = [each for each in self._faults if each[3]["f"] in self.facts.get("excused", ())]
        touched = any(begun <= end and start <= self.over[hold] for start, end, *_ in excuses)
        if touched or any(one.of in self._excused for one in shows):  # what it follows is unknown
            self._excused.add(hold)

    def leaves(self, waiter: Operation) -> float:
        """Return from when on a waiter may have left the queue, or lost its place."""
        answer, wait = waiter.answer.get("type", "ok"), waiter.asked["wait"] or 0
        if answer == "info" or waiter.asked["mode"] == "shared":
            wait = 0  # it is unknown why it was given up, or a share may have been granted before
        gave_up = inf if answer == "ok" else waiter.start + wait
        return min(gave_up, self._disturbance(waiter, waiter.queued))

    def _disturbance(self, one: Operation, after: float) -> float:
        """Return when, from a moment on, its process did not run or a server was broken."""
        asked = {one.asked["process"], one.asked["name"]}
        spans = [each for each in self._faults if each[1] >= after and each[2] <= asked]
        return min((max(start, after) for start, *_ in spans), default=inf)


def _read(event: Event, handle: str, calls: list[Operation]) -> None:
    f, time, ticket = event["f"], event["time"], event.get("ticket", "")
    if f == "queued":
        calls[0].queued = time
    elif event["type"] == "invoke":
        hold, of = (ticket, handle) if f == "detach" else (handle, ticket)
        calls.append(Operation(KINDS.get(f, "keep"), hold, of, time, event))
    elif call := next((one for one in reversed(calls) if one.asked["f"] == f), None):
        call.answer, call.end = event, inf if event["type"] == "info" else time
        call.kind = "refused" if event["type"] == "fail" else call.kind
        call.fence = event.get("fence", 0) if call.kind in {"take", "swap", "share"} else 0
