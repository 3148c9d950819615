"""From events to what happened: requests, holds, and what disturbed them; and the verdict."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.history import Event
from tests.chaos.spans import Span, Spans

ALARMS = ("died", "stuck", "left", "logged", "failed")
"""Events that are violations by themselves."""


@dataclass(frozen=True)
class Violation:
    """Something that must not happen, and where to look for it."""

    rule: str
    text: str
    handles: tuple[str, ...] = ()
    moment: float = 0.0


@dataclass
class Verdict:
    """The outcome of a run."""

    violations: list[Violation] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Request:
    """A call of ``acquire()``, and how it ended."""

    handle: str
    process: int
    name: str
    began: float
    wait: float | None
    lease: float
    renewed: bool
    ended: float = math.inf
    outcome: str = ""
    """acquired, refused, gave_up, unavailable, lost or failed; killed with its process."""
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
    granted: float
    """When the server granted it, which the fence tells; never after ``acquired``."""
    granted_after: float
    """When the server granted it at the earliest: the request if the fence tells no time."""
    fence_moment: float
    """The fence, read as a moment of the server's clock."""
    until: float
    """The end of the lease as the handle last promised it."""
    latest_end: float
    """When the lease ended at the latest if no other caller ended it."""
    confirmed: float
    """When the last call began by which the server confirmed it; ``acquire()`` is one."""
    promises: list[tuple[float, float]] = field(default_factory=list)
    """(from when, until when) the handle promised to hold; a promise ends with the next."""
    asked: float | None = None
    """The lease that an extension under way may give."""
    releasing: float | None = None
    """When its release was first requested."""
    ended: float | None = None
    """When it was known to be over: released, or found lost."""

    def __str__(self) -> str:
        return f"hold {self.request.handle} of {self.request.name!r} (fence {self.fence})"

    @property
    def name(self) -> str:
        return self.request.name

    def promised(self, moment: float) -> float:
        """Return until when the handle promised, at a moment, that the lock is held."""
        return next((until for at, until in reversed(self.promises) if at <= moment), -math.inf)


@dataclass(slots=True, eq=False)
class Trouble:
    """An error that reached a caller."""

    kind: str
    request: Request
    since: float
    at: float
    doing: str
    error: str
    until: float
    """The end of the lease that the handle had promised; minus infinity if the promise was over."""


class Story:
    """A whole run."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.requests: list[Request] = []
        self.holds: list[Hold] = []
        self.troubles: list[Trouble] = []
        self.forced: list[Event] = []
        """Forced releases; the fence is None if the server did not answer."""
        self.alarms: list[Event] = []
        self.cuts: list[float] = []
        self.faults: Counter[str] = Counter()
        self.killed: dict[int, Span] = {}
        self.remembered = 0.0
        """Seconds for which a dead waiter may still be granted a lock."""
        self.end = 0.0
        self._spans: defaultdict[str, list[Span]] = defaultdict(list)
        self._stalls: defaultdict[int, list[Span]] = defaultdict(list)
        self._pauses: defaultdict[int, list[Span]] = defaultdict(list)
        self._by_handle: dict[str, Request] = {}
        self._clock: list[tuple[float, float]] = []
        for event in events:
            self.end = max(self.end, event["at"])
            if event["kind"] in ALARMS:
                self.alarms.append(event)
            if reader := getattr(self, f"_on_{event['kind']}", None):
                reader(event)
            elif "since" in event:
                self._spans[event["kind"]].append((event["since"], event["at"]))
        self._conclude()

    def _conclude(self) -> None:
        self.server = Spans(self._spans["outage"])
        """When the server did not answer, or was slow."""
        self.refusals = Spans(self._spans["refusal"])
        """When the server answered, and refused."""
        self.wipes = self._spans["wiped"]
        self.lost_votes = self._spans["vote_lost"]
        self.missing_votes = Spans(self._spans["vote_missing"])
        """When one of several servers did not vote."""
        self.unsettled = self._spans["unsettled"]
        self._paused_in = {process: Spans(spans) for process, spans in self._pauses.items()}
        self._still_in = {
            process: Spans([*self._stalls[process], *self._pauses[process]])
            for process in {*self._stalls, *self._pauses}
        }
        for request in self.requests:
            if not request.outcome:
                request.ended = self.end
                if request.process in self.killed:
                    request.outcome, request.ended = "killed", self.killed[request.process][0]
        for hold in self.holds:
            self._conclude_lease(hold)

    def _conclude_lease(self, hold: Hold) -> None:
        """Work out how far a lease can have reached that is not known to have ended."""
        last_seen = self.killed.get(hold.request.process, (0.0, self.end))[1]
        if hold.asked is not None:
            hold.latest_end = max(hold.latest_end, last_seen + hold.asked)
        if hold.request.renewed:
            renewed_at = last_seen if hold.releasing is None else hold.releasing
            hold.latest_end = max(hold.latest_end, renewed_at + hold.request.lease)

    def pauses(self, process: int) -> Spans:
        """Return when a worker was paused."""
        return self._paused_in.get(process, _NEVER)

    def stood_still(self, process: int) -> Spans:
        """Return when a worker did not run, for whatever reason."""
        return self._still_in.get(process, _NEVER)

    # What a worker recorded.

    def _on_requested(self, event: Event) -> None:
        fields = ("handle", "process", "name", "wait", "lease", "renewed")
        asked = {key: event[key] for key in fields}
        request = Request(**asked, began=event["at"])
        self.requests.append(request)
        self._by_handle[request.handle] = request

    def _on_acquired(self, event: Event) -> None:
        request = self._by_handle[event["handle"]]
        self._answered(event)
        by_fence = self._moment_of(event["fence"])
        granted = min(event["at"], max(request.began, by_fence))
        request.hold = Hold(
            request=request,
            fence=event["fence"],
            acquired=event["at"],
            granted=granted,
            granted_after=granted if self._clock else request.began,
            fence_moment=by_fence,
            until=event["until"],
            latest_end=event["at"] + request.lease,
            confirmed=request.began,
            promises=[(event["at"], event["until"])],
        )
        self.holds.append(request.hold)

    def _on_confirmed(self, event: Event) -> None:
        hold = self._hold(event)
        hold.confirmed = max(hold.confirmed, event["since"])
        hold.until = event["until"]
        hold.latest_end = event["until"] + event["at"] - event["since"]
        hold.asked = None
        hold.promises.append((event["at"], event["until"]))

    def _on_extending(self, event: Event) -> None:
        hold = self._hold(event)
        hold.asked = event["upto"]
        hold.promises.append((event["at"], -math.inf))

    def _on_releasing(self, event: Event) -> None:
        hold = self._hold(event)
        hold.promises.append((event["at"], -math.inf))
        if hold.releasing is None:
            hold.releasing = event["at"]

    def _on_told(self, event: Event) -> None:
        hold = self._by_handle[event["handle"]].hold
        if hold is not None:
            hold.promises.append((event["at"], -math.inf))

    def _on_released(self, event: Event) -> None:
        self._hold(event).ended = event["at"]

    def _answered(self, event: Event) -> None:
        request = self._by_handle.get(event.get("handle", ""))
        if request is not None and request.hold is None:
            request.ended, request.outcome = event["at"], event["kind"]

    _on_refused = _on_gave_up = _on_failed = _answered

    def _on_lost(self, event: Event) -> None:
        self._answered(event)
        request = self._by_handle[event["handle"]]
        hold, kind, at = request.hold, event["kind"], event["at"]
        until = -math.inf
        if hold is not None:
            if hold.asked is None:
                until = hold.until
            else:
                hold.latest_end = max(hold.latest_end, at + hold.asked)
            if kind == "lost" and hold.ended is None:
                hold.ended = at
        details = event["doing"], event["error"]
        self.troubles.append(Trouble(kind, request, event["since"], at, *details, until))

    _on_unavailable = _on_lost

    def _hold(self, event: Event) -> Hold:
        hold = self._by_handle[event["handle"]].hold
        assert hold is not None, f"nothing held: {event}"
        return hold

    def _on_stalled(self, event: Event) -> None:
        self._stalls[event["process"]].append((event["since"], event["at"]))

    # What the driver recorded.

    def _on_clock(self, event: Event) -> None:
        self._clock.append((event["wall"], event["at"]))

    def _moment_of(self, fence: int) -> float:
        """Return a fence, the wall clock in microseconds, as a moment of the monotonic clock."""
        if not self._clock:
            return math.inf  # without a comparison of the clocks it tells nothing
        wall = fence / 1e6
        index = max(0, bisect_right(self._clock, (wall, 0.0)) - 1)
        then, at = self._clock[index]
        return at + wall - then

    def _on_killed(self, event: Event) -> None:
        self.killed[event["worker"]] = (event["since"], event["at"])
        self.remembered = event.get("remembered", 0.0)

    def _on_paused(self, event: Event) -> None:
        self._pauses[event["worker"]].append((event["since"], event["at"]))

    def _on_outage(self, event: Event) -> None:
        span = event["since"], event["at"]
        self._spans["outage"].append(span)
        if event["what"] == "refused":
            self._spans["refusal"].append(span)

    def _on_cut(self, event: Event) -> None:
        self.cuts.append(event["at"])

    def _on_forced(self, event: Event) -> None:
        self.forced.append(event)

    def _on_fault(self, event: Event) -> None:
        self.faults[event["what"]] += 1


_NEVER = Spans()


def by_name(items: Iterable[Any]) -> dict[str, list[Any]]:
    """Return requests or holds by the name of their lock."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for item in items:
        found[item.name].append(item)
    return dict(found)
