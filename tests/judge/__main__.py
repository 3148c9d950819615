"""Judge recorded histories: ``python -m tests.judge RUN...``, each a file or a directory of files.
Exit code 1 if one breaks a rule."""

import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from tests.judge.operations import Event, History
from tests.judge.rules import fences, holding, order

RULES = {rule.__name__: rule for rule in (fences, holding, order)}


def judge(events: Iterable[Event]) -> dict[str, list[str]]:
    """Return for each rule that is promised what broke it, and the events that show it."""
    history, found = History(events), dict[str, list[str]]()
    for rule in history.facts.get("promised", RULES):
        found[rule] = [] if history.locks else ["there is nothing to judge"]
        for name in history.locks:
            for one, others in islice(RULES[rule](history, name), 1):
                found[rule].append(f"{name}: {one.hold} can't {one.asked['f']} by {one.end:.6f}")
                told = (each for each in history.events if each["time"] <= one.end)
                handles = {one.hold, *others}
                found[rule] += [json.dumps(each) for each in told if each.get("handle") in handles]
    return found


def read(path: Path) -> Iterator[Event]:
    """Yield the events of a run."""
    for file in sorted(path.glob("*.jsonl*")) or [path]:
        content = file.read_bytes()
        lines = (gzip.decompress(content) if file.suffix == ".gz" else content).splitlines()
        yield from map(json.loads, lines)


def main() -> int:
    broken = len(sys.argv) < 2
    for path in map(Path, sys.argv[1:]):
        print(f"{path}:")
        for rule, texts in judge(read(path)).items():
            print(f"  {rule:8} {'broken' if texts else 'kept'}", *texts, sep="\n    ")
            broken |= bool(texts)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
