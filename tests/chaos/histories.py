"""Histories written by hand, for the tests of the checker: one for each way to break a promise."""

from __future__ import annotations

from typing import Any

from tests.chaos.history import Event

DRIVER = 0


class History:
    """Events of a run. Moments are seconds; a fence is the moment of its grant.

    The process of a handle is the number that it begins with.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.driver("clock", 0.0, wall=0.0)

    def note(self, kind: str, at: float, process: int = 1, **fields: Any) -> None:
        self.events.append({"kind": kind, "at": at, "process": process, **fields})

    def driver(self, kind: str, at: float, **fields: Any) -> None:
        self.note(kind, at, DRIVER, **fields)

    def of(self, handle: str, kind: str, at: float, **fields: Any) -> None:
        """Add any event of a handle."""
        self.note(kind, at, int(handle.split(".", maxsplit=1)[0]), handle=handle, **fields)

    def requests(self, handle: str, at: float, **asked: Any) -> None:
        defaults = {"name": "anvil", "wait": None, "lease": 2.0, "renewed": False}
        self.of(handle, "requested", at, **{**defaults, **asked})
        self.of(handle, "queued", at + 0.01)

    def acquires(self, handle: str, at: float, granted: float | None = None, **given: Any) -> None:
        """Let its acquire return, with a lease of 2 s that began with the grant."""
        granted = at if granted is None else granted
        defaults = {"fence": round(granted * 1e6), "until": granted + 2.0}
        self.of(handle, "acquired", at, **{**defaults, **given})

    def takes(self, handle: str, at: float, **asked: Any) -> None:
        """Let it acquire 0.1 s after its request."""
        self.requests(handle, at - 0.1, **asked)
        self.acquires(handle, at)

    def confirms(self, handle: str, since: float, at: float, until: float) -> None:
        self.of(handle, "confirmed", at, since=since, until=until, doing="ensure_held")

    def releases(self, handle: str, since: float, at: float) -> None:
        self.of(handle, "releasing", since)
        self.of(handle, "released", at, since=since)

    def keeps(self, handle: str, start: float, end: float) -> None:
        """Let it acquire, and release in the 0.1 s before the end."""
        self.acquires(handle, start)
        self.releases(handle, end - 0.1, end)

    def holds(self, handle: str, start: float, end: float, began: float | None = None) -> None:
        """Let it have the lock from start to end, confirmed all the time, and release it."""
        self.requests(handle, start - 0.001 if began is None else began)
        self.acquires(handle, start)
        self.confirms(handle, end - 0.002, end - 0.001, end + 1)
        self.releases(handle, end - 0.001, end)

    def fails(self, kind: str, handle: str, since: float, at: float) -> None:
        """Let a call raise: lost or unavailable."""
        self.of(handle, kind, at, since=since, doing="a call", error="an error")

    def is_ended(self, cause: str, since: float, at: float, granted: float = 10.1) -> None:
        """Let a hold be ended by a forced release or a loss of data."""
        if cause == "forced":
            self.driver("forced", at, name="anvil", fence=round(granted * 1e6), since=since)
        else:
            self.driver("wiped", at, since=since)
            self.driver("outage", at, since=since, what="crashed")


def overlap(past: History) -> None:
    """Let two hold the lock at one time."""
    past.holds("1.1", 10.0, 11.0)
    past.holds("2.1", 10.5, 11.5)


def fence_back(past: History) -> None:
    """Give a later holder a lesser fence."""
    past.holds("1.1", 10.0, 11.0)
    past.is_ended("data lost", 11.1, 11.2)
    past.requests("2.1", 11.3, lease=5.0)
    past.acquires("2.1", 11.4, fence=9_000_000)
    past.confirms("2.1", 11.5, 11.6, 13.4)
    past.releases("2.1", 11.7, 11.8)


def left_behind(past: History) -> None:
    """Let a request wait beside a free lock, though it gets the lock in the end."""
    past.holds("1.1", 10.0, 11.0)
    past.requests("2.1", 10.5)
    past.keeps("2.1", 12.5, 12.7)


def left_over(past: History) -> None:
    """Leave a key on the server."""
    past.driver("left", 12.0, keys=["lock:anvil"])


def wrong_error(past: History) -> None:
    """Let a caller see an error that is not in the contract."""
    past.requests("1.1", 10.0)
    past.of("1.1", "failed", 10.1, doing="acquire", trace="KeyError")


BREACHES = {
    overlap: {"overlap", "promise broken"},
    fence_back: {"fence went back"},
    left_behind: {"left behind"},
    left_over: {"left"},
    wrong_error: {"failed"},
}
"""And the rules of the checker that each breaks."""
