"""SIGTERM to a process that holds or waits, with the documented handler."""

from __future__ import annotations

import signal

import pytest

from django_redis_lock import lock
from tests.tools import Background, Child, eventually, waiters
from tests.tools.docs import DOCS, blocks

RECIPE = next(
    block.text for block in blocks(DOCS / "how-to/deploy-and-stop.md") if block.language == "python"
)
INSTALL = f"{RECIPE}\nsignal.signal(signal.SIGTERM, stop)\n"
HOLD = """
with lock(sys.argv[1], timeout=600):
    say("ready")
    while True:
        hear()
"""
HOLD_IN_A_LOOP = """
import asyncio

async def main():
    async with lock(sys.argv[1], timeout=600):
        say("ready")
        await asyncio.sleep(600)

asyncio.run(main())
"""
WAIT = """
say("ready")
lock(sys.argv[1], timeout=600).acquire()
"""


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("program", [HOLD, HOLD_IN_A_LOOP, WAIT], ids=["hold", "task", "wait"])
def test_as_documented_nothing_is_left(name: str, program: str) -> None:
    """A waiter has the lock of a holder at once, and not in ten minutes; a waiter has left."""
    held = lock(name, timeout=60)
    if program == WAIT:
        held.acquire()
    with Child(INSTALL + program, name) as child:
        assert child.hear() == "ready"
        waiter = Background(lock(name, timeout=20).acquire) if program != WAIT else None
        eventually(lambda: waiters(name) == 1)
        child.process.send_signal(signal.SIGTERM)
        assert child.end() == 128 + signal.SIGTERM
        assert waiter.outcome() if waiter else waiters(name) == 0
