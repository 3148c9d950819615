"""A reader who follows the tutorial in an empty folder gets what it shows."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from example_project.embedded import free_port
from tests.tools import ROOT
from tests.tools.docs import TUTORIAL, blocks
from tests.tutorial.reader import Reader


@pytest.mark.timeout(900)
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (tmp_path / "django-redis-lock").symlink_to(ROOT)  # the clone
    instead = {
        '"django-redis-lock[celery]"': '"../django-redis-lock[celery]"',  # the clone
        "laptop": socket.gethostname(),
        "6379": str(free_port()),
        "127.0.0.1:8000": f"127.0.0.1:{free_port()}",
    }
    with Reader(folder, instead) as reader:
        for block in blocks(TUTORIAL):
            reader.follow(block)
