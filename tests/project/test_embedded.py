"""The embedded server that the demo, the tests and the benchmark run on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.tools import check_it_dies_with_its_parent


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_server_dies_with_its_parent(how: signal.Signals) -> None:
    create = "from example_project.embedded import EmbeddedServer; server = EmbeddedServer()"
    check_it_dies_with_its_parent(create, how)
