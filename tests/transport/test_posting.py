"""Calls that are sent without waiting for their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.protocol.calls import Inspect, Release
from example_project.embedded import EmbeddedServer
from tests.tools import eventually, stored


@pytest.fixture(params=["tcp", "unix"])
def backend(
    request: pytest.FixtureRequest, own_server: EmbeddedServer, settings: Any
) -> Iterator[RedisLockBackend]:
    """A backend of each kind of connection: one whose bytes may be held back, one whose may not."""
    if request.param == "unix":
        settings.LOCKS = {"default": {"LOCATION": f"unix://{own_server.unix_socket}"}}
    else:
        settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    backend = locks["default"]
    assert isinstance(backend, RedisLockBackend)
    yield backend
    backend.close()


@pytest.fixture
def control(own_server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(own_server.url()) as client:
        yield client


def held(control: redis.Redis, name: str) -> Release:
    control.set(f"lock:{name}", "token 1 - - {}")
    return Release(name, "token")


def post(backend: Any, call: Release) -> None:
    backend.servers.client.post(backend.servers.packing.pack(call))


def apost(backend: Any, call: Release) -> None:
    backend.servers.async_client.post(backend.servers.packing.pack(call))


def test_a_posted_call_is_carried_out_before_the_next(
    name: str, backend: RedisLockBackend, control: redis.Redis
) -> None:
    """A call that follows finds it done, and gets its own reply."""
    with lock(name, timeout=20):  # the scripts are known from here on
        pass
    for number in range(50):
        post(backend, held(control, name))
        control.set(f"lock:{name}-other", f"{number} 1 - - {{}}")
        post(backend, held(control, name))
        assert stored(backend, name) is None
        assert stored(backend, f"{name}-other") == f"{number} 1 - - {{}}".encode()


def test_a_connection_is_closed_once_what_was_posted_is_done(
    name: str, backend: RedisLockBackend, control: redis.Redis
) -> None:
    """Though the server had forgotten the script."""
    call = held(control, name)
    control.script_flush()
    post(backend, call)
    backend.close()
    assert control.get(f"lock:{name}") is None


def test_a_connection_that_dies_with_replies_owed(
    name: str, backend: RedisLockBackend, control: redis.Redis
) -> None:
    """The next call is sent again over another one, as on any that broke, and is in step."""
    call = held(control, name)
    post(backend, call)
    eventually(lambda: not control.get(f"lock:{name}") or stored(backend, name) is None)
    post(backend, Release(name, "nobody"))
    control.client_kill_filter(_type="normal", skipme=True)
    control.set(f"lock:{name}", "mine 2 - - {}")
    for _ in range(3):
        assert stored(backend, name) == b"mine 2 - - {}"


def test_posting_under_asyncio(name: str, backend: RedisLockBackend, control: redis.Redis) -> None:
    """It is written before later calls, connected or not, whatever scripts the server knows."""

    async def main() -> None:
        apost(backend, held(control, name))
        while (await backend.acall(Inspect([name])))[1] is not None:
            await asyncio.sleep(0.001)
        apost(backend, held(control, name))
        assert (await backend.acall(Inspect([name])))[1] is None
        control.script_flush()
        apost(backend, held(control, name))
        assert (await backend.acall(Inspect([name])))[1] is None

    asyncio.run(main())
