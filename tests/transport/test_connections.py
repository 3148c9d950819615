"""Every way to connect: protocols, parsers, passwords, sockets, TLS, pools."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import ipaddress
import random
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.calls import Peek
from example_project.embedded import EmbeddedServer
from tests.tools import Background, Child, eventually, handling, in_finalizer, waiters


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


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "decode_responses"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_protocols_and_decoding(
    name: str, settings: Any, server: EmbeddedServer, protocol: int, decode: bool
) -> None:
    query = f"?protocol={protocol}&decode_responses={decode}"
    settings.LOCKS = {"default": {"LOCATION": server.url() + query}}
    assert int(locks["default"].pool.connection_kwargs["protocol"]) == protocol
    exercise(name)


def test_a_server_that_went_away_costs_one_try(client: redis.Redis) -> None:
    """A call that is sent again does not use another of the connections that broke meanwhile."""
    backend = locks["default"]
    calls = backend.servers.client
    taken = [calls._take() for _ in range(3)]
    for checkout in taken:
        calls._keep(checkout)
    client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(LockUnavailable, match="closed"):
        backend.call(Peek("name"))
    assert len(calls._kept) == 3
    others = [calls._take() for _ in range(2)]
    assert backend.call(Peek("name")) is None
    assert len({id(checkout.connection) for checkout in [*others, *calls._kept]}) == 3


@pytest.mark.parametrize("protocol", [2, 3])
def test_through_django_redis(
    name: str, settings: Any, server: EmbeddedServer, protocol: int
) -> None:
    """The options of a django-redis alias apply."""
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": server.url(3),
            "OPTIONS": {
                "CONNECTION_POOL_KWARGS": {"protocol": protocol, "decode_responses": True},
                "SOCKET_TIMEOUT": 2,
            },
        },
    }
    settings.LOCKS = {"default": {"LOCATION": "locks"}}
    exercise(name)
    assert locks["default"].pool.connection_kwargs["db"] == 3


@pytest.mark.parametrize("connections", [1, 2])
def test_small_blocking_pool(
    name: str, settings: Any, server: EmbeddedServer, connections: int
) -> None:
    """A pool of one connection is enough for any number of locks and waiters."""
    settings.CACHES = {
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": server.url(connections + 4),
            "OPTIONS": {
                "CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool",
                "CONNECTION_POOL_KWARGS": {"max_connections": connections, "timeout": 5},
            },
        },
    }
    settings.LOCKS = {"default": {"LOCATION": "locks"}}
    exercise(name)
    with lock(name, timeout=20):
        queue = [Background(lambda: _pass_through(name)) for _ in range(20)]
        eventually(lambda: waiters(name) == 20)
    for waiting in queue:
        waiting.outcome()


def _pass_through(name: str) -> None:
    with lock(name, timeout=20):
        pass


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

    The embedded server is built without TLS, so a tunnel of this process's terminates it.
    """
    certificate, key = _certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets: list[socket.socket] = [listener]

    def accept() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), plain:
                client = context.wrap_socket(plain, server_side=True)
                upstream = socket.create_connection(("127.0.0.1", server.port))
                open_sockets.extend([client, upstream])
                for pair in ((client, upstream), (upstream, client)):
                    threading.Thread(target=_pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1], certificate
    locks.reset()
    for item in open_sockets:
        item.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for item in (source, target):
        with contextlib.suppress(OSError):
            item.shutdown(socket.SHUT_RDWR)


def _certificate(directory: Path) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = directory / "certificate.pem", directory / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def test_tls(name: str, settings: Any, tls: tuple[int, Path]) -> None:
    port, certificate = tls
    settings.LOCKS = {
        "default": {"LOCATION": f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"}
    }
    exercise(name)
    settings.LOCKS = {  # the name that the certificate was issued for
        "default": {"LOCATION": f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}"}
    }
    exercise(f"{name}-by-name")
    settings.LOCKS = {"default": {"LOCATION": f"rediss://127.0.0.1:{port}/0"}}
    with pytest.raises(LockUnavailable, match=r"(?i)certificate"):
        lock(name).acquire(blocking=False)


@pytest.mark.usefixtures("server")
class Interrupted(BaseException):
    """What a signal handler raises."""


class Struck(redis.Connection):
    """A connection whose first handshake is struck by an exception, before an answer is read.

    That answer always comes too late for redis-py to see it when it looks for what is left over.
    """

    strikes: ClassVar[list[str]] = []

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        if self.strikes:
            raise Interrupted(self.strikes.pop())
        return super().read_response(*args, **kwargs)

    def can_read(self, timeout: float = 0) -> bool:
        return False


@pytest.fixture(params=[redis.ConnectionPool, redis.BlockingConnectionPool])
def struck_pool(
    request: pytest.FixtureRequest, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[redis.ConnectionPool]:
    """A pool of such connections, which the default backend uses."""
    kwargs = {**redis.connection.parse_url(server.url(1)), "protocol": 3}
    pool = request.param(connection_class=Struck, **kwargs)
    backend = locks["default"]
    monkeypatch.setattr(backend.location, "pool", lambda: pool)
    yield pool
    backend.close()
    pool.disconnect()


def test_interrupted_handshake_leaves_no_answer_behind(
    name: str, struck_pool: redis.ConnectionPool
) -> None:
    """The answer that nobody has read is not taken for that of the next call."""
    Struck.strikes.append("HELLO")
    with pytest.raises(Interrupted):
        lock(name).acquire()
    assert redis.Redis(connection_pool=struck_pool).echo("ours") == b"ours"
    with lock(name, timeout=20) as held:
        assert locks["default"].holder(name).fence == held.fence


@pytest.mark.parametrize("question", [("SELECT", "1"), ("HELLO", "3")], ids=" ".join)
def test_answer_of_a_handshake_is_never_taken_for_a_lock(
    name: str, struck_pool: redis.ConnectionPool, question: tuple[str, ...]
) -> None:
    """Whoever leaves a connection in the pool out of step, a lock is not held by mistake."""
    client = redis.Redis(connection_pool=struck_pool, single_connection_client=True)
    client.connection.send_command(*question)
    client.close()  # gives the connection back
    with lock(name, timeout=20) as held:
        assert locks["default"].holder(name).fence == held.fence


@pytest.mark.parametrize("keep", [0.0, 1.0], ids=["each from the pool", "kept"])
def test_interruptions_lose_no_connection(
    name: str, server: EmbeddedServer, settings: Any, keep: float
) -> None:
    """Wherever the exception of a signal handler strikes, the pool has all connections again."""
    settings.LOCKS = {"default": {"LOCATION": server.url()}}
    backend = locks["default"]
    client = backend.servers.client
    client.KEEP = keep
    assert backend.call(Peek(name)) is None
    armed = False

    def strike(signum: int, frame: FrameType | None) -> None:
        nonlocal armed
        if armed and in_finalizer(frame):
            signal.setitimer(signal.ITIMER_REAL, 0.0001)
        elif armed:
            armed = False
            raise Interrupted

    def glance_until_struck() -> None:
        while armed:
            assert backend.call(Peek(name)) is None

    chance = random.Random(1)
    struck = 0
    with handling(signal.SIGALRM, strike):
        for _ in range(300):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00001, 0.001))
                # A function, as Python 3.13 strikes at the end of a loop outside its "try" block.
                glance_until_struck()
            except Interrupted:
                struck += 1
            finally:
                armed = False
    assert struck > 250

    def all_are_back() -> bool:
        gc.collect()
        client.close()
        return not backend.pool._in_use_connections

    eventually(all_are_back)
    assert len(backend.pool._available_connections) == backend.pool._created_connections


@pytest.mark.usefixtures("server")
def test_first_use_imports_nothing() -> None:
    """A signal handler that raises in an import can leave its lock taken for good, so none runs."""
    program = """
        backend = locks["url"]
        known = set(sys.modules)
        with lock("first", using="url", timeout=5):
            backend.holder("first")
        say(*sorted(set(sys.modules) - known))
    """
    with Child(program) as child:
        assert child.hear() == ""
        assert child.end() == 0
