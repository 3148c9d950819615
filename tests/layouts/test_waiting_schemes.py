"""Waiting schemes: greenlets, and a connection that dies while a list is popped."""

from __future__ import annotations

import pytest

from example_project.embedded import EmbeddedServer
from tests.tools import Child

GREENLETS = """
    import gevent
    done = []
    def wait(number):
        with lock(sys.argv[1], timeout=20, wait=sys.argv[2]):
            done.append(number)
    held = lock(sys.argv[1], timeout=20)
    held.acquire()
    queue = []
    for number in range(10):
        queue.append(gevent.spawn(wait, number))
        while len(locks["default"].waiting(sys.argv[1])) <= number: gevent.sleep(0.005)
    held.release()
    gevent.joinall(queue)
    say(*done)
"""


@pytest.mark.parametrize("wait", ["blpop", "poll"])
def test_greenlets_wait_beside_each_other(server: EmbeddedServer, name: str, wait: str) -> None:
    """A waiting greenlet does not block the others, and they are served in order."""
    with Child(
        GREENLETS, name, wait, before="from gevent import monkey; monkey.patch_all()"
    ) as child:
        assert child.hear().split() == [*"0123456789"]
