"""The sizing run: it replays what a client sent, and its page says what it measured."""

from __future__ import annotations

import re
import socket
from threading import Thread
from typing import Any

import pytest
import redis

from benchmarks.frame.table import marks
from benchmarks.scenarios.proxy import CountingProxy
from benchmarks.sizing.__main__ import PAGE
from benchmarks.sizing.plan import LONG, QUICK
from benchmarks.sizing.replay import Player, play
from benchmarks.sizing.report import broken, markdown
from example_project.embedded import EmbeddedServer

SOME = {"processes": 1, "rate": 1000.0, "server": 5.0, "microseconds": 50.0, "clients": 1.0}


def held(lost: int) -> dict[str, Any]:
    return {
        "locks": 1000,
        "processes": 1,
        "renewals": 100.0,
        "server": 1.0,
        "clients": 1.0,
        "microseconds": 10.0,
        "received": 12_500.0,
        "sent": 900.0,
        "lost": lost,
    }


def results(**parts: Any) -> dict[str, Any]:
    described = {
        "date": "today",
        "python": "CPython",
        "server": "valkey",
        "protocol": "RESP3",
        "packages": {},
        "system": "Linux",
        "processor": "",
        "cpus": 2,
        "load_at_start": 0.0,
    }
    empty: dict[str, Any] = {"weigh": [], "replay": [], "rush": [], "hold": [], "wait": []}
    return {"quick": False, "lease": 30, "environment": described, **empty, **parts}


def test_the_page_has_a_place_for_the_figures() -> None:
    begin, end = marks("sizing")
    assert PAGE.read_text().count(begin) == PAGE.read_text().count(end) == 1


def test_the_examples_on_the_page_use_what_was_measured() -> None:
    """They are rounded up, and by less than to the threefold."""
    text = PAGE.read_text()
    pair, renewal = (1e6 * float(x) for x in re.findall(r"= ([\d.e-]+), ([\d.e-]+)  #", text)[0])
    held = [cells for cells in map(_cells, text.splitlines()) if "0,000" in cells[0]]
    (measured,) = (
        float(cells[3]) for cells in map(_cells, text.splitlines()) if "pairs," in cells[0]
    )
    assert measured <= pair <= 3 * measured
    slowest = max(float(cells[4]) for cells in held)
    assert slowest <= renewal <= 3 * slowest
    (stored,) = re.findall(r"A held lock takes ([\d,]+) bytes", text)
    (assumed,) = re.findall(r"BYTES = (\d+)", text)
    assert int(stored) == pytest.approx(int(assumed), rel=0.15)
    (sent,) = re.findall(r"SENT = (\d+)", text)
    for cells in held:
        renewals, kilobytes = (float(cells[at].replace(",", "")) for at in (2, 5))
        assert 1000 * kilobytes / renewals == pytest.approx(int(sent), rel=0.15)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:]] or [""]


def test_a_lost_lock_fails_the_run() -> None:
    """No figure counts if the locks that were held did not stay held."""
    assert list(broken(results(hold=[held(0)]))) == []
    assert list(broken(results(hold=[held(0), held(3)]))) == ["3 of 1,000 held locks were lost"]


def test_what_a_core_carries_is_computed_from_what_was_measured() -> None:
    """50 microseconds each are 20,000 a second, and as many renewals 200,000 locks of 30 s."""
    page = markdown(results(replay=[SOME], rush=[SOME]))
    rows = dict(line.strip("|").split("|")[:2] for line in page.splitlines() if line[:1] == "|")
    found = {key.strip(): value.strip() for key, value in rows.items()}
    assert found["pairs a second"] == "20,000"
    assert found["renewals a second"] == "20,000"
    assert found["held locks with a lease of 30 s"] == "200,000"


def test_an_interrupted_run_has_a_page() -> None:
    assert "Interrupted" in markdown(results(hold=[held(0)]), "**Interrupted.**")


@pytest.mark.parametrize("plan", [LONG, QUICK])
def test_the_parts_of_a_run_have_titles_of_their_own(plan: Any) -> None:
    titles = [title for title, *_ in plan.parts()]
    assert len({*titles}) == len(titles)


def test_a_client_is_recorded_and_replayed(server: EmbeddedServer, client: redis.Redis) -> None:
    """Each request is one round trip of the client, and the server carries it out again."""
    with CountingProxy(server.port) as proxy:
        with redis.Redis(port=proxy.port, protocol=2) as recorded:
            recorded.ping()
            proxy.traffic.requests.clear()
            for _ in range(4):
                recorded.incr("pairs")
                recorded.decr("pairs")
        requests = list(map(bytes, proxy.traffic.requests))
    assert len(requests) == 8
    client.config_resetstat()
    assert play(server.port, requests, connections=2, seconds=0.05) > 0
    assert client.info("commandstats")["cmdstat_incrby"]["calls"] > 4


def test_a_replay_that_is_refused_fails(server: EmbeddedServer) -> None:
    with pytest.raises(ConnectionError, match="ERR unknown command"):
        play(server.port, [b"NONSENSE\r\n"] * 2, connections=1, seconds=1)


def test_an_answer_that_is_not_whole_fails() -> None:
    """It would be counted twice."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Thread(target=theirs.sendall, args=(b"$5\r\nhal",)).start()
        player = Player.__new__(Player)
        player.socket = ours
        with pytest.raises(ConnectionError):
            player.receive()
