"""Waiting schemes: greenlets, and a connection that dies while a list is popped."""

from __future__ import annotations

import pytest
import redis

from django_redis_lock import lock, locks
from example_project.embedded import EmbeddedServer
from tests.tools import Background, Child, eventually

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


def test_a_grant_that_went_to_a_dead_connection_is_found(
    server: EmbeddedServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server pops for a connection that was given up is taken back, and given again.

    The test stands for the old connection: it pops before the new one does.
    """
    monkeypatch.setattr("django_redis_lock.transport.receiving.ROUND", 4)
    list_key = locks["default"].registry_for("blpop").receiver._inbox
    held = lock(name, timeout=300)
    held.acquire()
    waiting = Background(lock(name, timeout=300, wait="blpop").acquire)
    with redis.Redis.from_url(server.url(), decode_responses=True) as client:
        before = eventually(lambda: popping(client))
        (old,) = before
        stolen = Background(lambda: redis.Redis.from_url(server.url()).blpop([list_key], 20))
        eventually(lambda: len(popping(client)) == 2)
        client.client_kill_filter(_id=old)
        eventually(lambda: len(popping(client)) == 2 and old not in popping(client))
        held.release()
        assert stolen.outcome()[1].startswith(b"grant ")
        assert waiting.outcome() is True


def popping(client: redis.Redis) -> set[str]:
    return {item["id"] for item in client.client_list() if item["cmd"] == "blpop"}
