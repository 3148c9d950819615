"""A plugin of pytest for mutmut: lets it know what Celery workers call, and saves starting them.

mutmut tries a mutant with the tests that call the changed function. It learns these in a run that
notes the calls in its own process; here the workers write theirs into a file, from which they are
added to those of the test.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from mutmut.state import state

CALLS = "MUTMUT_CALLS"
"""The environment variable with the path of the file."""


class _WrittenDown(set[str]):
    """What a worker calls."""

    def add(self, name: str) -> None:
        with Path(os.environ[CALLS]).open("a") as file:
            file.write(f"{name}\n")


def write_down() -> None:
    """Let the tests' process know what this one calls."""
    state()._stats = _WrittenDown()


def pytest_configure() -> None:
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        handle, os.environ[CALLS] = tempfile.mkstemp()
        os.close(handle)


def pytest_unconfigure() -> None:
    if path := os.environ.pop(CALLS, None):
        Path(path).unlink()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Add the calls of the workers to those of the test, before mutmut reads these."""
    if path := os.environ.get(CALLS):
        with Path(path).open("r+") as file:
            state()._stats.update(file.read().split())
            file.truncate(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a module together, which share a worker; mutmut names them in any order."""
    items.sort(key=lambda item: item.path.name)
