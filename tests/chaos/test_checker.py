"""The checker finds each broken rule in a history written by hand, and nothing in a clean one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.crew import tracebacks
from tests.chaos.histories import BREACHES, History, overlap


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


@pytest.mark.parametrize("breach", BREACHES)
def test_breach(past: History, breach: Callable[[History], None]) -> None:
    breach(past)
    assert set(broken_rules(past)) == BREACHES[breach]


class TestClean:
    """Histories that break no rule."""

    def test_holds_one_after_the_other(self, past: History) -> None:
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 10.1)
        past.acquires("2.1", 11.001, granted=10.9995)
        past.confirms("2.1", 11.5, 11.6, 12.9)
        past.releases("2.1", 11.9, 12.0)
        past.holds("1.2", 12.001, 12.5, began=10.7)
        verdict = check(past.events)
        assert verdict.violations == []
        assert verdict.figures["acquisitions"] == 3
        assert verdict.figures["hand-offs"] == 1
        assert verdict.figures["pairs in queue compared"] == 1

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
    """Two holders, fences that don't rise, broken promises, revivals."""

    def test_overlap_is_not_excused_by_faults(self, past: History) -> None:
        """A loss of data and a forced release end a hold; what is confirmed after them overlaps."""
        overlap(past)
        for cause in ("data lost", "forced"):
            past.is_ended(cause, 10.2, 10.3, granted=10.0)
        assert {"overlap", "came back"} <= set(broken_rules(past))

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

    @pytest.mark.parametrize("cause", ["", "forced", "data lost", "releasing", "extending", "told"])
    def test_promise(self, past: History, cause: str) -> None:
        """A lock must not be given away before the end that ``held.remaining`` promised.

        A forced release, a loss of data, the holder's own requests and its being told of a loss end
        a promise.
        """
        past.takes("1.1", 10.1)
        if cause in ("releasing", "extending", "told"):
            past.of("1.1", cause, 11.6, upto=0.1)
        elif cause:
            past.is_ended(cause, 11.5, 11.6)
        past.holds("2.1", 11.9, 12.5)
        assert broken_rules(past) == ([] if cause else ["promise broken"])

    def test_promise_that_is_too_long(self, past: History) -> None:
        past.requests("1.1", 10.0)
        past.acquires("1.1", 11.0, granted=10.1, until=13.0)
        past.releases("1.1", 11.1, 11.2)
        assert broken_rules(past) == ["promise too long"]

    @pytest.mark.parametrize("cause", ["forced", "data lost"])
    def test_hold_that_comes_back(self, past: History, cause: str) -> None:
        past.takes("1.1", 10.1, renewed=True)
        past.is_ended(cause, 10.2, 10.3)
        past.confirms("1.1", 10.4, 10.5, 12.0)
        past.releases("1.1", 10.6, 10.7)
        assert broken_rules(past) == ["came back"]


class TestWaiting:
    """Waiters left behind, late answers, overtaking."""

    def test_waiter_that_is_never_answered(self, past: History) -> None:
        """The request is found, and its process."""
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 10.5)
        past.driver("stuck", 31.0, worker=2)
        assert sorted(broken_rules(past)) == ["left behind", "stuck"]

    @pytest.mark.parametrize(
        "reason", ["dead holder", "dead waiter", "outage", "standing still", "paused waiter"]
    )
    def test_waiter_with_reason_to_wait(self, past: History, reason: str) -> None:
        if reason == "dead holder":
            past.takes("1.1", 10.1)
            past.driver("killed", 10.4, worker=1, since=10.3)
        else:
            past.holds("1.1", 10.0, 10.6)
        past.requests("2.1", 10.5)
        if reason == "dead waiter":  # granted the lock when it was dead
            past.requests("3.1", 10.4, lease=0.5)
            past.driver("killed", 10.5, worker=3, since=10.45, remembered=2.0)
        elif reason == "outage":
            past.driver("outage", 11.9, since=10.6, what="stopped")
        elif reason == "standing still":
            past.note("stalled", 12.0, 2, since=10.7)
        elif reason == "paused waiter":  # may have been granted the lock meanwhile
            past.requests("3.1", 10.4)
            past.driver("paused", 10.9, worker=3, since=10.5)
            past.keeps("3.1", 12.6, 12.7)
        past.keeps("2.1", 12.1, 12.3)
        assert broken_rules(past) == []

    def test_answer_after_its_time(self, past: History) -> None:
        """It is found, unless the server was away."""
        past.holds("1.1", 10.0, 13.0)
        past.requests("2.1", 10.5, wait=1.0)
        past.of("2.1", "refused", 12.5)
        assert broken_rules(past) == ["unpunctual"]
        past.driver("outage", 12.4, since=11.4, what="stopped")
        assert broken_rules(past) == []

    def test_refusal_before_its_time(self, past: History) -> None:
        past.holds("1.1", 10.0, 13.0)
        past.requests("2.1", 10.5, wait=1.0)
        past.of("2.1", "refused", 11.4)
        assert broken_rules(past) == ["unpunctual"]

    def test_refusal_of_a_free_lock(self, past: History) -> None:
        """A request that does not wait is only refused for a reason."""
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 10.5, wait=0)
        past.of("2.1", "refused", 10.501)
        assert broken_rules(past) == []
        past.requests("2.2", 11.5, wait=0)
        past.of("2.2", "refused", 11.501)
        assert broken_rules(past) == ["unpunctual"]

    @pytest.mark.parametrize("stood_still", [False, True])
    def test_overtaking(self, past: History, stood_still: bool) -> None:
        """A request of a process that stood still may have lost its place."""
        past.holds("1.1", 10.0, 11.0)
        past.requests("2.1", 10.1)
        if stood_still:
            past.note("stalled", 10.7, 2, since=10.2)
        past.requests("3.1", 10.6)
        past.keeps("3.1", 11.0, 11.2)
        past.keeps("2.1", 11.2, 11.4)
        assert broken_rules(past) == ([] if stood_still else ["overtaken"])

    @pytest.mark.parametrize("noticed", [True, False])
    def test_overtaking_of_the_first_to_wait_after_a_cut(
        self, past: History, noticed: bool
    ) -> None:
        """Its process notices the cut when it waits. By then the lock may be another's."""
        past.driver("cut", 8.0, what="pubsub")
        past.holds("1.1", 10.0, 11.0)
        if noticed:
            past.requests("2.1", 9.0, wait=0.5)
            past.of("2.1", "refused", 9.5)
        past.requests("2.2", 10.3)
        past.requests("3.1", 10.6)
        past.keeps("3.1", 11.0, 11.2)
        past.keeps("2.2", 11.2, 11.4)
        assert ("overtaken" in broken_rules(past)) is noticed

    def test_overtaking_after_a_cut(self, past: History) -> None:
        """A request forgotten in its sleep when a connection was cut is found."""
        past.requests("2.1", 9.0)
        past.driver("cut", 9.5, what="pubsub")
        past.holds("1.1", 10.0, 11.0)
        past.requests("3.1", 10.6)
        past.keeps("3.1", 11.0, 11.5)
        past.keeps("2.1", 11.5, 11.7)
        assert "overtaken" in broken_rules(past)


class TestErrors:
    """Errors without a cause, and what is wrong by itself."""

    @pytest.mark.parametrize(
        ("kind", "span", "too_little", "enough"),
        [
            ("lost", (10.5, 10.6), [], ("wiped", 10.4, 10.45)),
            ("lost", (10.5, 10.6), [("vote_lost", 9.8, 9.9)], ("vote_lost", 10.3, 10.4)),
            ("lost", (10.5, 10.6), [], ("unsettled", 10.3, 10.4)),
            ("unavailable", (10, 10.1), [("cut", 10, 10.05)], ("refused", 10, 10.1)),
            ("unavailable", (10, 10.1), [("away", 10, 10.1)], ("refused", 10, 10.1)),
            ("unavailable", (10, 11), [("away", 10.2, 10.4)], ("away", 10.2, 11.2)),
            ("unavailable", (10, 15), [("away", 14.2, 14.4), ("cut", 10, 10.5)], ("cut", 10, 14.9)),
            ("unavailable", (10, 13), [("stalled", 10, 11.5)], ("stalled", 11.5, 12.9)),
            ("unavailable", (11, 13), [("vote_missing", 9, 10)], ("vote_missing", 12, 14)),
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
        """A loss has none before the lease ends. Callers don't notice a short disturbance."""
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

    @pytest.mark.parametrize(
        ("kind", "fields"), [("died", {"worker": 1, "code": -11}), ("logged", {"trace": "a trace"})]
    )
    def test_what_the_driver_finds(self, past: History, kind: str, fields: dict[str, Any]) -> None:
        past.driver(kind, 10.0, **fields)
        assert broken_rules(past) == [kind]


def test_tracebacks_in_a_log() -> None:
    """A traceback is found whole; an interruption in a destructor is none."""
    frames = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    def f():"]
    error = [*frames, "", '  File "b.py", line 2, in g', "ValueError: wrong"]
    met = [
        "Exception ignored in: <function C.__del__>",
        *error[:-1],
        "tests.chaos.means.Interrupted: ",
    ]
    assert tracebacks("\n".join(["before", *error, "after"])) == ["\n".join(["before", *error])]
    assert tracebacks("\n".join([*met, "after"])) == []
