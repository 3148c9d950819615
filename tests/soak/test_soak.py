"""The soak: its checker finds what it has to find, and a short run finds nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.soak import report
from tests.soak.checker import check
from tests.soak.crew import _tracebacks
from tests.soak.faults import FAULTS
from tests.soak.history import Event
from tests.soak.spans import Spans
from tests.soak.verdict import Verdict

DRIVER = 0


class History:
    """Events of a run written by hand. Moments are seconds; a fence is the moment of its grant."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.note("clock", 0.0, DRIVER, wall=0.0)

    def note(self, kind: str, at: float, process: int = 1, **fields: Any) -> None:
        """Add any event."""
        self.events.append({"kind": kind, "at": at, "process": process, **fields})

    def requests(self, handle: str, at: float, **asked: Any) -> None:
        """Let a handle ask for the lock; the process is the number that its handle begins with."""
        defaults = {"name": "anvil", "wait": None, "lease": 2.0, "renewed": False}
        self._of("requested", handle, at, **{**defaults, **asked})
        self._of("in_line", handle, at + 0.01)

    def acquires(self, handle: str, at: float, granted: float | None = None, **given: Any) -> None:
        """Let its acquire return, with a lease that began when it was granted."""
        granted = at if granted is None else granted
        defaults = {"fence": round(granted * 1e6), "until": granted + 2.0}
        self._of("acquired", handle, at, **{**defaults, **given})

    def confirms(self, handle: str, since: float, at: float, until: float) -> None:
        """Let the server confirm it."""
        self._of("confirmed", handle, at, since=since, until=until, doing="ensure_held")

    def releases(self, handle: str, since: float, at: float) -> None:
        """Let it be released."""
        self._of("releasing", handle, since)
        self._of("released", handle, at, since=since)

    def raises(self, kind: str, handle: str, since: float, at: float, doing: str) -> None:
        """Let a call raise: lost or unavailable."""
        self._of(kind, handle, at, since=since, doing=doing, error="an error")

    def holds(self, handle: str, start: float, end: float, began: float | None = None) -> None:
        """Let it have the lock from start to end, confirmed all the time, and release it."""
        self.requests(handle, start - 0.001 if began is None else began)
        self.acquires(handle, start)
        self.confirms(handle, end - 0.002, end - 0.001, end + 1)
        self.releases(handle, end - 0.001, end)

    def breaks(self, fence: float, since: float, at: float) -> None:
        """Let the driver force the release of a hold."""
        self.note("broken", at, DRIVER, name="anvil", fence=round(fence * 1e6), since=since)

    def loses_data(self, since: float, at: float) -> None:
        """Let the server be restarted without its data."""
        self.note("wiped", at, DRIVER, since=since)
        self.note("outage", at, DRIVER, since=since, what="wiped")

    def _of(self, kind: str, handle: str, at: float, **fields: Any) -> None:
        self.note(kind, at, int(handle.split(".", maxsplit=1)[0]), handle=handle, **fields)


@pytest.fixture
def past() -> History:
    """A history that a test writes."""
    return History()


def broken_rules(history: History | Iterable[Event]) -> list[str]:
    """Return the rules that the checker finds broken."""
    events = history.events if isinstance(history, History) else history
    return [violation.rule for violation in check(events).violations]


class TestClean:
    """Histories that break no rule."""

    def test_holds_one_after_the_other(self, past: History) -> None:
        """Holds that hand over to each other pass, and are counted."""
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 10.1)
        past.acquires("2.1", 11.001, granted=10.9995)
        past.confirms("2.1", 11.5, 11.6, 12.9)
        past.releases("2.1", 11.9, 12.0)
        past.holds("1.2", 12.001, 12.5, began=10.7)
        verdict = check(past.events)
        assert verdict.violations == []
        assert verdict.figures["acquisitions"] == 3
        assert verdict.figures["handovers"] == 1
        assert verdict.figures["pairs in line compared"] == 1

    def test_locks_of_different_names(self, past: History) -> None:
        """Different locks may be held at one time, with fences in any order."""
        past.holds("1.1", 10.0, 12.0)
        past.requests("2.1", 10.4, name="bellows", lease=5.0)
        past.acquires("2.1", 10.5, fence=9_000_000)
        past.confirms("2.1", 11.4, 11.5, 12.5)
        assert broken_rules(past) == []

    def test_entered_again(self, past: History) -> None:
        """Two handles of one caller that share a lease are one hold."""
        past.requests("1.1", 10.0)
        past.acquires("1.1", 10.1)
        past.requests("1.2", 10.2, inside="1.1")
        past.acquires("1.2", 10.2, granted=10.1)
        past.confirms("1.2", 10.3, 10.4, 12.1)
        past.releases("1.2", 10.5, 10.5)
        past.confirms("1.1", 10.6, 10.7, 12.1)
        past.releases("1.1", 10.8, 10.9)
        verdict = check(past.events)
        assert verdict.violations == []
        assert verdict.figures["acquisitions"] == 1
        assert verdict.figures["entered again"] == 1

    def test_paused_holder_that_learns_of_its_loss(self, past: History) -> None:
        """A holder that slept through its lease is told so, and has a successor meanwhile."""
        past.requests("1.1", 10.0)
        past.acquires("1.1", 10.1)
        past.note("paused", 10.2, DRIVER, worker=1)
        past.requests("2.1", 10.3)
        past.acquires("2.1", 12.2)
        past.confirms("2.1", 12.9, 13.0, 14.2)
        past.note("resumed", 12.5, DRIVER, worker=1)
        past.raises("lost", "1.1", 12.6, 12.7, "ensure_held")
        past.releases("2.1", 13.1, 13.2)
        assert broken_rules(past) == []


class TestExclusion:
    """Two holders, and fences that don't rise."""

    def test_overlap(self, past: History) -> None:
        """Two handles confirmed at one time are found, whichever was first."""
        past.holds("1.1", 10.0, 11.0)
        past.holds("2.1", 10.5, 11.5)
        assert "overlap" in broken_rules(past)

    def test_overlap_inside_of_a_hold(self, past: History) -> None:
        """A hold within another is found, though holds between them are clean."""
        past.holds("1.1", 10.0, 11.9)
        past.holds("2.1", 12.0, 12.5)
        past.holds("1.2", 13.0, 14.9)
        past.requests("2.2", 13.4)
        past.acquires("2.2", 13.5)
        past.confirms("2.2", 13.6, 13.7, 15.0)
        rules = broken_rules(past)
        assert rules.count("overlap") == 1

    def test_overlap_is_not_excused_by_faults(self, past: History) -> None:
        """A loss of data and a forced release end a hold; what is confirmed after them overlaps."""
        past.holds("1.1", 10.0, 12.0)
        past.loses_data(10.4, 10.5)
        past.breaks(10.0, 10.4, 10.5)
        past.holds("2.1", 10.6, 11.5)
        rules = broken_rules(past)
        assert "overlap" in rules
        assert "came back" in rules

    def test_confirmation_that_ended_late_is_no_overlap(self, past: History) -> None:
        """A call that began before the successor acquired may return after it."""
        past.requests("1.1", 10.0)
        past.acquires("1.1", 10.1)
        past.confirms("1.1", 12.05, 12.6, 12.1)
        past.holds("2.1", 12.2, 13.0)
        assert "overlap" not in broken_rules(past)

    def test_fence_that_goes_back(self, past: History) -> None:
        """A later hold with a lesser fence is found, also after a loss of data."""
        past.holds("1.1", 10.0, 11.0)
        past.loses_data(11.1, 11.2)
        past.requests("2.1", 11.3, lease=5.0)
        past.acquires("2.1", 11.4, fence=9_000_000)
        past.confirms("2.1", 11.5, 11.6, 13.4)
        past.releases("2.1", 11.7, 11.8)
        assert broken_rules(past) == ["fence went back"]

    def test_fence_given_twice(self, past: History) -> None:
        """Two holds with one fence are found."""
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 11.3)
        past.acquires("2.1", 11.4, fence=10_000_000, until=13.4)
        assert "fence given twice" in broken_rules(past)

    def test_promise_that_is_broken(self, past: History) -> None:
        """A lock given away before the end that ``held.remaining`` promised is found."""
        past.requests("1.1", 10.0)
        past.acquires("1.1", 10.1)
        past.holds("2.1", 11.9, 12.5)
        assert broken_rules(past) == ["promise broken"]

    @pytest.mark.parametrize("cause", ["forced", "data lost", "releasing", "extending"])
    def test_promise_that_is_void(self, past: History, cause: str) -> None:
        """A forced release, a loss of data and the holder's own asking end a promise."""
        past.requests("1.1", 10.0)
        past.acquires("1.1", 10.1)
        if cause == "forced":
            past.breaks(10.1, 11.7, 11.8)
        elif cause == "data lost":
            past.loses_data(11.5, 11.6)
        elif cause == "releasing":
            past.note("releasing", 11.6, handle="1.1")
        else:
            past.note("extending", 11.6, handle="1.1", upto=0.1)
        past.holds("2.1", 11.9, 12.5)
        assert broken_rules(past) == []

    def test_promise_that_is_too_long(self, past: History) -> None:
        """A lease that is promised to end later than it can is found, though nobody else came."""
        past.requests("1.1", 10.0)
        past.acquires("1.1", 11.0, granted=10.1, until=13.0)
        past.releases("1.1", 11.1, 11.2)
        assert broken_rules(past) == ["promise too long"]

    def test_lease_that_had_passed_by_the_answer(self, past: History) -> None:
        """Who learns of the lock after its lease is promised nothing."""
        past.requests("1.1", 10.0)
        past.acquires("1.1", 12.0, granted=10.1, until=12.0)
        past.raises("lost", "1.1", 12.0, 12.1, "ensure_held")
        assert broken_rules(past) == []

    @pytest.mark.parametrize("cause", ["forced", "data lost"])
    def test_hold_that_comes_back(self, past: History, cause: str) -> None:
        """A hold confirmed after it was ended by others is found, though nobody else held."""
        past.requests("1.1", 10.0, renewed=True)
        past.acquires("1.1", 10.1)
        if cause == "forced":
            past.breaks(10.1, 10.2, 10.3)
        else:
            past.loses_data(10.2, 10.3)
        past.confirms("1.1", 10.4, 10.5, 12.0)
        past.releases("1.1", 10.6, 10.7)
        assert broken_rules(past) == ["came back"]


class TestWaiting:
    """Waiters left behind, late answers, overtaking."""

    def test_waiter_left_behind(self, past: History) -> None:
        """A request that waits beside a free lock is found, though it gets the lock in the end."""
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 10.5)
        past.acquires("2.1", 12.5)
        past.releases("2.1", 12.6, 12.7)
        assert broken_rules(past) == ["left behind"]

    def test_waiter_that_is_never_answered(self, past: History) -> None:
        """A request still open at the end of the history is found, and so is its process."""
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 10.5)
        past.note("stuck", 31.0, DRIVER, worker=2)
        assert sorted(broken_rules(past)) == ["left behind", "stuck"]

    def test_waiter_that_times_out_beside_a_free_lock(self, past: History) -> None:
        """A request refused in time is found as well, if nobody held the lock."""
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 10.5, wait=2.0)
        past.note("refused", 12.5, 2, handle="2.1")
        assert broken_rules(past) == ["left behind"]

    @pytest.mark.parametrize("reason", ["dead holder", "outage", "standing still", "paused waiter"])
    def test_waiter_with_reason_to_wait(self, past: History, reason: str) -> None:
        """The lease of a dead holder, an outage and a pause make waiters wait."""
        if reason == "dead holder":
            past.requests("1.1", 10.0)
            past.acquires("1.1", 10.1)
            past.note("killed", 10.4, DRIVER, worker=1, since=10.3)
        else:
            past.holds("1.1", 10.0, 10.6)
        past.requests("2.1", 10.5)
        if reason == "outage":
            past.note("outage", 11.9, DRIVER, since=10.6, what="frozen")
        elif reason == "standing still":
            past.note("stalled", 12.0, 2, since=10.7)
        elif reason == "paused waiter":  # who may have been given the lock in its sleep
            past.requests("3.1", 10.4)
            past.note("paused", 10.5, DRIVER, worker=3)
            past.note("resumed", 10.9, DRIVER, worker=3)
            past.acquires("3.1", 12.6, granted=12.6)
            past.releases("3.1", 12.61, 12.62)
        past.acquires("2.1", 12.1)
        past.releases("2.1", 12.2, 12.3)
        assert broken_rules(past) == []

    def test_answer_after_its_time(self, past: History) -> None:
        """A wait that lasts longer than its timeout is found, unless the server was away."""
        past.holds("1.1", 10.0, 13.0)
        past.requests("2.1", 10.5, wait=1.0)
        past.note("refused", 12.5, 2, handle="2.1")
        assert broken_rules(past) == ["unpunctual"]
        past.note("outage", 12.4, DRIVER, since=11.4, what="frozen")
        assert broken_rules(past) == []

    def test_refusal_before_its_time(self, past: History) -> None:
        """A wait that ends before its timeout without the lock is found."""
        past.holds("1.1", 10.0, 13.0)
        past.requests("2.1", 10.5, wait=1.0)
        past.note("refused", 11.4, 2, handle="2.1")
        assert broken_rules(past) == ["unpunctual"]

    def test_refusal_of_a_free_lock(self, past: History) -> None:
        """A request that does not wait is only refused for a reason."""
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 10.5, wait=0)
        past.note("refused", 10.501, 2, handle="2.1")
        assert broken_rules(past) == []
        past.requests("2.2", 11.5, wait=0)
        past.note("refused", 11.501, 2, handle="2.2")
        assert broken_rules(past) == ["unpunctual"]

    def test_overtaking(self, past: History) -> None:
        """A request that gets the lock before one that came earlier is found."""
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 10.1)
        past.requests("3.1", 10.6)
        past.acquires("3.1", 11.0)
        past.releases("3.1", 11.1, 11.2)
        past.acquires("2.1", 11.2)
        past.releases("2.1", 11.3, 11.4)
        assert broken_rules(past) == ["overtaken"]

    @pytest.mark.parametrize("first", [False, True])
    def test_overtaking_after_outages(self, past: History, first: bool) -> None:
        """A short outage right after a long one finds waiters pausing for as long as before."""
        past.requests("2.1", 9.0)
        if first:
            past.note("outage", 12.0, DRIVER, since=10.0, what="crashed")
        past.note("outage", 13.1, DRIVER, since=13.0, what="restarted")
        past.requests("3.1", 14.5)
        past.holds("1.1", 14.55, 14.6, began=14.5)
        past.acquires("3.1", 14.6)
        past.releases("3.1", 14.7, 14.8)
        past.acquires("2.1", 14.8)
        past.releases("2.1", 14.9, 15.0)
        assert ("overtaken" in broken_rules(past)) is not first

    def test_overtaking_of_one_who_times_out(self, past: History) -> None:
        """A request that times out after a later one got the lock is found."""
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 10.1, wait=2.0)
        past.requests("3.1", 10.6)
        past.acquires("3.1", 11.0)
        past.note("refused", 12.1, 2, handle="2.1")
        past.releases("3.1", 12.2, 12.3)
        assert broken_rules(past) == ["overtaken"]

    def test_overtaking_after_a_cut(self, past: History) -> None:
        """A request that is forgotten in its sleep when a connection was cut is found."""
        past.requests("2.1", 9.0)
        past.note("cut", 9.5, DRIVER, what="pubsub")
        past.holds("1.1", 10.0, 11.0)
        past.requests("3.1", 10.6)
        past.acquires("3.1", 11.0)
        past.releases("3.1", 11.4, 11.5)
        past.acquires("2.1", 11.5)
        past.releases("2.1", 11.6, 11.7)
        assert "overtaken" in broken_rules(past)

    def test_overtaking_of_one_who_stood_still(self, past: History) -> None:
        """Whether a request was in line is not known if its process stood still or was cut off."""
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 10.1)
        past.note("stalled", 10.7, 2, since=10.2)
        past.requests("3.1", 10.6)
        past.acquires("3.1", 11.0)
        past.releases("3.1", 11.1, 11.2)
        past.acquires("2.1", 11.2)
        past.releases("2.1", 11.3, 11.4)
        assert broken_rules(past) == []


class TestTelling:
    """Errors without a cause, and what is wrong by itself."""

    def test_loss_without_a_cause(self, past: History) -> None:
        """LockLost before the promised end is found, unless the release was forced."""
        past.requests("1.1", 10.0)
        past.acquires("1.1", 10.1)
        past.raises("lost", "1.1", 11.0, 11.1, "ensure_held")
        assert broken_rules(past) == ["no cause"]
        past.breaks(10.1, 10.5, 10.6)
        assert broken_rules(past) == []

    def test_loss_of_a_vote(self, past: History) -> None:
        """A holder may lose its majority where one of several servers lost its data."""
        past.requests("1.1", 10.0)
        past.acquires("1.1", 10.1)
        past.raises("lost", "1.1", 11.0, 11.1, "ensure_held")
        past.note("thinned", 10.05, DRIVER, since=10.0)
        assert broken_rules(past) == ["no cause"]
        past.note("thinned", 10.9, DRIVER, since=10.8)
        assert broken_rules(past) == []

    def test_loss_of_a_renewed_lease(self, past: History) -> None:
        """A renewed lease passes only where its process or the server stood still."""
        past.requests("1.1", 10.0, renewed=True)
        past.acquires("1.1", 10.1)
        past.confirms("1.1", 11.0, 11.1, 12.5)
        past.raises("lost", "1.1", 12.6, 12.7, "ensure_held")
        past.note("releasing", 12.8, handle="1.1")
        assert broken_rules(past) == ["no cause"]
        past.note("stalled", 12.4, 1, since=11.2)
        assert broken_rules(past) == []

    def test_unavailable_without_a_cause(self, past: History) -> None:
        """LockUnavailable of a server that answers is found."""
        past.requests("1.1", 10.0)
        past.raises("unavailable", "1.1", 10.0, 10.1, "acquire")
        assert broken_rules(past) == ["no cause"]
        past.note("cut", 10.05, DRIVER, what="normal")
        assert broken_rules(past) == ["no cause"]

    def test_unavailable_in_an_outage(self, past: History) -> None:
        """LockUnavailable is told of outages, except of those that callers can bear."""
        past.requests("1.1", 10.0)
        past.raises("unavailable", "1.1", 10.0, 11.0, "acquire")
        past.note("outage", 10.4, DRIVER, since=10.2, what="restarted")
        assert broken_rules(past) == ["no cause"]
        past.note("outage", 11.2, DRIVER, since=10.2, what="crashed")
        assert broken_rules(past) == []

    def test_unavailable_after_two_disturbances(self, past: History) -> None:
        """A short outage and a cut in a row use up the tries of a call; long before, they don't."""
        past.requests("1.1", 14.0)
        past.acquires("1.1", 14.1)
        past.raises("unavailable", "1.1", 15.0, 20.0, "extend")
        past.note("outage", 19.4, DRIVER, since=19.2, what="restarted")
        past.note("cut", 15.5, DRIVER, what="normal")
        assert broken_rules(past) == ["no cause"]
        past.note("cut", 19.9, DRIVER, what="normal")
        assert broken_rules(past) == []

    def test_unavailable_after_a_pause(self, past: History) -> None:
        """A process that stood still for longer than calls are tried raises when it goes on."""
        past.requests("1.1", 10.0)
        past.raises("unavailable", "1.1", 10.0, 13.0, "acquire")
        past.note("stalled", 11.5, 1, since=10.0)
        assert broken_rules(past) == ["no cause"]
        past.note("stalled", 12.9, 1, since=11.5)
        assert broken_rules(past) == []

    def test_unavailable_when_the_time_is_up(self, past: History) -> None:
        """A wait that runs out during a short outage ends in LockUnavailable, for who can know?"""
        past.requests("1.1", 10.0, wait=0.5)
        past.raises("unavailable", "1.1", 10.0, 10.5, "acquire")
        past.note("outage", 10.6, DRIVER, since=10.4, what="restarted")
        assert broken_rules(past) == []

    def test_any_other_error(self, past: History) -> None:
        """An error that is not in the contract is found."""
        past.requests("1.1", 10.0)
        past.note("failed", 10.1, handle="1.1", doing="acquire", trace="KeyError")
        assert broken_rules(past) == ["failed"]

    @pytest.mark.parametrize(
        ("kind", "fields"),
        [
            ("left", {"keys": ["lock-queue:anvil"]}),
            ("died", {"worker": 1, "code": -11}),
            ("logged", {"worker": 1, "trace": "Traceback"}),
        ],
    )
    def test_what_the_driver_finds(self, past: History, kind: str, fields: dict[str, Any]) -> None:
        """Keys left on the server, dead workers and logged tracebacks are violations."""
        past.note(kind, 10.0, DRIVER, **fields)
        assert broken_rules(past) == [kind]


def test_tracebacks_in_a_log() -> None:
    """A traceback is found whole, and an interruption that met a destructor is none."""
    frames = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    def f():"]
    error = [*frames, "", '  File "b.py", line 2, in g', "ValueError: wrong"]
    met = [
        "Exception ignored in: <function C.__del__>",
        *error[:-1],
        "tests.soak.means.Interrupted: ",
    ]
    assert _tracebacks("\n".join(["before", *error, "after"])) == ["\n".join(["before", *error])]
    assert _tracebacks("\n".join([*met, "after"])) == []


def test_spans() -> None:
    """Spans merge, and know what they cover and what lies between them."""
    spans = Spans([(5, 6), (1, 2), (1.5, 3)])
    assert spans.between(0, 10) == [(1, 3), (5, 6)]
    assert spans.covered(2, 5.5) == pytest.approx(1.5)
    assert spans.longest_gap(0, 10) == (6, 10)
    assert spans.longest_gap(2, 5.5) == (3, 5)
    assert not spans.touch(3.5, 4.5)


def test_run_that_shows_little() -> None:
    """A run in which a fault was left out, or hardly a lock was taken, does not pass as clean."""
    figures = {"acquisitions": 100.0, "pairs in line compared": 1.0}
    assert report.lacking(Verdict(figures=figures, faults=dict.fromkeys(FAULTS, 1))) == []
    assert report.lacking(Verdict(figures=figures, faults=dict.fromkeys(FAULTS[1:], 1))) == [
        FAULTS[0]
    ]
    figures = {"acquisitions": 99.0, "pairs in line compared": 0.0}
    assert len(report.lacking(Verdict(figures=figures, faults=dict.fromkeys(FAULTS, 1)))) == 2
