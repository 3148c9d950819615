"""Every way to connect: protocols, parsers, passwords, sockets, TLS, pools."""

from __future__ import annotations

import asyncio
import math
import random
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from hashlib import sha512
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.calls import Inspect, ask
from example_project.embedded import EmbeddedServer
from tests.tools import Background, Child, eventually, handling, in_finalizer, stored, waiters
from tests.tools.interruption import Interrupted
from tests.tools.proxy import Proxy


def exercise(name: str) -> None:
    """Take every kind of path to the server: hold, wait, renew, list, break; sync and async."""
    with lock(name, timeout=20) as held:
        held.extend(5)
        held.ensure_held()
        assert [holder.name for holder in locks["default"].holders()] == [name]
        waiting = Background(lock(name, timeout=20).acquire)
        eventually(lambda: waiters(name) == 1)
        assert [item.thread for item in locks["default"].waiting(name)] == [waiting.name]
    assert waiting.outcome() is True
    assert locks["default"].force_release(name, by="ключ")
    assert "ключ" in [entry.by for entry in locks["default"].history(name)]

    async def main() -> None:
        async with lock(name, timeout=20):
            task = asyncio.create_task(lock(name).aacquire())
            while (await locks["default"].aholder(name)).waiters == 0:
                await asyncio.sleep(0.001)
            assert len(await locks["default"].awaiting(name)) == 1
        assert await task
        # A lock that was handed off is looked after once more, and may be found lost by then.
        assert "ключ" in [entry.by for entry in await locks["default"].ahistory(name)]

    asyncio.run(main())
    assert locks["default"].force_release(name)


@pytest.mark.parametrize(("protocol", "decode"), [(2, False), (3, True)])
def test_protocols_and_decoding(
    name: str, settings: Any, server: EmbeddedServer, protocol: int, decode: bool
) -> None:
    query = f"?protocol={protocol}&decode_responses={decode}"
    settings.LOCKS = {"default": {"LOCATION": server.url() + query}}
    exercise(name)
    assert protocols() == {2}


def protocols() -> set[int]:
    """Return which protocols the connections of the default backend speak."""
    idle = [connection.origin for connection in locks["default"].servers.client._idle]
    assert idle
    listening = locks["default"].registry_for("").receiver.connection.origin
    return {int(origin.protocol) for origin in [*idle, listening]}


def test_connections_that_the_server_closed_while_idle(client: redis.Redis) -> None:
    """The next call finds out and is sent again, over a new one; the others are not tried."""
    backend = locks["default"]
    calls = backend.servers.client
    calls._idle.extend([calls._open(math.inf) for _ in range(3)])
    client.client_kill_filter(_type="normal", skipme=True)
    call = Inspect(["name"])
    assert backend.call(call)[1] is None
    assert call.resent
    assert len(calls._idle) == 1


@pytest.mark.usefixtures("server")
def test_a_backend_that_is_closed_while_a_caller_waits(name: str) -> None:
    """The caller opens another listening connection, which is closed as it leaves."""
    held, backend = lock(name, timeout=20), locks["default"]
    held.acquire()
    waiting = Background(lock(name, timeout=20).acquire)
    eventually(lambda: waiters(name) == 1)
    backend.close()
    held.release()
    assert waiting.outcome() is True
    eventually(lambda: backend.registry_for("").receiver.connection is None)


def test_timeouts_where_the_settings_have_none(settings: Any, server: EmbeddedServer) -> None:
    """Each connection has some, of an alias and of a URL; a caller's own limit passes."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url()}
    settings.CACHES = {**settings.CACHES, "timeless": cache}
    settings.LOCKS = {
        "alias": {"LOCATION": "timeless"},
        "url": {"LOCATION": server.url()},
        "own": {"LOCATION": server.url() + "?socket_timeout=2&socket_keepalive=no"},
    }
    expected = {"alias": (5.0, 5.0, 1), "url": (5.0, 5.0, 1), "own": (2.0, 5.0, 0)}
    for using, (timeout, connect_timeout, keepalive) in expected.items():
        with lock("name", timeout=20, blocking=False, using=using):
            origin = locks[using].servers.client._idle[-1].origin
        assert origin._sock.gettimeout() == origin.socket_timeout == timeout
        assert origin.socket_connect_timeout == connect_timeout
        assert origin._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == keepalive


def test_unix_socket(name: str, settings: Any, own_server: EmbeddedServer) -> None:
    settings.LOCKS = {"default": {"LOCATION": f"unix://{own_server.unix_socket}?db=2"}}
    exercise(name)


def test_password(name: str, settings: Any) -> None:
    with EmbeddedServer("--requirepass", "se cret") as server:
        settings.LOCKS = {"default": {"LOCATION": f"redis://:se%20cret@127.0.0.1:{server.port}/0"}}
        exercise(name)
        settings.LOCKS = {"default": {"LOCATION": server.url()}}
        with pytest.raises(LockUnavailable, match=r"(?i)auth"):
            lock(name).acquire(blocking=False)
        locks.reset()


@pytest.fixture
def tls(server: EmbeddedServer, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A port that speaks TLS for the server, and the file of the certificate to trust.

    The embedded server is built without TLS, so a proxy terminates it.
    """
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    files = ("-out", str(certificate), "-keyout", str(key))
    subprocess.run(["openssl", "req", "-x509", *kind, *subject, *files], check=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    with Proxy(server.port, context) as proxy:
        yield proxy.port, certificate
        locks.reset()


def test_tls(name: str, settings: Any, tls: tuple[int, Path]) -> None:
    port, certificate = tls
    settings.LOCKS = {
        "default": {"LOCATION": f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"}
    }
    exercise(name)
    settings.LOCKS = {"default": {"LOCATION": f"rediss://127.0.0.1:{port}/0"}}
    with pytest.raises(LockUnavailable, match=r"(?i)certificate"):
        lock(name).acquire(blocking=False)


@pytest.mark.usefixtures("server")
def test_an_event_loop_that_can_not_watch_sockets(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As asyncio's default on Windows; the error names it and the one to use."""
    monkeypatch.delattr("asyncio.selector_events.BaseSelectorEventLoop.add_reader")
    with pytest.raises(LockUnavailable, match=r"EventLoop has no add_reader.*SelectorEventLoop"):
        asyncio.run(lock(name).aacquire(blocking=False))


def test_an_asyncio_call_of_which_the_server_takes_a_part(
    name: str, own_server: EmbeddedServer, settings: Any
) -> None:
    """The rest is sent as the server reads, and replies to cancelled calls are passed over."""
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    # Unlike in all parts, since the Lua of Redis 6.2 hashes few characters of a long name.
    names = [f"{name}-{sha512(b'%d' % number).hexdigest() * 3}" for number in range(20_000)]

    async def main() -> None:
        assert not await lock(name).alocked()
        (connection,) = locks["default"].servers.async_client._connections.values()
        own_server.pause()
        try:
            answer = asyncio.ensure_future(locks["default"].arun(ask(Inspect(names))))
            while not (connection._unsent or answer.done()):
                await asyncio.sleep(0)
            assert connection._unsent
            cancelled = asyncio.ensure_future(lock(name).alocked())
            while len(connection._pending) < 2:
                await asyncio.sleep(0)
            cancelled.cancel()
        finally:
            own_server.resume()
        assert len(await answer) == 1 + 3 * len(names)
        assert not connection._loop.remove_writer(connection._socket)
        while connection._pending:
            await asyncio.sleep(0.001)
        assert connection._timer.cancelled()
        assert connection.error is None

    asyncio.run(main())


# redis-py leaves a socket that is being connected then to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_calls_leave_the_client_in_step(name: str, client: redis.Redis) -> None:
    """Wherever the exception of a signal handler strikes, each later call has its own reply."""
    backend = locks["default"]
    replies = {f"{name}-{number}": f"{number} 1 {{}}".encode() for number in range(3)}
    client.mset({f"lock:{key}": value for key, value in replies.items()})
    armed = False

    def strike(signum: int, frame: FrameType | None) -> None:
        nonlocal armed
        if armed and in_finalizer(frame):
            signal.setitimer(signal.ITIMER_REAL, 0.0001)
        elif armed:
            armed = False
            raise Interrupted

    def peek_until_struck() -> None:
        while armed:
            for key, value in replies.items():
                assert stored(backend, key) == value

    chance = random.Random(1)
    struck = 0
    with handling(signal.SIGALRM, strike):
        for _ in range(300):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00001, 0.001))
                # A function, as Python 3.13 strikes at the end of a loop outside its "try" block.
                peek_until_struck()
            except (Interrupted, UnboundLocalError):  # in whose place redis-py 6.4 raises one
                struck += 1
            finally:
                armed = False
    assert struck > 250
    for key, value in replies.items():
        assert stored(backend, key) == value


FORK = """
    backend = locks["url"]
    stored(backend, "warm-up")
    (before,) = backend.servers.client._idle
    child = os.fork()
    for number in range(50):
        with lock(f"{sys.argv[1]}-{child}", using="url", timeout=20) as held:
            assert backend.holder(held.name).fence == held.fence
    (after,) = backend.servers.client._idle
    if child == 0:
        say("new" if after is not before else "the parent's")
        os._exit(0)
    os.waitpid(child, 0)
    say("the same" if after is before else "another")
"""


@pytest.mark.usefixtures("server")
def test_a_forked_child_leaves_the_connection_to_its_parent(name: str) -> None:
    """It opens one of its own, and the parent goes on using the one it has."""
    before = "from tests.tools import stored"
    with Child(FORK, name, before=before) as child:
        assert [child.hear(), child.hear()] == ["new", "the same"]
        assert child.end() == 0


@pytest.mark.usefixtures("server")
def test_first_use_imports_nothing() -> None:
    """A signal handler that raises in an import can leave its lock taken for good, so none runs."""
    program = """
        backend = locks["url"]
        known = set(sys.modules)
        with lock("first", using="url", timeout=5) as held:
            held.ensure_held()
        say(*sorted(set(sys.modules) - known))
    """
    with Child(program) as child:
        assert child.hear() == ""
        assert child.end() == 0
