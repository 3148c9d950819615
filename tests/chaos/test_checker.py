"""The checker finds each broken rule in a history written by hand, and nothing in a clean one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.__main__ import HISTORIES
from tests.chaos.checker import check
from tests.chaos.crew import tracebacks
from tests.chaos.history import Event
from tests.chaos.layouts import LAYOUTS
from tests.chaos.story import ALARMS

DRIVER = 0


class History:
    """Moments are seconds; a fence is that of its grant, and a handle begins with its process."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def note(self, f: str, at: float, process: int = 1, **fields: Any) -> None:
        self.events.append({"f": f, "time": at, "process": process, "type": "info", **fields})

    def driver(self, f: str, at: float, **fields: Any) -> None:
        self.note(f, at, DRIVER, **fields)

    def of(self, handle: str, f: str, at: float, **fields: Any) -> None:
        """Add any event of a handle."""
        self.note(f, at, int(handle.split(".", maxsplit=1)[0]), handle=handle, **fields)

    def calls(self, handle: str, f: str, since: float, at: float, type: str, **fields: Any) -> None:
        """Add an operation: its beginning and its end."""
        self.of(handle, f, since, type="invoke")
        self.of(handle, f, at, type=type, **fields)

    def requests(self, handle: str, at: float, **asked: Any) -> None:
        defaults = {"name": "anvil", "lease": 2.0, "renewed": False, "mode": "exclusive"}
        self.of(handle, "acquire", at, type="invoke", **{**defaults, **asked})

    def acquires(self, handle: str, at: float, **given: Any) -> None:
        """Let its acquire return, with a lease of 2 s."""
        defaults = {"fence": round(at * 1e6), "until": at + 2.0}
        self.of(handle, "acquire", at, type="ok", **{**defaults, **given})

    def takes(self, handle: str, at: float, **asked: Any) -> None:
        """Let it acquire 0.1 s after its request."""
        self.requests(handle, at - 0.1, **asked)
        self.acquires(handle, at)

    def confirms(self, handle: str, since: float, at: float, until: float) -> None:
        self.calls(handle, "confirm", since, at, "ok", until=until)

    def releases(self, handle: str, since: float, at: float) -> None:
        self.calls(handle, "release", since, at, "ok")

    def holds(self, handle: str, start: float, end: float, began: float | None = None) -> None:
        """Let it have the lock from start to end, confirmed all the time, and release it."""
        self.requests(handle, start - 0.001 if began is None else began)
        self.acquires(handle, start)
        self.confirms(handle, end - 0.002, end - 0.001, end + 1)
        self.releases(handle, end - 0.001, end)

    def fails(self, kind: str, handle: str, since: float, at: float) -> None:
        """Let a call raise: lost or unavailable."""
        type = "fail" if kind == "lost" else "info"
        self.calls(handle, "confirm", since, at, type, error="an error")

    def is_ended(self, cause: str, since: float, at: float, granted: float = 10.1) -> None:
        """Let a hold be ended by a forced release or a loss of data."""
        if cause == "forced":
            self.driver("forced", at, name="anvil", fence=round(granted * 1e6), since=since)
        else:
            self.driver("wiped", at, since=since)
            self.driver("outage", at, since=since, what="crashed")


@pytest.fixture
def past() -> History:
    return History()


def broken_rules(history: History) -> list[str]:
    return [violation.rule for violation in check(history.events).violations]


Disturbance = tuple[str, float, float]


def disturb(past: History, kind: str, since: float, at: float) -> None:
    if kind in ("away", "refused"):
        past.driver("outage", at, since=since, what=kind)
    else:
        past.note(kind, at, since=since)


class TestClean:
    def test_holds_one_after_the_other(self, past: History) -> None:
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 10.1)
        past.acquires("2.1", 11.001)
        past.confirms("2.1", 11.5, 11.6, 12.9)
        past.releases("2.1", 11.9, 12.0)
        past.holds("1.2", 12.001, 12.5, began=10.7)
        verdict = check(past.events)
        assert verdict.violations == []
        assert verdict.figures["acquisitions"] == 3
        assert verdict.figures["hand-offs"] == 2

    def test_paused_holder_that_learns_of_its_loss(self, past: History) -> None:
        past.takes("1.1", 10.1)
        past.requests("2.1", 10.3)
        past.acquires("2.1", 12.2)
        past.confirms("2.1", 12.9, 13.0, 14.2)
        past.driver("paused", 12.5, worker=1, since=10.2)
        past.fails("lost", "1.1", 12.6, 12.7)
        past.releases("2.1", 13.1, 13.2)
        assert broken_rules(past) == []


class TestHolding:
    def test_overlap(self, past: History) -> None:
        """A loss of data and a forced release end a hold; what is confirmed after them overlaps."""
        past.holds("1.1", 10.0, 11.0)
        past.holds("2.1", 10.5, 11.5)
        assert set(broken_rules(past)) == {"overlap", "promise broken"}
        for cause in ("data lost", "forced"):
            past.is_ended(cause, 10.2, 10.3, granted=10.0)
        assert {"overlap", "came back"} <= set(broken_rules(past))

    def test_fence_that_goes_back(self, past: History) -> None:
        past.holds("1.1", 10.0, 11.0)
        past.is_ended("data lost", 11.1, 11.2)
        past.requests("2.1", 11.3, lease=5.0)
        past.acquires("2.1", 11.4, fence=9_000_000)
        past.confirms("2.1", 11.5, 11.6, 13.4)
        past.releases("2.1", 11.7, 11.8)
        assert broken_rules(past) == ["fence went back"]

    def test_shared_holds(self, past: History) -> None:
        """Two share a lock, and one of them is not told of the other's fence."""
        for handle, mode in (("1.1", "shared"), ("2.1", "shared"), ("3.1", "exclusive")):
            assert broken_rules(past) == []
            past.takes(handle, 10.0 + len(past.events) / 1000, mode=mode)
            past.confirms(handle, 10.4, 10.5, 12.0)
        assert set(broken_rules(past)) == {"overlap", "promise broken"}

    def test_confirmation_that_ended_late_is_no_overlap(self, past: History) -> None:
        """A call that began before the successor acquired may return after it."""
        past.takes("1.1", 10.1)
        past.confirms("1.1", 12.05, 12.6, 12.1)
        past.holds("2.1", 12.2, 13.0)
        assert "overlap" not in broken_rules(past)

    def test_fence_given_twice(self, past: History) -> None:
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 11.3)
        past.acquires("2.1", 11.4, fence=10_000_000, until=13.4)
        assert "fence given twice" in broken_rules(past)

    @pytest.mark.parametrize("cause", ["", "forced", "data lost", "release", "extend", "lost"])
    def test_promise(self, past: History, cause: str) -> None:
        """A lock must not be given away before the end that ``held.remaining`` promised. A forced
        release, a loss of data, the holder's own requests and its being told of a loss end a
        promise."""
        past.takes("1.1", 10.1)
        if cause in ("release", "extend", "lost"):
            past.of("1.1", cause, 11.6, type="info" if cause == "lost" else "invoke")
        elif cause:
            past.is_ended(cause, 11.5, 11.6)
        past.holds("2.1", 11.9, 12.5)
        assert broken_rules(past) == ([] if cause else ["promise broken"])

    @pytest.mark.parametrize("cause", ["forced", "data lost"])
    def test_hold_that_comes_back(self, past: History, cause: str) -> None:
        past.takes("1.1", 10.1, renewed=True)
        past.is_ended(cause, 10.2, 10.3)
        past.confirms("1.1", 10.4, 10.5, 12.0)
        past.releases("1.1", 10.6, 10.7)
        assert broken_rules(past) == ["came back"]


class TestErrors:
    @pytest.mark.parametrize(
        ("kind", "span", "too_little", "enough"),
        [
            ("lost", (10.5, 10.6), [], ("wiped", 10.4, 10.45)),
            ("lost", (10.5, 10.6), [("vote_lost", 9.7, 9.8)], ("vote_lost", 10.3, 10.4)),
            ("lost", (10.5, 10.6), [], ("unsettled", 10.3, 10.4)),
            ("unavailable", (10, 10.1), [("cut", 9.8, 9.9)], ("cut", 10, 10.1)),
            ("unavailable", (10, 11), [("away", 9.8, 9.9)], ("refused", 10.2, 10.4)),
            ("unavailable", (10, 13), [("stalled", 9.8, 9.9)], ("stalled", 12, 12.9)),
            ("unavailable", (11, 13), [("vote_missing", 9.7, 9.8)], ("vote_missing", 10.1, 10.2)),
        ],
    )
    def test_error_without_a_cause(
        self,
        past: History,
        kind: str,
        span: tuple[float, float],
        too_little: list[Disturbance],
        enough: Disturbance,
    ) -> None:
        """A loss has none before the lease ends, and a call if nothing disturbed it."""
        past.takes("1.1", 10.0)
        past.fails(kind, "1.1", *span)
        for disturbance in too_little:
            disturb(past, *disturbance)
        assert broken_rules(past) == ["no cause"]
        disturb(past, *enough)
        assert broken_rules(past) == []

    def test_loss_after_a_forced_release(self, past: History) -> None:
        past.takes("1.1", 10.1)
        past.fails("lost", "1.1", 11.0, 11.1)
        assert broken_rules(past) == ["no cause"]
        past.is_ended("forced", 10.5, 10.6)
        assert broken_rules(past) == []

    def test_loss_of_a_renewed_hold_that_had_two_votes(self, past: History) -> None:
        """It has no majority while a second server does not vote."""
        past.takes("1.1", 10.0, renewed=True)
        past.fails("lost", "1.1", 12.5, 12.6)
        for disturbance in (("vote_missing", 9.8, 9.95), ("vote_missing", 11.0, 12.4)):
            assert broken_rules(past) == ["no cause"]
            disturb(past, *disturbance)
        assert broken_rules(past) == []

    @pytest.mark.parametrize("kind", ["away", "stalled"])
    def test_loss_of_a_hand_off(self, past: History, kind: str) -> None:
        """A hand-off is taken back after 1.2 s only if its claim may have come too late."""
        past.requests("1.1", 10.0)
        past.acquires("1.1", 10.1)
        past.fails("lost", "1.1", 11.2, 11.31)
        past.holds("2.1", 11.305, 11.5)
        disturb(past, kind, 11.4, 11.5)
        assert sorted(broken_rules(past)) == ["no cause", "promise broken"]
        disturb(past, kind, 10.2, 10.3)
        assert broken_rules(past) == []

    @pytest.mark.parametrize("kind", ALARMS)
    def test_what_is_wrong_by_itself(self, past: History, kind: str) -> None:
        past.driver(kind, 10.0)
        assert broken_rules(past) == [kind]


def test_tracebacks_in_a_log() -> None:
    frames = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    def f():"]
    error = ["before", *frames, "", '  File "b.py", line 2, in g', "ValueError: wrong"]
    assert tracebacks("\n".join([*error, "after"])) == ["\n".join(error)]


def test_a_history_of_each_layout_is_published() -> None:
    assert {path.name.split("-")[0] for path in HISTORIES.iterdir()} == set(LAYOUTS)
