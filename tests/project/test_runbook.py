"""What the runbook promises an alert that links to it, and what it forbids; `make workers` types
its commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import django_redis_lock
from example_project.embedded import EmbeddedServer
from tests.tools.console import command
from tests.tools.docs import DOCS

PACKAGE = Path(django_redis_lock.__file__).parent
PAGE = DOCS / "how-to" / "runbook.md"
RULES = DOCS / "observability" / "alerts.yml"


def test_each_alert_has_its_section() -> None:
    """Its heading makes the anchor to which the alert's ``runbook_url`` leads."""
    page = PAGE.read_text().split("\n## The alerts\n")[1]
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == alerts


def test_what_the_decisions_are_taken_by_is_what_is_shown() -> None:
    """Each word that the operator looks for is one that the package writes."""
    page = PAGE.read_text()
    tables = [
        page.split(f"# {heading}\n")[1] for heading in ("Decide by what you see", "LocksLost")
    ]
    sections = [text.split("\n#")[0] for text in tables]
    rows = [row for text in sections for row in text.splitlines() if row.startswith("| ")]
    seen = [row.split("|")[1] for row in rows]
    words = {word for cell in seen for word in re.findall(r"`(?:state = )?([^`]+)`", cell)}
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert len(words) > 5
    assert [word for word in words if not re.search(re.escape(word), source, re.IGNORECASE)] == []


@pytest.mark.parametrize("line", re.findall(r"`locks ([^`]+)`", PAGE.read_text()))
def test_each_command_within_the_text_can_be_typed(server: EmbeddedServer, line: str) -> None:
    """As it stands, with a name and a token id; what it would release stays held."""
    words = line.replace("NAME", "a").replace("ID", "0" * 16).split()
    done = command(*words, *(["--dry-run"] if words[0] == "release" else []), "--using=default")
    assert done.code in (0, 3), done.err
