"""The servers of a run, and what a fault can do to them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redis_lock import locks
from example_project.embedded import EmbeddedServer
from tests.soak.heartbeat import BEAT
from tests.soak.plan import DEFAULT_LEASE
from tests.tools.proxy import Proxy

TIMEOUT = 1.0
"""Seconds after which a reply is taken not to come, by callers and by the pulse."""
PULSE_KEY = "chaos-pulse"
PULSE_MS = 60_000
FRESH = 0.25
"""Seconds for which an answer tells that a server works."""
STAYS = ("-fence", "-audit", "-lost", "-server", PULSE_KEY)
"""What is in keys that are there for all locks, and stay."""
BOUNDED = ("-claim:", "-grant:", "-heard", "-queue:")
"""What is in keys that a dead process may leave, if they have an end."""
_FAKETIME = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
)


class SteppedServer(EmbeddedServer):
    """A server whose clock can be set while it runs, by libfaketime; the monotonic one goes on."""

    def __init__(self, *config: str, persist: bool = False) -> None:
        super().__init__(*config, persist=persist)
        self._ahead = 0.0

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self._ahead += seconds
        new = self._clock.with_suffix(".new")
        new.write_text(f"{self._ahead:+.3f}")
        new.replace(self._clock)  # whole or not at all, for the server reads it all the time

    @property
    def _clock(self) -> Path:
        return self.directory / "clock"

    def _command(self, binary: Path) -> list[str]:
        self.step(0.0)
        environment = (
            f"LD_PRELOAD={_faketime()}",
            f"FAKETIME_TIMESTAMP_FILE={self._clock}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
        )
        return ["/usr/bin/env", *environment, *super()._command(binary)]


def _faketime() -> str:
    for path in _FAKETIME:
        if Path(path).exists():
            return path
    raise FileNotFoundError("steps of the clock need libfaketime: apt-get install faketime")


def client(port: int) -> redis.Redis:
    """Return a client that tries once, and for a second."""
    return redis.Redis(
        port=port,
        socket_timeout=TIMEOUT,
        socket_connect_timeout=TIMEOUT,
        retry=Retry(NoBackoff(), 0),
    )


def write(port: int) -> None:
    """Write something on a server."""
    with client(port) as one:
        one.set(PULSE_KEY, "", px=PULSE_MS)


class Site:
    """Servers that locks are kept on, and the Django settings by which callers find them.

    ``needed`` is how many of the servers have to work for locks to be had.
    """

    servers: Sequence[EmbeddedServer]
    proxies: Sequence[Proxy] = ()
    """One in front of each server, where the network is to fail."""
    marker = b"EVAL"
    """What is in every request whose reply may be lost."""
    needed = 1
    kept_for = 0.0
    """Seconds for which a lock is kept for one whose turn it is, and who may be dead."""
    rejoins_in = 0.0
    """Seconds after its start in which a server does not take part; no other may fail meanwhile."""
    clock_kept_for = 0.0
    """Seconds for which callers go by what the server's clock read before."""
    fences_tell = True
    """Whether a fence is a moment of the clock that all processes share."""

    def settings(self) -> dict[str, Any]:
        """Return the Django settings of callers, without INSTALLED_APPS."""
        raise NotImplementedError

    def close(self) -> None:
        """End what was started."""
        with contextlib.ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.stop)
            for proxy in self.proxies:
                stack.callback(proxy.close)

    def doors(self) -> list[int]:
        """Return the port by which callers reach each server."""
        return [item.port for item in self.proxies or self.servers]

    def prepare(self) -> None:
        """Do what has to be done once before locks can be had; the settings are in force."""

    def ask(self) -> None:
        """Do what callers need, the way they do it. Raises what a client raises."""
        errors: list[Exception] = []
        for port in self.doors():
            try:
                write(port)
            except (redis.RedisError, OSError) as error:
                errors.append(error)
        if len(self.doors()) - len(errors) < self.needed:
            raise errors[0]

    def leftovers(self) -> list[str]:
        """Return the keys that are left when nobody uses locks."""
        return leftovers(self.servers)


def leftovers(servers: Iterable[EmbeddedServer]) -> list[str]:
    """Return what is on servers beyond what is to stay."""
    found: set[str] = set()
    for server in servers:
        with client(server.port) as one:
            for key in one.scan_iter():
                text = key.decode()
                bounded = any(part in text for part in BOUNDED) and one.pttl(key) != -1
                if not (bounded or any(part in text for part in STAYS)):
                    found.add(text)
    return sorted(found)


class Independent(Site):
    """Servers that know nothing of each other: one, or a quorum's.

    ``entry`` is what the alias of LOCKS says beside LOCATION, a URL or a list of them.
    """

    def __init__(
        self,
        entry: dict[str, Any],
        count: int = 1,
        *,
        proxied: bool = False,
        persist: bool = True,
        stepped: bool = False,
        kept_for: float = 0.0,
        rejoins_in: float = 0.0,
        clock_kept_for: float = 0.0,
        fences_tell: bool = True,
        marker: bytes = b"EVAL",
    ) -> None:
        self._entry = entry
        self.kept_for = kept_for
        self.rejoins_in = rejoins_in
        self.clock_kept_for = clock_kept_for
        self.needed = count // 2 + 1
        self.fences_tell = fences_tell and not stepped
        self.marker = marker
        self._pings: list[_Pings] = []
        kind = SteppedServer if stepped else EmbeddedServer
        self.servers = [kind(persist=persist) for _ in range(count)]
        try:
            for server in self.servers:
                server.start()
            if proxied:
                self.proxies = [Proxy(server.port) for server in self.servers]
            if count > 1:
                self._pings = [_Pings(port) for port in self.doors()]
        except BaseException:
            self.close()
            raise

    def settings(self) -> dict[str, Any]:
        """Return the Django settings of callers, without INSTALLED_APPS."""
        options = f"socket_timeout={TIMEOUT}&socket_connect_timeout={TIMEOUT}"
        urls = [f"redis://127.0.0.1:{port}/0?{options}" for port in self.doors()]
        location = urls[0] if len(urls) == 1 else urls
        entry = {"LOCATION": location, "TIMEOUT": DEFAULT_LEASE, **self._entry}
        return {"LOCKS": {"default": entry}}

    def prepare(self) -> None:
        """Tell the servers of a quorum that there was nobody before us."""
        if len(self.servers) > 1:
            locks["default"].admit()

    def ask(self) -> None:
        """Write on as many servers as have to work, without waiting for the others."""
        if not self._pings:
            super().ask()
            return
        fresh = [item for item in self._pings if item.good]
        if len(fresh) < self.needed:
            raise next(item for item in self._pings if not item.good).error

    def close(self) -> None:
        """End what was started."""
        for item in self._pings:
            item.stopped.set()
        super().close()


class _Pings(threading.Thread):
    """Asks one server all the time."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._good_at = 0.0
        self.error: Exception = redis.ConnectionError("not asked yet")
        self.stopped = threading.Event()
        self.start()

    @property
    def good(self) -> bool:
        """Whether it answered just now."""
        return monotonic() - self._good_at < FRESH

    def run(self) -> None:
        while not self.stopped.wait(BEAT):
            try:
                write(self._port)
            except (redis.RedisError, OSError) as error:
                self.error, self._good_at = error, 0.0
            else:
                self._good_at = monotonic()
