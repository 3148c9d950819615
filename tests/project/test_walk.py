"""The way from ``lock("x")`` to the script stays short."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.__main__ import TARGETS
from example_project.embedded import EmbeddedServer
from tests.tools.walk import PAGE, walk

PROGRAM = """
import json, sys
from benchmarks.contenders import Ours
from benchmarks.scenarios import reading
print(json.dumps(reading(Ours(sys.argv[1]))))
"""


def test_a_free_lock_is_read_in_an_hour(server: EmbeddedServer) -> None:
    """Files, functions and lines that it runs with README's settings, and lines that it imports."""
    limits = {what: limit for scenario, _, what, _, limit in TARGETS if scenario == "walk"}
    answer = subprocess.check_output([sys.executable, "-c", PROGRAM, server.url()], text=True)
    found = json.loads(answer)
    assert found.keys() == limits.keys()
    assert {what: found[what] for what in found if found[what] > limits[what]} == {}


def test_the_page_shows_the_walk_as_it_is(server: EmbeddedServer) -> None:
    """``python -m tests.tools.walk`` writes it anew."""
    assert PAGE.read_text() == walk(server.url())
