"""SIGTERM to a process that holds or waits: by default, and with the documented handler."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from django_redis_lock import lock
from tests.tools import Background, Child, eventually, waiters
from tests.tools.docs import DOCS, blocks

pytestmark = pytest.mark.usefixtures("server")

PAGE: Path = DOCS / "how-to/stop-a-process.md"
RECIPE = next(block.text for block in blocks(PAGE) if block.language == "python")
INSTALL = f"""{RECIPE}
signal.signal(signal.SIGTERM, stop)
"""
HOLD = """
with lock(sys.argv[1], timeout=600):
    say("held")
    while True:
        hear()
"""
HOLD_IN_A_LOOP = """
import asyncio

async def main():
    async with lock(sys.argv[1], timeout=600):
        say("held")
        await asyncio.sleep(600)

asyncio.run(main())
"""
WAIT = """
say("held")
lock(sys.argv[1], timeout=600).acquire()
"""


@pytest.mark.parametrize("program", [HOLD, HOLD_IN_A_LOOP])
def test_as_documented_the_lock_is_released(name: str, program: str) -> None:
    """The waiter has it at once, and not in ten minutes."""
    with Child(INSTALL + program, name) as child:
        assert child.hear() == "held"
        waiter = Background(lock(name, timeout=20).acquire)
        eventually(lambda: waiters(name) == 1)
        child.process.send_signal(signal.SIGTERM)
        assert child.end() == 128 + signal.SIGTERM
        assert waiter.outcome()


def test_as_documented_the_queue_is_left(name: str) -> None:
    """A waiter that is terminated leaves the queue."""
    with lock(name, timeout=60), Child(INSTALL + WAIT, name) as child:
        assert child.hear() == "held"
        eventually(lambda: waiters(name) == 1)
        child.process.send_signal(signal.SIGTERM)
        assert child.end() == 128 + signal.SIGTERM
        assert waiters(name) == 0
