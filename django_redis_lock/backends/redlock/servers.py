"""One server of a quorum: what is sent to it, its connection, and what its clock reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from types import SimpleNamespace
from typing import Any

from django_redis_lock.backends.redis.backend import RedisLockBackend
from django_redis_lock.backends.redlock.wires import Wire
from django_redis_lock.backends.servers.single import ScriptedServer
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call
from django_redis_lock.support.text import without_passwords
from django_redis_lock.transport import scripts
from django_redis_lock.transport.connections import listening_connection
from django_redis_lock.transport.location import databases_of
from django_redis_lock.transport.packing import Packed


class Server(RedisLockBackend):
    """One of the servers: how calls are packed for it, and the wire to it."""

    def __init__(self, alias: str, params: dict[str, Any], timeout: float) -> None:
        super().__init__(alias, params)
        assert isinstance(self.servers, ScriptedServer)
        self._packing = self.servers.packing
        self.wire = Wire(self._connection, timeout)
        self._timeout = timeout
        self._mark_key = f"{self.key_prefix}-server"
        self._fence_key = f"{self.key_prefix}-fence"

    def __str__(self) -> str:
        return self.location.alias or without_passwords(self.location.url or "")

    def _connection(self) -> Any:
        """Return a connection like those of the pool, but with our own timeout."""
        own = {"socket_timeout": self._timeout, "socket_connect_timeout": self._timeout}
        kwargs = {**self.pool.connection_kwargs, **own}
        kwargs.pop("retry", None)
        like: Any = SimpleNamespace(
            connection_class=self.pool.connection_class, connection_kwargs=kwargs
        )
        return listening_connection(like)

    def pack(self, call: Call) -> Packed:
        """Return a call, ready to be sent to this server."""
        if isinstance(call, calls.Release):
            return self.release(call)
        if isinstance(call, ReadFences):
            keys = [self._fence_key, self._mark_key]
            return _packed(scripts.QUORUM_FENCE, keys, [str(call.delay_ms)])
        if isinstance(call, Admit):
            return self.admit(call.fence)
        return self._packing.pack(call)

    def error(self, call: Call, error: Exception) -> LockError:
        """Return the error to raise for a failure of this server."""
        return self._error(call, error)

    def acquire(self, call: calls.Acquire, attempt: int, least: int, delay_ms: int) -> Packed:
        request = call.request
        return _packed(
            scripts.QUORUM_ACQUIRE,
            [*self._packing.keys(request.name), self._mark_key],
            [
                request.token,
                str(request.lease_ms),
                f'{request.record[:-1]},"try":{attempt}}}',
                request.name,
                request.entry(call.channel) if call.channel else "",
                str(least),
                str(delay_ms),
            ],
        )

    def take_over(self, call: calls.TakeOver, least: int, delay_ms: int) -> Packed:
        whole = self._packing.pack(call)
        return _packed(
            scripts.QUORUM_TAKE_OVER,
            [*self._packing.keys(call.request.name), self._mark_key],
            [*whole.args, str(least), str(delay_ms)],
        )

    def settle(self, name: str, token: str, fence: int, entry: str) -> Packed:
        lock, queue, _, last = self._packing.keys(name)
        return _packed(scripts.QUORUM_SETTLE, [lock, queue, last], [token, str(fence), entry])

    def release(self, call: calls.Release, attempt: int | str = "") -> Packed:
        lock, queue, index, _ = self._packing.keys(call.name)
        args = [call.token, call.name, call.entry, str(attempt)]
        return _packed(scripts.QUORUM_RELEASE, [lock, queue, index], args)

    def admit(self, fence: int, start: int | str = "") -> Packed:
        keys = [self._fence_key, self._mark_key]
        return _packed(scripts.QUORUM_ADMIT, keys, [str(fence), str(start)])


def _packed(script: scripts.Script, keys: list[str], args: list[str]) -> Packed:
    return Packed(script, keys, args, lambda: None)


@dataclass(slots=True, eq=False)
class ReadFences(Call):
    """Read the last fence that each server knows, and whether the server votes."""

    delay_ms: int


@dataclass(slots=True, eq=False)
class Admit(Call):
    """Let restarted servers vote, and tell them the last fence."""

    fence: int


@dataclass(slots=True, eq=False)
class ReadPages(Call):
    """Read a page of the held locks of each server, one call per server."""

    pages: Sequence[calls.ReadIndex]


class Clocks:
    """What the clocks of the servers read, as far as this process knows.

    If a caller proposes a fence that is ahead of all clocks, all servers give that one, and no
    second round trip is needed to agree on it. A wrong guess only costs that round trip.
    """

    MOST_AHEAD = 5000  # microseconds

    def __init__(self) -> None:
        self._ahead: dict[int, float] = {}  # by server: microseconds ahead of the monotonic clock
        self._took = 0.001  # seconds of a quick round

    def heard(self, answers: Sequence[Any], took: float) -> None:
        """Note the clocks in the answers to a vote."""
        now = monotonic() * 1_000_000
        self._took = min(took, self._took * 1.1)
        for index, answer in enumerate(answers):
            if isinstance(answer, list):
                self._ahead[index] = answer[2] - now

    def next_fence(self) -> int:
        """Return a time (microseconds) that no server's clock will have reached when asked."""
        if not self._ahead:
            return 0
        margin = min(self.MOST_AHEAD, 200 + 2_000_000 * self._took)
        return round(max(self._ahead.values()) + monotonic() * 1_000_000 + margin)


class Newcomers:
    """Which servers were restarted and may now be told the last fence, as far as is known."""

    def __init__(self) -> None:
        self._starts: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._starts)

    def heard(self, index: int, answer: Any) -> None:
        """Note what a server answered to an acquire or a takeover."""
        start, left_ms = _start(answer)
        if start and not left_ms:
            self._starts[index] = start
        elif index in self._starts:
            self._starts.pop(index, None)

    def take(self) -> dict[int, int]:
        """Return and forget the starts, by server. A server that is not told will say so again."""
        starts, self._starts = self._starts, {}
        return starts


def _start(answer: Any) -> tuple[int, int]:
    """Return the id of the start of a server that does not vote, and ms until it may be told."""
    if not isinstance(answer, list):
        return 0, 0
    if len(answer) == 5:
        return (answer[4], answer[1]) if answer[3] == 2 else (0, 0)
    return (answer[2], answer[3]) if answer[0] == -1 else (0, 0)


def why_silent(answer: Any) -> str:
    """Return why a server did not vote on an acquire or a takeover; ``""`` if it did."""
    start, left_ms = _start(answer)
    if not start:
        return ""
    if left_ms:
        return "was restarted and does not vote yet (REJOIN_DELAY)"
    return "was restarted, and too few others answer to tell it the last fence"


def check_servers(alias: str, location: Any) -> list[Any]:
    """Return the servers in LOCATION. Raises ``InvalidLockBackend``."""
    where = f"LOCKS[{alias!r}]['LOCATION']"
    if not isinstance(location, list | tuple):
        raise InvalidLockBackend(
            f"{where} must be a list of at least three servers, each an alias of CACHES or a "
            f"URL, not {location!r}."
        )
    count = len(location)
    if count < 3 or count % 2 == 0:
        raise InvalidLockBackend(
            f"{where} names {count} server{'' if count == 1 else 's'}; name 3, 5 or another odd "
            f"number: a fourth server would not let one more fail."
        )
    seen: dict[Any, Any] = {}
    for item in location:
        if not isinstance(item, str) or not item:
            raise InvalidLockBackend(
                f"{where} has {item!r}; a server is an alias of CACHES or a URL, so write a str."
            )
        for address in _addresses(item):
            if address in seen:
                raise InvalidLockBackend(
                    f"{where} names one server twice: {seen[address]} and {item}. "
                    f"Its failure would count twice; give servers that fail independently."
                )
            seen[address] = item
    return list(location)


def _addresses(location: Any) -> set[tuple[Any, ...]]:
    """Return the addresses of a server, without databases; the alias itself if CACHES lacks it."""
    from django.conf import settings

    configured = location if "://" in location else settings.CACHES.get(location)
    databases = databases_of(configured) if configured else set()
    found: set[tuple[Any, ...]] = {(host, port) for host, port, _ in databases}
    return found or {(location,)}
