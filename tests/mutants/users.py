"""Which tests call which script, the quickest first."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

QUICK = ("tests/backends/test_machine.py::test_locks_on_a_server",)
"""Kills most mutants in seconds."""
ALL = ("tests/backends", "tests/operators", "tests/primitives", "tests/protocol", "tests/transport")
LONGEST = 60.0
"""Seconds that the tests of a script take together; slower ones are left out."""
FOUND = "users.json"


class Observer:
    """A plugin of pytest that writes down which scripts each test calls in its own process."""

    def __init__(self, scripts: Path) -> None:
        self._texts = {path.stem: path.read_text() for path in scripts.glob("*.lua")}
        self._users: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        from django_redis_lock.transport.scripts import Script

        called = set()
        pack = Script.pack

        def noted(script: Script, *args: Any, **kwargs: Any) -> bytes:
            called.add(script.source)
            return pack(script, *args, **kwargs)

        Script.pack = noted  # type: ignore[method-assign]
        began = monotonic()
        try:
            return (yield)
        finally:
            Script.pack = pack  # type: ignore[method-assign]
            seconds = monotonic() - began
            for stem, text in self._texts.items():
                if any(text in source for source in called):
                    self._users[stem].append((seconds, item.nodeid))

    def pytest_sessionfinish(self) -> None:
        Path(FOUND).write_text(json.dumps({stem: sorted(of) for stem, of in self._users.items()}))


def affordable(users: list[tuple[float, str]]) -> list[str]:
    """Return the tests that take no more than ``LONGEST`` seconds together, the quickest first."""
    chosen, left = [], LONGEST
    for seconds, test in users:
        left -= seconds
        if left < 0:
            break
        chosen.append(test)
    return chosen
