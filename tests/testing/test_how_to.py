"""The how-to guide about tests, whose own tests are run as those of a project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from django_redis_lock import lock
from django_redis_lock.testing import LockSpace, assert_no_locks_held, plugin
from tests.testing.project import GUIDE, Project
from tests.tools.docs import DOCS, blocks, table


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    """All but one, which starts a worker: ``tests/workers`` runs that."""
    project = Project(tmp_path)
    number = project.follow_the_guide()
    assert number >= 10
    found = project.run("-k", "not mails")
    assert found == {"passed": number - 1, "deselected": 1}, project.output


def test_the_report_is_that_of_the_guide() -> None:
    (shown,) = [block.text for block in blocks(GUIDE) if block.language == "text"]
    with LockSpace(), lock("report"), pytest.raises(AssertionError) as caught:
        assert_no_locks_held()
    numbers = re.compile(r"\d[\d.:]*")
    assert numbers.sub("0", str(caught.value)) == numbers.sub("0", shown.strip())


def test_the_options_are_those_of_the_plugin() -> None:
    rows = table(DOCS / "reference/testing.md", "pytest")
    source = Path(plugin.__file__).read_text()
    assert [row[0] for row in rows] == re.findall(r'addini\(\s*"(\w+)"', source)
    assert [row[1] for row in rows] == re.findall(r'addoption\(\s*"([\w-]+)"', source)
    assert all(space in rows[0][3] for space in plugin.SPACES)
