"""Whoever follows the tutorial in an empty folder gets what it shows."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from example_project.embedded import free_port
from tests.tools import ROOT
from tests.tools.docs import TUTORIAL, blocks
from tests.tutorial.reader import Reader

TEN_MINUTES = 600


def typed_instead() -> dict[str, str]:
    """Return what is typed in place of what is written: free ports, this host."""
    return {
        "laptop": socket.gethostname(),
        "6379": str(free_port()),
        "127.0.0.1:8000": f"127.0.0.1:{free_port()}",
    }


@pytest.mark.timeout(900)
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    """Every command runs, every output is the one shown, and it takes less than ten minutes."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (tmp_path / "django-redis-lock").symlink_to(ROOT)  # the clone
    with Reader(folder, typed_instead()) as reader:
        for block in blocks(TUTORIAL):
            reader.follow(block)
    assert reader.seconds < TEN_MINUTES


def test_nothing_in_the_tutorial_is_left_out() -> None:
    """Every block of it is a command that is run or a file that is saved."""
    for block in blocks(TUTORIAL):
        assert block.language in ("console", "python"), block
        assert block.how in ("", "append", "background", "save", "varies"), block
        if block.language == "python" and not block.how:
            assert f"<!-- test\n{block.text}-->" in TUTORIAL.read_text(), block
        if block.language == "console":
            assert block.text.startswith("$ "), block
    assert re.search(r"ten\s+minutes", TUTORIAL.read_text())
