"""``make lint`` finds words that are not used, and pages that are too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project import words
from tests.project.words import BUDGETS, main


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project without a fault: each page has a word."""
    for page in BUDGETS:
        write(tmp_path / f"{page}.md", "Lock.")
    write(tmp_path / "django_redis_lock/celery/private.py", "self.hub = worker.hub\nfile.tell()")
    write(tmp_path / "django_redis_lock/getset.lua", "local endless = true")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_project_without_a_fault_passes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(root / "docs/reference/fencing.md", "word " * 110)
    write(root / "docs/reference/command.md", "It prints `endless`, as JSON endless_old.")
    assert (main(root), capsys.readouterr().out) == (0, "")


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("docs/reference/fencing.md", "word " * 111, "has 111 words, and a budget of 100"),
        ("docs/how-to/new.md", "Lock.", "has no budget"),
        ("docs/explanation/faq.md", None, "has a budget, but is missing"),
        ("README.md", "A lock.\nSomebody waits.", "2: 'Somebody', write: holder, waiter"),
        ("docs/index.md", "It waits for\never.", "1: 'for ever', write: without a limit"),
        ("docs/index.md", "an endless wait", "1: 'endless', write: no expiry"),
        ("django_redis_lock/a.py", "# not\n# so\n# many", "2: 'so # many', write: the number"),
        ("django_redis_lock/a.lua", "-- it is told", "1: 'told', write: say"),
        ("django_redis_lock/templates/a.html", "<p>Nobody", "1: 'Nobody', write: holder"),
        ("django_redis_lock/a.py", "class WaiterHub:", "1: 'Hub', write: waiter registry"),
    ],
)
def test_each_fault_is_found(
    root: Path, capsys: pytest.CaptureFixture[str], path: str, text: str | None, found: str
) -> None:
    if text is None:
        (root / path).unlink()
    else:
        write(root / path, text)
    assert main(root) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{path}:")
    assert found in line


def test_all_pages_together_have_a_limit(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "MOST", len(BUDGETS))
    assert main(root) == 0
    write(root / "docs/index.md", "A lock.")
    assert main(root) == 1
    assert capsys.readouterr().out == (
        f"All pages have {len(BUDGETS) + 1} words, which is more than {len(BUDGETS)}.\n"
    )
