"""Processes of all waiting schemes on one lock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redis_lock import lock, locks
from example_project.embedded import EmbeddedServer
from tests.layouts.mixed import KINDS, Crew
from tests.settings import REDIS, server_url
from tests.tools import Child
from tests.transport.test_waiting_schemes import OTHERS


def entry(wait: str, **options: Any) -> dict[str, Any]:
    return {"BACKEND": REDIS, "LOCATION": server_url(2), "OPTIONS": {"WAIT": wait, **options}}


@pytest.fixture
def schemes(server: EmbeddedServer) -> Iterator[None]:
    with override_settings(
        LOCKS={"blpop": entry("blpop"), "poll": entry("poll", POLL_INTERVAL=0.05)}
    ):
        yield


@pytest.mark.timeout(300)
def test_all_schemes_on_one_lock(server: EmbeddedServer, name: str, tmp_path: Path) -> None:
    """Processes of each scheme take turns fairly, though waiters and holders die."""
    settings = {"default": entry("queue", POLL_INTERVAL=0.05)}
    with override_settings(LOCKS=settings), Crew(name, settings, tmp_path) as crew:
        crew.hire(*KINDS, *KINDS)
        crew.all_go_on()
        shares = crew.shares(30)
        assert min(shares.values()) >= 15, shares
        for doing in ("waiting", "holding"):
            for kind in KINDS:
                crew.replace(crew.one(kind, doing, locks["default"], name))
        crew.all_go_on()
        assert crew.check() > 150
    with (
        override_settings(LOCKS=settings),
        redis.Redis.from_url(server_url(2), decode_responses=True) as client,
    ):
        with lock(name, timeout=20, blocking_timeout=60):  # the dead are passed over, or run out
            pass
        # What was pushed for those who were killed goes by itself, and so do their places.
        for key in set(client.keys("*")) - {"lock-fence"}:
            assert key.startswith(("lock-grant:", "lock-queue:", "lock-heard"))
            assert 0 < client.pttl(key) <= 120_000 or not client.exists(key)


FORK = """
    held = lock(sys.argv[1], timeout=20)
    held.acquire()
    first = lock(sys.argv[1], timeout=20, wait=sys.argv[2])
    waiting = threading.Thread(target=first.acquire)
    waiting.start()
    while not locks["default"].waiting(sys.argv[1]): time.sleep(0.005)
    pid = os.fork()
    if not pid:
        with lock(sys.argv[1], timeout=20, wait=sys.argv[2]) as child:
            say("child", child.fence)
        os._exit(0)
    while len(locks["default"].waiting(sys.argv[1])) < 2: time.sleep(0.005)
    held.release()
    waiting.join()
    say("parent", first.fence)
    first.release()
    os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("wait", OTHERS)
def test_a_forked_child_waits_by_itself(server: EmbeddedServer, name: str, wait: str) -> None:
    """Parent and child each hear of their own grants."""
    with Child(
        FORK, name, wait, before="import warnings; warnings.simplefilter('ignore')"
    ) as child:
        said = [child.hear().split() for _ in range(2)]
        assert [who for who, _ in said] == ["parent", "child"]
        assert int(said[0][1]) < int(said[1][1])
        assert child.end() == 0
