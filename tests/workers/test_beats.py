"""Beats of which one leads, while they are stopped, killed, frozen and cut off."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from example_project.embedded import EmbeddedServer
from tests.apps.celery.kept import KEPT
from tests.tools import PATIENCE, eventually
from tests.tools.beats import Beats


@pytest.fixture
def beats(server: EmbeddedServer, own_server: EmbeddedServer, tmp_path: Path) -> Iterator[Beats]:
    """Beats whose locks are on another server than their messages."""
    beats = Beats(tmp_path, **{KEPT: str(own_server.port)})
    yield beats
    beats.kill()


def test_another_leads_whatever_becomes_of_the_leader(beats: Beats) -> None:
    """Once it was stopped, killed, interrupted or frozen; then it sends nothing more."""
    beats.start()
    leader = beats.next_leader()
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGSTOP):
        standby = beats.start()
        assert beats.next_leader() is leader
        leader.process.send_signal(number)
        if number != signal.SIGSTOP:
            assert leader.process.wait(PATIENCE) == (-number if number == signal.SIGKILL else 0)
        assert beats.next_leader() is standby
        former, leader = leader, standby
    former.process.send_signal(signal.SIGCONT)
    eventually(lambda: former.lines("does not lead"), "it gives up")
    assert beats.next_leader() is leader
    beats.check()


def test_the_lock_server_is_gone_for_a_while(beats: Beats, own_server: EmbeddedServer) -> None:
    leader = beats.start()
    beats.next_leader()
    own_server.kill()
    eventually(lambda: leader.lines("does not lead"), "it stops sending")
    own_server.restart()
    assert beats.next_leader() is leader
    beats.check()
