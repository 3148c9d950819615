"""Which node of a cluster serves which slot, and a pool of connections to each node."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.exceptions import MovedError, RedisError

from django_redis_lock.support.process import forget_after_fork
from django_redis_lock.transport.connections import pool_from_url

Address = tuple[str, int]


class Topology:
    """The nodes of a cluster and their slots, read again when a call finds them changed.

    Blocking calls, asyncio and listeners share it. redis-py's own cluster clients are not used:
    each keeps a topology of its own, and retries by its own rules.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._url = urlsplit(urls[0])  # all have the same user, password and options
        self._seeds = [_address(url) for url in urls]
        self.changed: Callable[[], object] = lambda: None
        """Called after a change, in the thread that noticed it."""
        self._pools: dict[Address, redis.ConnectionPool] = {}
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Forget the topology; the pools handle the fork themselves."""
        self._mutex = threading.Lock()
        self._reading: Future[None] | None = None
        self._ranges: list[tuple[int, int, Address]] = []
        self._moved: dict[int, Address] = {}  # since the last read
        self._others: list[Address] = []  # replicas, which can be asked, too
        self._stale = True
        self._suspect: Address | None = None

    def pool(self, address: Address) -> redis.ConnectionPool:
        with self._mutex:
            pool = self._pools.get(address)
            if pool is None:
                pool = self._pools[address] = pool_from_url(self._url_of(address))
        return pool

    def _url_of(self, address: Address) -> str:
        host, port = address
        user, at, _ = self._url.netloc.rpartition("@")
        host = f"[{host}]" if ":" in host else host
        return self._url._replace(netloc=f"{user}{at}{host}:{port}").geturl()

    def close(self) -> None:
        for pool in list(self._pools.values()):
            pool.disconnect()

    def known(self, slot: int) -> Address | None:
        """Return the master of a slot if it is known, without a round trip."""
        moved = self._moved.get(slot)
        if moved is not None:
            return moved
        for begin, end, address in self._ranges:
            if begin <= slot <= end:
                return address
        return None

    def address(self, slot: int, until: float = math.inf) -> Address:
        """Return the master of a slot; give up ``until`` (monotonic).

        Raises ``RedisError`` if no node knows it, and ``TimeoutError``.
        """
        address = None if self._stale else self.known(slot)
        if address is None:
            _wait_for(self._read(lambda: not self._stale), until)
            address = self._told(slot)
        return address

    async def aaddress(self, slot: int) -> Address:
        address = None if self._stale else self.known(slot)
        if address is None:
            await asyncio.wrap_future(self._read(lambda: not self._stale))
            address = self._told(slot)
        return address

    def _told(self, slot: int) -> Address:
        address = self.known(slot)
        if address is None:
            self._stale = True
            raise redis.exceptions.ClusterDownError(f"no node serves slot {slot}")
        return address

    def masters(self) -> list[Address]:
        """Return all masters that serve slots. Raises as ``address`` does."""
        if self._stale:
            self._read(lambda: not self._stale).result()
        return sorted({address for _, _, address in self._ranges} | set(self._moved.values()))

    def suspect(self, address: Address) -> None:
        """Note that a node did not answer: the next call asks the others first."""
        self._suspect = address
        self._stale = True

    def moved(self, slot: int, error: MovedError, by: Address, until: float = math.inf) -> None:
        """Follow a redirection to another node. Raises as ``address`` does."""
        to = error.host or by[0], error.port
        _wait_for(self._read(lambda: self.known(slot) == to, first=to), until)
        self._believe(slot, to)

    async def amoved(self, slot: int, error: MovedError, by: Address) -> None:
        to = error.host or by[0], error.port
        await asyncio.wrap_future(self._read(lambda: self.known(slot) == to, first=to))
        self._believe(slot, to)

    def _believe(self, slot: int, to: Address) -> None:
        if self.known(slot) != to:  # the redirection counts for more
            with self._mutex:
                self._moved = {**self._moved, slot: to}
            self.changed()

    def _read(self, needless: Callable[[], bool], first: Address | None = None) -> Future[None]:
        """Ask the nodes in a thread, unless another does so or ``needless`` says that one did.

        All callers meanwhile share one outcome.
        """
        with self._mutex:
            if self._reading is not None:
                return self._reading
            outcome: Future[None] = Future()
            outcome.set_running_or_notify_cancel()  # a cancelled task must not cancel it
            if needless():
                outcome.set_result(None)
                return outcome
            thread = threading.Thread(
                target=self._read_now,
                args=(outcome, first),
                name="django-redis-lock-topology",
                daemon=True,
            )
            self._reading = outcome
        try:
            thread.start()
        except BaseException as error:
            self._end_reading(outcome, error)
            raise
        return outcome

    def _read_now(self, outcome: Future[None], first: Address | None) -> None:
        try:
            self._ask_any(first)
            self.changed()
        except BaseException as error:
            self._end_reading(outcome, error)
        else:
            self._end_reading(outcome, None)

    def _end_reading(self, outcome: Future[None], error: BaseException | None) -> None:
        with self._mutex:
            if self._reading is outcome:
                self._reading = None
            if outcome.done():
                return  # the start was interrupted, but the thread began
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

    def _ask_any(self, first: Address | None) -> None:
        """Ask one node after another until one knows. Raises ``RedisError``."""
        suspect = self._suspect
        known = list(dict.fromkeys([*(address for _, _, address in self._ranges), *self._others]))
        random.shuffle(known)
        ahead = [] if first is None else [first]
        candidates = list(dict.fromkeys([*ahead, *known, *self._seeds]))
        candidates.sort(key=lambda address: address == suspect)
        why: Exception | None = None
        for address in candidates:
            try:
                answer = self._ask(address)
            except (RedisError, OSError) as error:
                why = error
                continue
            if answer:
                self._update(answer, address)
                return
        self._stale = True
        raise redis.exceptions.ConnectionError(
            f"none of {len(candidates)} nodes says which slots it serves: {why}"
        ) from why

    def _ask(self, address: Address) -> list[Any]:
        with redis.Redis(connection_pool=self.pool(address)) as client:
            client.set_response_callback("CLUSTER SLOTS", lambda answer, **_: answer)
            answer: list[Any] = client.execute_command("CLUSTER SLOTS")
        return answer

    def _update(self, answer: list[Any], asked: Address) -> None:
        ranges, others = [], []
        for begin, end, *nodes in answer:
            master, *replicas = [_node(node, asked) for node in nodes]
            ranges.append((begin, end, master))
            others += replicas
        with self._mutex:
            self._ranges, self._others, self._moved = ranges, others, {}
            self._stale, self._suspect = False, None


def _wait_for(reading: Future[None], until: float) -> None:
    try:
        reading.result(None if until == math.inf else max(0.0, until - monotonic()))
    except TimeoutError:
        raise redis.exceptions.TimeoutError("No node said in time which slots it serves") from None


def _address(url: str) -> Address:
    parts = urlsplit(url)
    return parts.hostname or "localhost", parts.port or 6379


def _node(fields: list[Any], asked: Address) -> Address:
    host = fields[0]
    host = host.decode() if isinstance(host, bytes) else host
    # A node that does not know its own host has the one that was asked.
    return (asked[0] if host in ("", None, "?") else host), int(fields[1])
