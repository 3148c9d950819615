"""The judge finds each broken rule in a small history, and nothing in a lawful one."""

from __future__ import annotations

import gzip
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.judge import __main__, rules
from tests.judge.operations import Event

PUBLISHED = sorted((Path(__file__).parent / "histories").glob("*.gz"))
SHORT = {"take": "acquire", "share": "acquire", "keep": "confirm", "free": "release"}
WORDS = {
    "A": "take a 1-2",
    "S": "share a 1-2",
    "ONE": "share b 3-5 limit=1",
    "B": "take b 2-9; queued b 3-; free a 5-5.5",
    "LINE": "A; B; take c 4-6 until=6.5",
    "DEAD": "A; take b 2- ; queued b 3-; free a 5-5.5; take c 4-6",
    "LEFT": "queued b 3-; free a 5-6; take c 4-6",
    "GONE": "A; detach a 3-4 until=7",
    "NONE": 'run - 0- excused=["unsettled"]; take z 1-2 name="z" until=2',
    "PAST": "take c 4-8 fence=4.5 until=4.6",
    "FORGET": "A; unsettled - 3-4",
}
CASES = """
one after the other       |         | A; keep a 3-4; free a 5-6; take b 2-7
two holders               | holding | A; take b 3-4
two that confirm          | holding | A; take b 3-9.1; keep a 9.2-9.3
a lease that ended        |         | A; take b 3-9
a lease 150 ms short      | holding | A; take b 3-8.85
a lease 150 ms tolerated  |         | run - 0- tolerance=0.15; A; take b 3-8.85
a lease that was renewed  |         | A; keep a 20-21; take b 3-22
a lease perhaps shorter   |         | A; extend a 3- ; take b 3-4
a fence that goes back    | fences  | A; free a 3-4; take b 5-6 fence=1
a fence given twice       | fences  | A; free a 3-4; take b 3-6 fence=2
two of two permits        |         | S; share b 1-3 limit=2
three of two permits      | holding | S; share b 1-3; share c 1-4 limit=2
a permit that is back     |         | share a 1-2 limit=1; free a 3-5; share b 3-4 limit=1
a limit raised            |         | S; set_limit o 3-4 limit=2; ONE
a limit perhaps raised    |         | S; set_limit o 3-4 info limit=2; ONE
a limit not raised        | holding | S; set_limit o 3-4 fail limit=2; ONE
a limit raised too late   | holding | S; set_limit o 6-7 limit=2; ONE
a limit lost with data    | holding | set_limit o 0-0.4 limit=2; wiped - 0.5-0.6; S; ONE
readers                   |         | S; share b 1-3; share c 1-4
a writer among readers    | holding | S; take b 1-3
a reader beside a writer  | holding | A; share b 1-3
a writer turned reader    |         | A; downgrade a 3-5; share b 3-5.5
a writer turned later     | holding | A; downgrade a 4-5; share b 3-3.5
first come, first served  |         | A; take b 2-6; queued b 3-; free a 4-5; free b 6-7; take c 4-8
last come, first served   | order   | LINE
not queued yet            |         | A; B; take c 2.9-6 until=6.5
a reader before a writer  | order   | S; take b 2-9; queued b 3-; share c 4-6
a waiter that stood still |         | LINE; stalled - 4-5 process=98
another that stood still  | order   | LINE; stalled - 4-5 process=99
a waiter that died        |         | DEAD; killed - 4-5 worker=98
a waiter that is stuck    | order   | DEAD
an outage                 |         | LINE; outage - 4-5
an outage before          | order   | LINE; outage - 1-2
a waiter that gave up     |         | A; take b 2-9 fail wait=4; LEFT
one that gave up later    | order   | A; take b 2-9 fail wait=4.5; LEFT
a reader that gave up     |         | A; share b 2-9 fail wait=4.5; LEFT
served, and died later    | order   | take b 2-5; queued b 3-; PAST; killed - 6-7 worker=98
a take, perhaps           |         | take a 1-2 info; take b 3-4
a take that shows later   | holding | take a 1-2 info; take b 3-4; keep b 6-7; keep a 4.5-5
a release, perhaps        |         | A; free a 3-4 info; take b 5-6
a release not answered    |         | A; free a 3- ; take b 5-6
a release that failed     | holding | A; free a 3-4 fail; take b 5-6
a release that came later | holding | A; free a 7- ; take b 5-6
detached and taken over   |         | GONE; take_over b 5-6
detached, perhaps         |         | A; detach a 3-4 info until=7; take_over b 5-6
detached and left         |         | GONE; take c 5-7
taken by another          | holding | GONE; take c 5-6
taken over too late       | holding | GONE; take c 5-7; take_over b 7.5-8
taken over, and held      | holding | GONE; take_over b 5-6; keep a 7-8
a ticket lost with data   |         | GONE; wiped - 4.5-5; take b 5-6
a ticket taken by force   |         | GONE; forced - 4.5-5 name="n" token_id="T"; take b 5-6
a forced release          |         | A; forced - 3-4 name="n" fence=2; take b 3-5
of another hold           | holding | A; forced - 3-4 name="n" fence=1; take b 3-5
of another lock           | holding | A; forced - 3-4 name="m"; take b 3-5
and back again            | holding | A; forced - 3-4 name="n" fence=2; keep a 5-6
a grant ended by force    |         | take a 1-4; forced - 2-3 fence=1 token_id="x"; keep a 5-6
a waiter ended by force   |         | LINE; forced - 4-5 name="n" fence=1
a waiter for another      | order   | LINE; forced - 4-5 name="m" fence=1
data lost                 |         | A; wiped - 3-4; take b 3-5
data lost, and back again | holding | A; wiped - 3-4; keep a 5-6
a failover                |         | FORGET; take b 3-5
a failover that kept it   | holding | FORGET; keep a 5-6; take b 3-7
two masters for a while   |         | NONE; FORGET; keep a 5-6; take b 3-4
what came of such a hold  |         | NONE; GONE; unsettled - 4-6; take_over b 7-8; keep b 9-10
a hand-off not claimed    |         | A; queued a 1-; stalled - 1-3 process=97; take b 3-4
a hand-off claimed        | holding | A; queued a 1-; stalled - 1-3 process=98; take b 3-4
a ticket short, tolerated |         | run - 0- tolerance=0.15; GONE; take c 5-6.9
a writer perhaps a reader |         | A; downgrade a 3-4 info; share b 3-5
a waiter lost from sight  |         | A; take b 2-9 info; queued b 3-; free a 5-6; take c 4-6
a waiter refused before   |         | A; take b 2-3.5 fail wait=9; LEFT
a take that came later    |         | take a 1-2 info; take b 1-3; free b 3-4; keep a 6-7
a limit, and readers      |         | set_limit o 0-0.5 limit=1; S; share b 1-3
taken over alone          | holding | S; detach a 3-4 until=7; take_over b 5-6; share c 6.5-7.5
acquired without a wait   | holding | A; stalled - 1-3 process=97; take b 3-4
detached while cut off    |         | A; detach a 3-4 until=7; cut - 3-3; take b 5-6
and a sign of it          | holding | A; queued a 1-; keep a 2-3; paused - 3-3 worker=97; take b 3-4
"""


def events_of(text: str) -> list[Event]:
    """Return what a line tells. What is acquired has its end as a fence, and a lease till 9."""
    events: list[Event] = []
    for part in text.split("; "):
        if part in WORDS:
            events += events_of(WORDS[part])
            continue
        word, handle, span, *rest = part.split()
        start, end = (float(moment or "inf") for moment in span.split("-"))
        given = dict(each.split("=") for each in rest if "=" in each)
        values: Event = {"f": SHORT.get(word, word), "process": ord(handle)}
        values |= {key: json.loads(value) for key, value in given.items()}
        if handle == "-":
            events.append({"since": start, "time": end, **values})
            continue
        asked = {"name": "n", "limit": None, "wait": None, "handle": handle}
        asked |= {"ticket": "T"} if word in ("detach", "take_over") else {}
        asked["mode"] = "shared" if word == "share" else "exclusive"
        invoked = "info" if word in ("queued", "lost") else "invoke"
        events.append({**asked, "type": invoked, "time": start, **values})
        if end < 99:
            (type,) = [each for each in rest if "=" not in each] or ["ok"]
            known = {"handle": handle, "type": type, "time": end, "f": values["f"]}
            held = {"until": 9, "fence": end, "token_id": handle, **values, **known}
            events.append(held if type == "ok" and word not in ("free", "detach") else known)
    return events


def broken(events: list[Event]) -> list[str]:
    return [rule for rule, texts in __main__.judge(events).items() if texts]


@pytest.mark.parametrize("case", CASES.strip().splitlines())
def test_rule(case: str) -> None:
    _, rule, text = case.split(" | ", maxsplit=2)
    assert broken(events_of(text)) == rule.split()


def test_what_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is given up, and a history of nothing, don't pass."""
    assert broken([]) == ["fences", "holding", "order"]
    monkeypatch.setattr(rules, "BUDGET", 1)
    with pytest.raises(OverflowError, match="unknown"):
        broken(events_of("A; free a 3-4; take b 2-7"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_published_history(path: Path) -> None:
    """It breaks no rule until another handle acquires a lock that its holder still confirms."""
    events = [*__main__.read(path)]
    assert broken(events) == []
    shows = [one for one in events if one["type"] == "ok" and one["f"] == "confirm"]
    one, _ = next(pair for pair in pairwise(shows) if pair[0]["handle"] == pair[1]["handle"])
    asked = next(each for each in events if each.get("handle") == one["handle"])
    thief = {"handle": "thief", "mode": "exclusive", "limit": None, "fence": one["fence"] + 1}
    thief |= {"time": one["time"], "until": one["time"]}
    events += [{**asked, **thief, "type": type} for type in ("invoke", "ok")]
    assert "holding" in broken(events)


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run is a file, or all files of a directory."""
    first, *others = map(json.dumps, events_of("run - 0- ; A; take b 3-4; take c 9.1-9.2"))
    (tmp_path / "1.jsonl").write_text(first)
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress("\n".join(others).encode()))
    monkeypatch.setattr(sys, "argv", ["judge", str(PUBLISHED[0])])
    assert __main__.main() == 0
    monkeypatch.setattr(sys, "argv", ["judge", str(PUBLISHED[0]), str(tmp_path)])
    assert __main__.main() == 1
    lawful, unlawful = capsys.readouterr().out.split(f"{tmp_path}:")
    assert "broken" not in lawful
    for what in ("holding  broken", '"handle": "a"', '"handle": "b"'):
        assert what in unlawful
    assert '"c"' not in unlawful
    with pytest.raises(ValueError, match="too many"):
        broken(events_of("run - 0- ; run - 0- ; A"))
