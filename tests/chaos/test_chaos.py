"""The tool that breaks things: its faults happen, and its table notices what they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from example_project.embedded import EmbeddedServer
from tests.chaos import __main__ as chaos
from tests.chaos import layouts, table
from tests.chaos.faults import FAULTS
from tests.chaos.row import COLUMNS, Row, judge
from tests.chaos.site import client
from tests.soak.test_soak import DRIVER, History
from tests.soak.verdict import Violation
from tests.tools import ROOT, eventually
from tests.tools.proxy import Proxy

NOTHING: frozenset[str] = frozenset()


@pytest.fixture
def past() -> History:
    """A history in which the fault happened, and a lock was taken."""
    past = History()
    past.note("fault", 9.0, DRIVER, what="a fault")
    past.holds("1.1", 9.1, 9.2)
    return past


def row_of(past: History, unpromised: frozenset[str] = NOTHING) -> Row:
    """Return the line of the table for a history."""
    return judge("a fault", "a layout", past.events, unpromised=unpromised)


def overlap(past: History) -> None:
    """Let two hold the lock at one time."""
    past.holds("1.2", 10.0, 11.0)
    past.holds("2.1", 10.5, 11.5)


def fence_back(past: History) -> None:
    """Give a later holder a lesser fence."""
    past.holds("1.2", 10.0, 11.0)
    past.requests("2.1", 11.3, lease=5.0)
    past.acquires("2.1", 11.4, fence=9_000_000)
    past.confirms("2.1", 11.5, 11.6, 13.4)


def left_behind(past: History) -> None:
    """Let somebody wait beside a free lock."""
    past.holds("1.2", 10.0, 11.0)
    past.requests("2.1", 10.5)
    past.acquires("2.1", 12.5)
    past.releases("2.1", 12.6, 12.7)


def left_over(past: History) -> None:
    """Leave a lock on the server."""
    past.note("left", 12.0, DRIVER, keys=["lock:anvil"])


def wrong_error(past: History) -> None:
    """Let a caller see another error than those of the contract."""
    past.requests("1.2", 10.0)
    past.note("failed", 10.1, handle="1.2", doing="acquire", trace="KeyError")


BREACHES = {
    "double holds": overlap,
    "fences": fence_back,
    "lost waiters": left_behind,
    "stuck locks": left_over,
    "other": wrong_error,
}


class TestRow:
    """What a history comes to."""

    def test_clean(self, past: History) -> None:
        """A run in which nothing was broken counts nothing."""
        row = row_of(past)
        assert (row.taken, row.times, row.violations) == (1, 1, [])
        assert not row.counts.total()

    @pytest.mark.parametrize("column", BREACHES)
    def test_a_broken_promise_is_counted_where_it_belongs(self, past: History, column: str) -> None:
        """Each kind of breach shows in its column, and breaks a promise."""
        BREACHES[column](past)
        row = row_of(past)
        assert row.counts[column] > 0
        assert row.broken()[column] > 0
        assert set(BREACHES) == {*COLUMNS, "other"}

    @pytest.mark.parametrize("column", BREACHES)
    def test_what_is_not_promised_is_only_counted(self, past: History, column: str) -> None:
        """It shows with a star, and breaks nothing."""
        BREACHES[column](past)
        row = row_of(past, frozenset({column}))
        assert row.counts[column] > 0
        assert not row.broken()[column]
        assert f"{row.counts[column]}*" in table.table([row])

    def test_a_process_that_hangs_is_excused_by_nothing(self, past: History) -> None:
        """Not even where waiters may be lost."""
        past.note("stuck", 31.0, DRIVER, worker=2)
        (violation,) = row_of(past, frozenset({"lost waiters"})).violations
        assert violation.rule == "stuck"

    def test_double_holds_after_a_loss_of_data_are_told(self, past: History) -> None:
        """What ``remaining`` promised is void then, and how often that was so is shown."""
        past.requests("1.2", 10.0)
        past.acquires("1.2", 10.1)
        past.loses_data(10.2, 10.3)
        past.holds("2.1", 10.4, 11.0)
        row = row_of(past)
        assert row.counts["double holds"] == 1
        assert row.violations == []

    def test_a_run_that_shows_nothing_is_a_failure(self) -> None:
        """Without the fault, or without locks, there is nothing to be judged."""
        (violation,) = row_of(History()).violations
        assert violation.rule == "nothing happened"

    def test_unavailability_is_what_somebody_waited_for(self, past: History) -> None:
        """The longest time that somebody waited while nobody was served, of any lock."""
        past.requests("2.1", 20.0)
        past.holds("1.2", 20.2, 21.0)
        past.acquires("2.1", 23.5)
        assert row_of(past).unavailable == pytest.approx(2.5)

    def test_a_step_of_the_clock_ends_leases_early(self, past: History) -> None:
        """A loss before the promised end has a cause then, but the lock may not be held twice."""
        past.requests("1.2", 10.0)
        past.acquires("1.2", 10.1)
        past.raises("lost", "1.2", 11.0, 11.1, "ensure_held")
        assert [item.rule for item in row_of(past).violations] == ["no cause"]
        past.note("unsettled", 10.6, DRIVER, since=10.5)
        assert row_of(past).violations == []
        overlap(past)
        assert row_of(past).broken()["double holds"] > 0

    def test_a_clock_that_goes_back_makes_leases_longer(self, past: History) -> None:
        """The lease of a holder that forgot to release lasts so much longer."""
        past.requests("1.2", 10.0)
        past.acquires("1.2", 10.1)
        past.note("abandoned", 10.2, handle="1.2")
        past.requests("2.1", 10.3)
        past.acquires("2.1", 14.1)
        past.releases("2.1", 14.2, 14.3)
        assert row_of(past).broken()["lost waiters"] == 1
        past.note("postponed", 10.5, DRIVER, since=10.5, seconds=2.0)
        assert row_of(past).violations == []

    def test_a_refusal_is_told_at_once(self, past: History) -> None:
        """A server that answers and refuses is a cause, however short that was."""
        past.requests("1.2", 10.0)
        past.raises("unavailable", "1.2", 10.0, 10.1, "acquire")
        past.note("outage", 10.2, DRIVER, since=10.0, what="away")
        assert [item.rule for item in row_of(past).violations] == ["no cause"]
        past.note("outage", 10.2, DRIVER, since=10.0, what="refused")
        assert row_of(past).violations == []


def test_broken_promises_fit_the_end_of_a_log() -> None:
    """They are told in few lines of bounded length, whatever their texts are."""
    broken = [Violation("failed", "acquire raised:\n" + "line\n" * 50 + "KeyError")] * 40
    rows = [Row("a fault", "a layout", violations=broken)]
    lines = table.broken_promises(rows, "somewhere").splitlines()
    assert len(lines) <= 15
    assert lines[0].startswith("40 broken promises in 1 of 1 runs")
    assert "KeyError" in lines[1]
    assert max(map(len, lines)) <= table.WIDTH


def _clean(layout: str, fault: str, *_: Any) -> Row:
    return Row(fault, layout, taken=1, times=1)


def _broken(layout: str, fault: str, *_: Any) -> Row:
    return Row(fault, layout, violations=[Violation("overlap", "two at once")])


def _raising(*_: Any) -> Row:
    raise RuntimeError("no server")


@pytest.mark.parametrize(
    ("run", "code", "said"),
    [(_clean, 0, "kept"), (_broken, 1, "overlap: two at once"), (_raising, 1, "no server")],
)
def test_exit_code(
    run: Callable[..., Row],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """It is 1 where a promise was broken or a run failed, and that is said last."""
    monkeypatch.setattr(chaos, "run", run)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert chaos.main(["--layout", "standalone", "--fault", "read only"]) == code
    out = capsys.readouterr().out
    assert said in (out if code == 0 else out.splitlines()[-1])
    assert list(tmp_path.iterdir()) == [] or code


def test_every_fault_is_put_to_some_layout_and_explained() -> None:
    """None is on the list for nothing, and the documentation has them all."""
    used = {fault for layout in layouts.ALL for fault in layout.faults}
    assert used == set(FAULTS)
    page = (ROOT / "docs/explanation/faults.md").read_text()
    assert [fault for fault in FAULTS if f"| {fault} |" not in page] == []
    assert [layout.name for layout in layouts.ALL if f"| `{layout.name}` |" not in page] == []


class TestProxy:
    """The ways in which a network fails."""

    @pytest.fixture
    def proxy(self, server: EmbeddedServer) -> Iterator[Proxy]:
        with Proxy(server.port) as proxy:
            yield proxy

    @pytest.fixture
    def through(self, proxy: Proxy) -> Iterator[redis.Redis]:
        with client(proxy.port) as through:
            through.ping()
            yield through

    def test_black_hole_delivers_late(
        self, proxy: Proxy, through: redis.Redis, client: redis.Redis
    ) -> None:
        """What was sent is carried out when the hole closes, though nobody waits for it now."""
        proxy.hold_back()
        with pytest.raises(redis.TimeoutError):
            through.set("late", "1")
        assert client.get("late") is None
        proxy.let_go()
        eventually(lambda: client.get("late") == "1")

    def test_half_open_connections_are_dead_and_new_ones_work(
        self, proxy: Proxy, through: redis.Redis
    ) -> None:
        """Who finds out opens another."""
        proxy.silence()
        assert proxy.silent() == 1
        with pytest.raises(redis.TimeoutError):
            through.ping()
        assert through.ping()
        eventually(lambda: proxy.silent() == 0)

    def test_cut(self, proxy: Proxy) -> None:
        """Every connection breaks, and new ones work."""
        one = redis.Connection(port=proxy.port)
        one.send_command("PING")
        one.read_response()
        assert proxy.cut() == 1
        with pytest.raises(redis.ConnectionError):
            one.read_response()
        one.send_command("PING")
        assert one.read_response() == b"PONG"
        one.disconnect()

    def test_delay(self, proxy: Proxy, through: redis.Redis) -> None:
        """A reply takes at least the way there and back."""
        proxy.delay = 0.1
        began = time.monotonic()
        assert through.ping()
        assert time.monotonic() - began >= 0.2

    def test_a_server_that_is_down_does_not_end_the_proxy(self) -> None:
        """It goes on when the server is there."""
        with EmbeddedServer() as own, Proxy(own.port) as proxy:
            own.kill()
            with client(proxy.port) as through:
                with pytest.raises(redis.ConnectionError):
                    through.ping()
                own.restart()
                assert through.ping()
