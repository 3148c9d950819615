"""A run: its parts and rounds, the time left, and the results that an interruption leaves."""

import argparse
import json
import math
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

RESULTS = Path(__file__).parents[1] / "results"
INTERRUPTED = 128 + signal.SIGINT
"""The exit status of an interrupted run."""

T = TypeVar("T")


def say(text: str) -> None:
    """Print to standard error, which leaves standard output to the results."""
    print(text, file=sys.stderr, flush=True)


class Run:
    """Runs parts, whose expected seconds it is given by title, and reports the time left.

    After an interruption it runs no further parts; `missing` names what was not measured.
    """

    def __init__(self, expected: Mapping[str, float]) -> None:
        self.missing: list[str] = []
        self._expected = dict(expected)
        self._done: list[str] = []
        self._began = time.monotonic()
        self._measuring = False
        self._interrupted = False

    @contextmanager
    def interruptible(
        self,
        *signals: signal.Signals,
        then: signal.Handlers = signal.SIG_DFL,
    ) -> Iterator[None]:
        """Let the first of these signals interrupt the run; `then` handles the next ones."""
        before = {number: signal.getsignal(number) for number in signals}

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            for number in signals:
                signal.signal(number, then)
            self._interrupted = True
            if self._measuring:
                raise KeyboardInterrupt

        for number in signals:
            signal.signal(number, interrupt)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def seconds(self) -> float:
        """The seconds since the run began."""
        return time.monotonic() - self._began

    def part(self, title: str, measure: Callable[[], T]) -> T | None:
        """Measure a part; return None if the run was interrupted before it had any result."""
        if self._interrupted:
            self.missing.append(title)
            return None
        place = f"[{len(self._done) + 1}/{len(self._expected)}]"
        say(f"{place} {title} (about {_rounded(self._left())} left)")
        self._measuring = True
        try:
            return measure()
        except KeyboardInterrupt:
            self._stop(title)
            return None
        finally:
            self._measuring = False
            self._done.append(title)

    def rounds(
        self,
        count: int,
        items: Sequence[str],
        measure: Callable[[str, int], T | None],
        seconds: float = math.inf,
    ) -> dict[str, list[T]]:
        """Measure every item in each round, in random order; return the values by item.

        A measurement without a value returns None. No round begins that would likely end after
        `seconds`. If the run is interrupted, the rounds so far are the result.
        """
        found: dict[str, list[T]] = {item: [] for item in items}
        began, longest = time.monotonic(), 0.0
        for turn in range(count):
            started = time.monotonic()
            if turn and started - began + longest > seconds:
                say(f"  {turn} of {count} rounds; another would take too long")
                break
            values: dict[str, T] = {}
            try:
                for item in random.sample(items, len(items)):
                    value = measure(item, turn)
                    if value is not None:
                        values[item] = value
            except KeyboardInterrupt:
                if not turn:
                    raise
                self._stop(f"{self._title()}: {count - turn} of {count} rounds")
                break
            for item, value in values.items():
                found[item].append(value)
            longest = max(longest, time.monotonic() - started)
        return found

    def note(self) -> str:
        """Return a paragraph on what is missing, or an empty text."""
        return f"**Interrupted. Not measured: {'; '.join(self.missing)}.**" if self.missing else ""

    def _stop(self, missing: str) -> None:
        say("interrupted; the results so far are kept, a second signal drops them")
        self._interrupted = True
        self.missing.append(missing)

    def _title(self) -> str:
        return list(self._expected)[len(self._done)]

    def _left(self) -> float:
        done = sum(self._expected[title] for title in self._done)
        pace = self.seconds / done if done else 1.0
        return pace * (sum(self._expected.values()) - done)


def parser(module: str, description: str, quick: str, stem: str, pictures: str) -> Any:
    """Return a parser with the options that every benchmark has."""
    made = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=f"{description} Ctrl-C or SIGTERM ends the run and keeps its results so far.",
    )
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument(
        "--output",
        type=Path,
        default=RESULTS,
        help=f"directory for {stem}.json, {stem}.md{pictures}",
    )
    return made


def write(output: Path, stem: str, results: dict[str, Any], page: str) -> None:
    output.mkdir(parents=True, exist_ok=True)
    (output / f"{stem}.json").write_text(json.dumps(results, indent=1) + "\n")
    (output / f"{stem}.md").write_text(page)
    say(f"written to {output} after {results['seconds']:.0f} s")


def _rounded(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
