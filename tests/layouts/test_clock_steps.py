"""The server whose clock the chaos steps; it needs libfaketime."""

from __future__ import annotations

from tests.rig.sites import client
from tests.tools import Background, eventually
from tests.tools.stepped import SteppedServer


def test_the_clock_of_a_server_can_be_stepped() -> None:
    """A lease measured by the wall clock ends early by a step forward, and late by one back."""
    with SteppedServer() as server, client(server.port) as one:
        one.set("lease", "", px=100_000)
        for seconds, least, most in ((40.0, 30_000, 60_000), (-60.0, 90_000, 120_000)):
            server.step(seconds)
            eventually(lambda least=least, most=most: least < one.pttl("lease") <= most)
        server.step(1000.0)
        eventually(lambda: not one.exists("lease"))
        assert Background(one.ping).outcome()  # its monotonic clock goes on
