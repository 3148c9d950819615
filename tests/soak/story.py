"""From events to what happened: requests, holds, and what disturbed them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.soak.history import Event
from tests.soak.spans import Span, Spans


@dataclass(slots=True, eq=False)
class Request:
    """A call of ``acquire``, and how it ended."""

    handle: str
    process: int
    name: str
    began: float
    wait: float | None
    lease: float
    renewed: bool
    inside: str | None
    in_line: float = math.inf
    """When it first slept in the line."""
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
    """When ``acquire`` returned."""
    granted: float
    """When the server gave it, which the fence tells; never after ``acquired``."""
    fence_moment: float
    """The fence, read as a moment of the server's clock."""
    until: float
    """The end of the lease as the handle promised it last."""
    latest_end: float
    """When the lease ended at the latest, if nobody else set it: by its last known length."""
    confirmed: float
    """When the last call began by which the server confirmed it; ``acquire`` is one."""
    promises: list[tuple[float, float]] = field(default_factory=list)
    """(from when on, until when): what the handle promised; a promise ends with the next."""
    asked: float | None = None
    """The lease that an extension under way may bring about."""
    releasing: float | None = None
    """When its release was first asked for."""
    ended: float | None = None
    """When it was known to be over: released, or found lost."""

    def __str__(self) -> str:
        return f"hold {self.request.handle} of {self.request.name!r} (fence {self.fence})"

    @property
    def name(self) -> str:
        return self.request.name

    def promised(self, moment: float) -> float:
        """Return until when the handle promised at a moment that the lock is held."""
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
    """What the handle had promised by then; minus infinity where that was no promise any more."""


@dataclass(slots=True)
class Broken:
    """A release by force; the fence is unknown where the server did not answer."""

    name: str
    fence: int | None
    since: float
    at: float


class Story:
    """A whole run."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.requests: list[Request] = []
        self.holds: list[Hold] = []
        self.troubles: list[Trouble] = []
        self.breaks: list[Broken] = []
        self.wipes: list[Span] = []
        self.thinned: list[Span] = []
        """When one of several servers lost its data, and with it its vote for each holder."""
        self.unsettled: list[Span] = []
        """When leases may have ended before their time, though not all of them did."""
        self.postponed: list[tuple[float, float]] = []
        """When the ends of all leases were put off, and by how many seconds."""
        self.refusals = Spans()
        """When the server answered, and refused."""
        self.cuts: list[float] = []
        self.alarms: list[Event] = []
        """Events that are violations by themselves."""
        self.faults: Counter[str] = Counter()
        self.killed: dict[int, Span] = {}
        self.calm_at = math.inf
        self.end = 0.0
        self._outages: list[Span] = []
        self._refusals: list[Span] = []
        self._stalls: defaultdict[int, list[Span]] = defaultdict(list)
        self._paused: dict[int, float] = {}
        self._pauses: defaultdict[int, list[Span]] = defaultdict(list)
        self._by_handle: dict[str, Request] = {}
        self._clock: list[tuple[float, float]] = []
        readers: dict[str, Callable[[Event], None]] = {
            name.removeprefix("_on_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("_on_")
        }
        for event in events:
            self.end = max(self.end, event["at"])
            readers.get(event["kind"], self._ignore)(event)
        self._conclude()

    def _ignore(self, event: Event) -> None:
        """Pass over what is there for human readers."""

    def _conclude(self) -> None:
        self.server = Spans(self._outages)
        """When the server did not answer, or was slow."""
        self.refusals = Spans(self._refusals)
        for process, since in self._paused.items():
            self._pauses[process].append((since, self.end))
        self.pauses = {process: Spans(spans) for process, spans in self._pauses.items()}
        self._disturbed = {
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
        """Work out to when a lease can have reached that nobody is known to have ended."""
        last_word = self.killed.get(hold.request.process, (0.0, self.end))[1]
        if hold.asked is not None:
            hold.latest_end = max(hold.latest_end, last_word + hold.asked)
        if hold.request.renewed:
            renewed_at = last_word if hold.releasing is None else hold.releasing
            hold.latest_end = max(hold.latest_end, renewed_at + hold.request.lease)

    def process(self, number: int) -> Spans:
        """Return when a worker stood still."""
        return self._disturbed.get(number, _NEVER)

    # What a worker wrote.

    def _on_requested(self, event: Event) -> None:
        request = Request(
            handle=event["handle"],
            process=event["process"],
            name=event["name"],
            began=event["at"],
            wait=event["wait"],
            lease=event["lease"],
            renewed=event["renewed"],
            inside=event.get("inside"),
        )
        self.requests.append(request)
        self._by_handle[request.handle] = request

    def _on_in_line(self, event: Event) -> None:
        self._by_handle[event["handle"]].in_line = event["at"]

    def _on_acquired(self, event: Event) -> None:
        request = self._by_handle[event["handle"]]
        self._ended(request, event, "acquired")
        outer = self._by_handle[request.inside].hold if request.inside else None
        if outer is not None and outer.fence == event["fence"]:
            request.hold = outer  # entered again: one hold, two handles
            return
        by_fence = self._moment_of(event["fence"])
        granted = min(event["at"], max(request.began, by_fence))
        hold = request.hold = Hold(
            request=request,
            fence=event["fence"],
            acquired=event["at"],
            granted=granted,
            fence_moment=by_fence,
            until=event["until"],
            latest_end=event["at"] + request.lease,
            confirmed=request.began,
        )
        hold.promises.append((event["at"], event["until"]))
        self.holds.append(hold)

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
        request = self._by_handle[event["handle"]]
        hold = self._hold(event)
        if hold.request is request:  # else only the inner of two handles leaves
            hold.promises.append((event["at"], -math.inf))
            if hold.releasing is None:
                hold.releasing = event["at"]

    def _on_released(self, event: Event) -> None:
        hold = self._hold(event)
        if hold.request.handle == event["handle"]:
            hold.ended = event["at"]

    def _on_refused(self, event: Event) -> None:
        self._ended(self._by_handle[event["handle"]], event, "refused")

    def _on_gave_up(self, event: Event) -> None:
        request = self._by_handle[event["handle"]]
        if request.hold is None:
            self._ended(request, event, "gave_up")

    def _on_unavailable(self, event: Event) -> None:
        self._trouble(event)

    def _on_lost(self, event: Event) -> None:
        self._trouble(event)

    def _on_failed(self, event: Event) -> None:
        self.alarms.append(event)
        request = self._by_handle.get(event.get("handle", ""))
        if request is not None and request.hold is None:
            self._ended(request, event, "failed")

    def _trouble(self, event: Event) -> None:
        request = self._by_handle[event["handle"]]
        hold, kind, at = request.hold, event["kind"], event["at"]
        until = -math.inf
        if hold is None:
            self._ended(request, event, kind)
        else:
            until = hold.until
            if hold.asked is not None:
                until = -math.inf
                hold.latest_end = max(hold.latest_end, at + hold.asked)
            if kind == "lost" and hold.ended is None:
                hold.ended = at
        details = event["doing"], event["error"]
        self.troubles.append(Trouble(kind, request, event["since"], at, *details, until))

    def _on_stalled(self, event: Event) -> None:
        self._stalls[event["process"]].append((event["since"], event["at"]))

    def _hold(self, event: Event) -> Hold:
        hold = self._by_handle[event["handle"]].hold
        assert hold is not None, f"nothing held: {event}"
        return hold

    def _ended(self, request: Request, event: Event, outcome: str) -> None:
        request.ended, request.outcome = event["at"], outcome

    # What the driver wrote.

    def _on_clock(self, event: Event) -> None:
        self._clock.append((event["wall"], event["at"]))

    def _moment_of(self, fence: int) -> float:
        """Return a fence, which is a moment in microseconds, by the monotonic clock."""
        if not self._clock:
            return math.inf  # nobody compared the clocks, so it tells nothing
        wall = fence / 1e6
        index = max(0, bisect_right(self._clock, (wall, 0.0)) - 1)
        then, at = self._clock[index]
        return at + wall - then

    def _on_killed(self, event: Event) -> None:
        self.killed[event["worker"]] = (event["since"], event["at"])

    def _on_paused(self, event: Event) -> None:
        self._paused[event["worker"]] = event["at"]

    def _on_resumed(self, event: Event) -> None:
        worker = event["worker"]
        self._pauses[worker].append((self._paused.pop(worker), event["at"]))

    def _on_outage(self, event: Event) -> None:
        self._outages.append((event["since"], event["at"]))
        if event["what"] == "refused":
            self._refusals.append((event["since"], event["at"]))

    def _on_wiped(self, event: Event) -> None:
        self.wipes.append((event["since"], event["at"]))

    def _on_unsettled(self, event: Event) -> None:
        self.unsettled.append((event["since"], event["at"]))

    def _on_postponed(self, event: Event) -> None:
        self.postponed.append((event["since"], event["seconds"]))

    def _on_thinned(self, event: Event) -> None:
        self.thinned.append((event["since"], event["at"]))

    def _on_cut(self, event: Event) -> None:
        self.cuts.append(event["at"])

    def _on_broken(self, event: Event) -> None:
        self.breaks.append(Broken(event["name"], event["fence"], event["since"], event["at"]))

    def _on_fault(self, event: Event) -> None:
        self.faults[event["what"]] += 1

    def _on_calm(self, event: Event) -> None:
        self.calm_at = event["at"]

    def _alarm(self, event: Event) -> None:
        self.alarms.append(event)

    _on_died = _on_stuck = _on_left = _on_logged = _alarm


_NEVER = Spans()


def by_name(items: Iterable[Any]) -> dict[str, list[Any]]:
    """Return requests or holds by the name of their lock."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for item in items:
        found[item.name].append(item)
    return dict(found)
