"""The how-to guide about tests, whose own tests are run as those of a project."""

from __future__ import annotations

import re
from pathlib import Path

from django_redis_lock.testing import plugin
from tests.testing.project import GUIDE, Project
from tests.tools.docs import DOCS, blocks, table


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    """All but one, which starts a worker: ``tests/workers`` runs that."""
    project = Project(tmp_path)
    number = project.follow_the_guide()
    assert number > 10
    found = project.run("-k", "not mails")
    assert found == {"passed": number - 1, "deselected": 1}, project.output


def test_the_report_is_that_of_the_guide(tmp_path: Path) -> None:
    (shown,) = [block.text for block in blocks(GUIDE) if block.language == "text"]
    project = Project(tmp_path)
    project.configure()
    project.tests("def test_a_report(): lock('report').acquire()")
    assert project.run("--lock-space=memory", "--fail-on-held-locks") == {"passed": 1, "error": 1}
    numbers = re.compile(r"[\d.:]+")
    (told,) = re.findall(r"^1 lock is still held:\n.*\n", project.output, re.MULTILINE)
    assert numbers.sub("0", told) == numbers.sub("0", shown)


def test_the_options_are_those_of_the_plugin() -> None:
    rows = table(DOCS / "reference/testing.md", "pytest")
    source = Path(plugin.__file__).read_text()
    assert [row[0] for row in rows] == re.findall(r'addini\(\s*"(\w+)"', source)
    assert [row[1] for row in rows] == re.findall(r'addoption\(\s*"([\w-]+)"', source)
    assert all(space in rows[0][3] for space in plugin.SPACES)
