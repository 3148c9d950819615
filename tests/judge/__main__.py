"""Judge recorded histories: ``python -m tests.judge DIRECTORY|FILE...``. Exit code 1 if one breaks
a rule. A file that does not begin with the event ``run`` belongs to the run before it."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.judge.operations import Event, History
from tests.judge.search import Search

RULES = ("fences", "holding", "order")
"""Fences rise; as many hold a lock as may, as long as they may; waiters are served in turn. Each is
judged together with those before it that hold."""


def judge(events: Iterable[Event]) -> tuple[Counter[str], dict[str, list[str]]]:
    """Return figures, and for each rule that is promised how it was broken."""
    history = History(events)
    figures = Counter(event["what"] for _, _, event in history.faults["fault"])
    figures["operations"] = sum(map(len, history.locks.values()))
    found: dict[str, list[str]] = {}
    for rule in RULES:
        if rule in history.facts.get("promised", RULES):
            rules = [rule, *(other for other in found if not found[other])]
            found[rule] = [] if figures["operations"] else ["there is nothing to judge"]
            for name in history.locks:
                search = Search(history, name, rules)
                found[rule] += _broken(history, name, search)
                figures["states"] += search.states
    return figures, found


def _broken(history: History, name: str, search: Search) -> Iterator[str]:
    """Yield what is wrong with a lock, and the events that show it."""
    try:
        found = search.run()
    except OverflowError:
        yield f"{name}: unknown after {search.states} states"
        return
    if found is not None:
        one, others = found
        yield f"{name}: {one.hold} can't {one.asked['f']} from {one.start:.6f} to {one.end:.6f}"
        for event in history.events:
            if event.get("handle") in {one.hold, *others} and event["time"] <= one.end:
                yield json.dumps(event)


def read(paths: Iterable[Path]) -> list[tuple[str, list[Event]]]:
    """Return runs, each with the name of its first file."""
    runs: list[tuple[str, list[Event]]] = []
    for file in (file for path in paths for file in sorted(path.glob("*.jsonl*")) or [path]):
        content = file.read_bytes()
        lines = (gzip.decompress(content) if file.suffix == ".gz" else content).splitlines()
        events = [json.loads(line) for line in lines]
        if not runs or (events and events[0]["f"] == "run"):
            runs.append((str(file), []))
        runs[-1][1].extend(events)
    return runs


def main() -> int:
    broken = len(sys.argv) < 2
    for name, events in read(map(Path, sys.argv[1:])):
        figures, found = judge(events)
        print(f"{name}:", *(f"  {what:36} {value:10}" for what, value in figures.items()), sep="\n")
        for rule, texts in found.items():
            print(f"  {rule:36} {'broken' if texts else 'kept':>10}", *texts, sep="\n    ")
            broken |= bool(texts)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
