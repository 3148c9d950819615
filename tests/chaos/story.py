"""From events to what happened: requests, holds, and what disturbed them; and the verdict."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.chaos.history import Event

ALARMS = ("died", "stuck", "left", "logged", "failed")
"""Events that are violations by themselves."""
STARTS = ("acquire", "take_over")
ENDS = ("release", "detach")
OPERATIONS = (*STARTS, *ENDS, "confirm", "extend", "reacquire", "downgrade")
Span = tuple[float, float]


class Spans:
    """A set of moments, as spans that do not touch each other."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def touch(self, start: float, end: float) -> bool:
        return bisect_left(self._ends, start) < bisect_right(self._starts, end)


@dataclass(frozen=True)
class Violation:
    rule: str
    text: str
    moment: float = 0.0


@dataclass
class Verdict:
    violations: list[Violation] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Request:
    """A call of ``acquire()`` or ``take_over()``, and the hold that it led to."""

    handle: str
    process: int
    name: str
    lease: float
    renewed: bool
    mode: str
    began: float
    ticket: str | None = None
    """Of the hold that it took over."""
    hold: Hold | None = None

    def __str__(self) -> str:
        return f"request {self.handle} for {self.name!r}"


@dataclass(slots=True, eq=False)
class Hold:
    """A lock acquired, until it was released, lost, or left to its lease."""

    request: Request
    fence: int
    acquired: float
    """When ``acquire()`` returned."""
    until: float
    """The end of the lease as the handle last promised it; minus infinity during an extension."""
    confirmed: float
    """When the last call began by which the server confirmed it; ``acquire()`` is one."""
    promises: list[tuple[float, float]] = field(default_factory=list)
    """(from when, until when) the handle promised to hold; a promise ends with the next."""
    releasing: float | None = None
    """When its release or detachment was first requested."""
    shared: bool = False
    """Whether it is held together with others, at its end at least."""

    def __str__(self) -> str:
        return f"hold {self.request.handle} of {self.request.name!r} (fence {self.fence})"

    def promised(self, moment: float) -> float:
        """Return until when the handle promised, at a moment, that the lock is held."""
        return next((until for at, until in reversed(self.promises) if at <= moment), -math.inf)


class Story:
    def __init__(self, events: Iterable[Event]) -> None:
        self.holds: list[Hold] = []
        self.troubles: list[tuple[Request, Event]] = []
        """Errors that reached a caller."""
        self.forced: list[Event] = []
        """Forced releases; the fence is None if the server did not answer."""
        self.alarms: list[Event] = []
        self.faults: Counter[str] = Counter()
        self.kinds: Counter[tuple[str, str]] = Counter()
        """How many events there are, by f and type."""
        self._spans: defaultdict[str, list[Span]] = defaultdict(list)
        self._still: defaultdict[int, list[Span]] = defaultdict(list)
        self._requests: dict[str, Request] = {}
        self._invoked: dict[tuple[str, str], float] = {}
        """When the last operation of a handle and f was invoked."""
        for event in events:
            f, type = event["f"], event["type"]
            self.kinds[f, type] += 1
            if f in ALARMS:
                self.alarms.append(event)
            elif f in OPERATIONS:
                getattr(self, f"_on_{type}")(event)
            elif reader := getattr(self, f"_on_{f}", None):
                reader(event)
            elif "since" in event:
                self._spans[f].append((event["since"], event["time"]))
        self.server = Spans(self._spans["outage"])
        """When the server did not answer, or was slow, or refused."""
        self.cuts = Spans(self._spans["cut"])
        self.wipes = self._spans["wiped"]
        self.lost_votes = self._spans["vote_lost"]
        self.missing_votes = Spans(self._spans["vote_missing"])
        """When one of several servers did not vote."""
        self.unsettled = self._spans["unsettled"]
        self._still_in = {process: Spans(spans) for process, spans in self._still.items()}

    def stood_still(self, process: int) -> Spans:
        """Return when a worker did not run, for whatever reason."""
        return self._still_in.get(process, _NEVER)

    def holds_by_name(self) -> Iterator[list[Hold]]:
        """Yield the holds of each lock, by rising fences."""
        found: defaultdict[str, list[Hold]] = defaultdict(list)
        for hold in sorted(self.holds, key=lambda hold: hold.fence):
            found[hold.request.name].append(hold)
        yield from found.values()

    # What a worker recorded.

    def _on_invoke(self, event: Event) -> None:
        f, handle, time = event["f"], event["handle"], event["time"]
        self._invoked[handle, f] = time
        if f in STARTS:
            fields = ("handle", "process", "name", "lease", "renewed", "mode")
            request = Request(*(event[key] for key in fields), time, event.get("ticket"))
            self._requests[handle] = request
            return
        hold = self._hold(event)
        if f in ("extend", "reacquire"):
            hold.until = -math.inf
        if f != "confirm":
            hold.promises.append((time, -math.inf))
        hold.shared |= f == "downgrade"
        if f in ENDS and hold.releasing is None:
            hold.releasing = time

    def _on_ok(self, event: Event) -> None:
        f, handle, time = event["f"], event["handle"], event["time"]
        if f in STARTS:
            request = self._requests[handle]
            hold = Hold(request, event["fence"], time, event["until"], confirmed=request.began)
            hold.shared = request.mode == "shared"
            request.hold = hold
            self.holds.append(hold)
        elif f not in ENDS:
            hold = self._hold(event)
            hold.confirmed = max(hold.confirmed, self._invoked[handle, f])
            hold.until = event["until"]
        else:
            return
        hold.promises.append((time, hold.until))

    def _on_fail(self, event: Event) -> None:
        if "error" in event:
            since = self._invoked[event["handle"], event["f"]]
            self.troubles.append((self._requests[event["handle"]], {**event, "since": since}))

    def _on_info(self, event: Event) -> None:
        self._on_fail(event)

    def _on_lost(self, event: Event) -> None:
        if (hold := self._requests[event["handle"]].hold) is not None:
            hold.promises.append((event["time"], -math.inf))

    def _hold(self, event: Event) -> Hold:
        hold = self._requests[event["handle"]].hold
        assert hold is not None, f"nothing held: {event}"
        return hold

    def _on_stalled(self, event: Event) -> None:
        self._still[event["process"]].append((event["since"], event["time"]))

    # What the driver recorded.

    def _on_paused(self, event: Event) -> None:
        self._still[event["worker"]].append((event["since"], event["time"]))

    def _on_cut(self, event: Event) -> None:
        self._spans["cut"].append((event["time"], event["time"]))

    def _on_forced(self, event: Event) -> None:
        self.forced.append(event)

    def _on_fault(self, event: Event) -> None:
        self.faults[event["what"]] += 1


_NEVER = Spans()
