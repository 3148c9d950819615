"""The servers of a run, and the settings by which callers find them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redis_lock import locks
from example_project.embedded import EmbeddedServer
from tests.rig.plan import DEFAULT_LEASE
from tests.tools.proxy import Proxy
from tests.tools.stepped import SteppedServer

TIMEOUT = 1.0
"""Seconds after which a reply is taken not to come, by callers and by the pulse."""
PULSE_KEY = "rig-pulse"
PULSE_MS = 60_000
STAYS = ("-fence", "-audit", "-lost", "-server", PULSE_KEY)
"""Parts of keys that belong to all locks, and stay."""
EXPIRE = ("-heard",)
"""Parts of keys that stay until they expire."""
OF_THE_DEAD = ("-claim:", "-grant:", "-queue:")
"""Parts of keys that a dead process may leave until they expire."""


def client(port: int) -> redis.Redis:
    """Return a client that waits for a second, and tries again only if its connection breaks."""
    return redis.Redis(
        port=port,
        socket_timeout=TIMEOUT,
        socket_connect_timeout=TIMEOUT,
        retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
    )


def write(port: int) -> None:
    with client(port) as one:
        one.set(PULSE_KEY, "", px=PULSE_MS)


def leftovers(servers: Iterable[EmbeddedServer], killed: set[int], *, strict: bool) -> list[str]:
    """Return the keys that no lock needs any more.

    Excused is what dead processes may leave until it expires. A ``strict`` look comes so late that
    this is only the places of waiters of the ``killed`` processes, which may be kept for a minute.
    """
    excused = EXPIRE if strict else (*EXPIRE, *OF_THE_DEAD)
    found: set[str] = set()
    for server in servers:
        with client(server.port) as one:
            for key in one.scan_iter():
                text = key.decode()
                bounded = any(part in text for part in excused) or _waits_dead(one, text, killed)
                stays = any(part in text for part in STAYS)
                if not stays and not (bounded and one.pttl(key) != -1):
                    found.add(text)
    return sorted(found)


def _waits_dead(one: redis.Redis, key: str, killed: set[int]) -> bool:
    """Return whether a key is a queue in which only waiters of killed processes are left."""
    entries = one.lrange(key, 0, -1) if "-queue:" in key else []
    pids = {int(pid) for entry in entries for pid in re.findall(rb'"pid":(\d+)', entry)}
    return bool(pids) and pids <= killed


@dataclass(frozen=True)
class Facts:
    """What the checker and the faults must know of a layout."""

    marker: bytes = b"EVAL"
    """What is in every request whose reply may be lost."""
    remembers: float = 0.0
    """Seconds for which a dead waiter may still be granted a lock."""
    rejoins_in: float = 0.0
    """Seconds after its start in which a server takes no part; no other may fail meanwhile."""
    clock_kept_for: float = 0.0
    """Seconds for which callers go by an old reading of the server's clock."""
    fences_tell: bool = True
    """Whether a fence is a moment of the clock that all processes share."""


class Site:
    """Servers that locks are kept on; ``needed`` of them have to work for locks to be available."""

    servers: Sequence[EmbeddedServer]
    proxies: Sequence[Proxy] = ()
    """One in front of each server, if the network is to fail."""
    needed = 1
    facts = Facts()

    def settings(self) -> dict[str, Any]:
        """Return the Django settings of callers, without INSTALLED_APPS."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Do what locks need once; the settings are in force."""

    def ask(self) -> None:
        """Ask the servers the way callers do. Raises what a client raises."""
        raise NotImplementedError

    def masters(self) -> Sequence[EmbeddedServer]:
        """Return the servers that locks are written to."""
        return self.servers

    def close(self) -> None:
        """Stop what was started."""
        raise NotImplementedError


class Independent(Site):
    """Servers that know nothing of each other: one, or a quorum's.

    ``entry`` is the alias of LOCKS without LOCATION, which is a URL or a list of them.
    """

    def __init__(
        self,
        entry: dict[str, Any],
        count: int = 1,
        facts: Facts = Site.facts,
        *,
        proxied: bool = False,
        stepped: bool = False,
    ) -> None:
        self._entry = entry
        self.needed = count // 2 + 1
        self.facts = replace(facts, fences_tell=facts.fences_tell and not stepped)
        # A server that hangs keeps the threads that ask it until they give up.
        self._pool = ThreadPoolExecutor(count * 40)
        kind = SteppedServer if stepped else EmbeddedServer
        self.servers = [kind(persist=True) for _ in range(count)]
        try:
            for server in self.servers:
                server.start()
            if proxied:
                self.proxies = [Proxy(server.port) for server in self.servers]
        except BaseException:
            self.close()
            raise
        self._ports = [item.port for item in self.proxies or self.servers]

    def settings(self) -> dict[str, Any]:
        options = f"socket_timeout={TIMEOUT}&socket_connect_timeout={TIMEOUT}"
        urls = [f"redis://127.0.0.1:{port}/0?{options}" for port in self._ports]
        location = urls[0] if len(urls) == 1 else urls
        entry = {"LOCATION": location, "TIMEOUT": DEFAULT_LEASE, **self._entry}
        return {"LOCKS": {"default": entry}}

    def prepare(self) -> None:
        """Tell the servers of a quorum that no lock was held before."""
        if len(self.servers) > 1:
            locks["default"].admit()

    def ask(self) -> None:
        """Write on all servers until as many have answered as have to work."""
        answered, error = 0, None
        for future in as_completed([self._pool.submit(write, port) for port in self._ports]):
            try:
                future.result()
            except (redis.RedisError, OSError) as raised:
                error = raised
            else:
                answered += 1
            if answered == self.needed:
                return
        assert error is not None
        raise error

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.stop)
            for proxy in self.proxies:
                stack.callback(proxy.close)
            stack.callback(self._pool.shutdown, cancel_futures=True)
