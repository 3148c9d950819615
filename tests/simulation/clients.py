"""What the package has in place of sockets: clients for calls, and connections that listen."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import redis
from greenlet import getcurrent
from redis.exceptions import MovedError, ResponseError

from django_redis_lock.transport.clients import NOTHING
from django_redis_lock.transport.packing import pack
from tests.simulation import threads
from tests.simulation.network import SOCKET_TIMEOUT, Fate, Site
from tests.simulation.slots import Node
from tests.simulation.threads import Thread

POST_WITHIN = 0.2
"""Seconds for which a call that nobody waits for may stay in the kernel."""


class Wire:
    """Carries commands to a server, and replies back, each in order."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.inbox: deque[Any] = deque()
        self.deaf = False
        """Whether nothing arrives any more, without either end being told."""
        self.wrote: tuple[Any, int] = (None, 0)
        """The server where something was written over it, and the number of the last write."""
        self._broken = False
        self._out, self._in = object(), object()

    def carry(self, words: Sequence[bytes]) -> None:
        fate, delay = self.site.network.fate(self.site)
        self.site.network.send(
            lambda: self._arrive(words, fate, delay),
            line=self._out,
            site=self.site,
            delay=delay if fate is Fate.LATE else 0.0,
        )

    def push(self, reply: Any, *, late: float = 0.0) -> None:
        land = partial(self.take, reply)
        self.site.network.send(land, line=self._in, site=self.site, delay=late)

    def take(self, reply: Any) -> Thread | None:
        """Get something from the server; return the thread that waited for nothing else."""
        raise NotImplementedError

    def break_off(self) -> None:
        self._broken = True
        self.push(broken())

    def execute(self, words: Sequence[bytes]) -> Any:
        return self.site.serve(self, words)

    def _arrive(self, words: Sequence[bytes], fate: Fate, delay: float) -> None:
        if self._broken or self.deaf:
            return
        if fate is Fate.LOST or not self.site.up:
            self.break_off()
            return
        reply = self.execute(words)
        if fate is Fate.UNANSWERED:
            self.break_off()
        elif reply is not NOTHING:
            self.push(reply, late=delay if fate is Fate.ANSWERED_LATE else 0.0)


class _Call(Wire):
    """A connection on which a thread waits for one reply after the other."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.waits = False
        self._thread: Thread = getcurrent()

    def exchange(self, words: Sequence[bytes], until: float = math.inf) -> Any:
        self.waits, now = True, threads.machine.now
        self.carry(words)
        try:
            threads.machine.block(min(now + SOCKET_TIMEOUT, max(until, now)))
        finally:
            self.waits = False
        if not self.inbox:
            raise _too_late()
        reply = self.inbox.popleft()
        if isinstance(reply, redis.exceptions.ConnectionError):
            raise reply
        return reply

    def take(self, reply: Any) -> Thread | None:
        if not self.waits:
            return None
        self.inbox.append(reply)
        threads.machine.wake(self._thread)
        return self._thread


class Client:
    """Stands for ``BlockingClient``: the calls of the threads of one process to one server."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def call(self, packed: Any) -> Any:
        packed.sending()
        wire = _Call(self._site)
        reply = wire.exchange(_words_of(packed), packed.until)
        completion = packed.completed(reply)
        try:
            command = next(completion)
            while True:
                command = completion.send(wire.exchange(parse(command), packed.until))
        except StopIteration as stop:
            reply = stop.value
        if isinstance(reply, Exception):
            raise reply
        return reply

    def call_all(self, batch: Sequence[Any]) -> list[Any]:
        """Send calls; return the reply, or the server's error, to each."""
        replies = []
        for packed in batch:
            try:
                replies.append(self.call(packed))
            except ResponseError as error:
                replies.append(error)
        return replies

    def post(self, packed: Any) -> None:
        """Send a call; nobody waits for its reply."""
        packed.sending()
        site = self._site
        words = parse(packed.pack(with_source=True))
        fate, delay = site.network.fate(site)
        if not site.up or fate is Fate.UNANSWERED:
            raise broken()

        def arrive() -> None:
            if site.up:
                site.execute(words)

        if fate is not Fate.LOST:
            late = delay if fate is Fate.LATE else 0.0
            site.network.send(arrive, site=site, delay=late, within=POST_WITHIN)

    def exchange(self, words: Sequence[bytes]) -> Any:
        return _Call(self._site).exchange(words)

    def close(self) -> None:
        """There is nothing to close."""


class _Readable:
    """Something that wakes the threads that wait until it can be read."""

    def __init__(self) -> None:
        self._readers: list[Thread] = []

    def readable(self) -> bool:
        raise NotImplementedError

    def wake(self) -> None:
        for thread in self._readers:
            threads.machine.wake(thread)


def _wait(for_any_of: Sequence[_Readable], seconds: float) -> None:
    """Block until one of several can be read, or for some seconds."""
    thread = getcurrent()
    for each in for_any_of:
        each._readers.append(thread)
    try:
        threads.machine.block(threads.machine.now + seconds)
    finally:
        for each in for_any_of:
            each._readers.remove(thread)


class Connection(Wire, _Readable):
    """Stands for a connection of redis-py that listens, or pops."""

    def __init__(self, site: Site) -> None:
        Wire.__init__(self, site)
        _Readable.__init__(self)
        self.process = getcurrent().process
        self.channels: set[bytes] = set()
        self.pops: bytes | None = None
        """The list from which it waits to pop."""
        self._round = 0

    def connect(self) -> None:
        Client(self.site).exchange([b"PING"])
        self._broken = False
        self.site.connections.append(self)

    def disconnect(self, *_: Any) -> None:
        self._broken = True
        if self in self.site.connections:
            self.site.connections.remove(self)

    def break_off(self) -> None:
        self.disconnect()
        self.wake()

    def send_command(self, *words: str) -> None:
        self.send(pack(words))

    def can_read(self, timeout: float = 0) -> bool:
        if not self.readable() and timeout:
            _wait([self], timeout)
        if self._broken and not self.inbox:
            raise broken()
        return bool(self.inbox)

    def read_response(self, *, disable_decoding: bool = False) -> Any:
        if not self.can_read(SOCKET_TIMEOUT):
            raise _too_late()
        reply = self.inbox.popleft()
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    # What ``transport.clients.Connection`` has beside these.

    @property
    def origin(self) -> Connection:
        return self

    def setblocking(self, blocks: bool) -> None:
        pass

    def send(self, command: bytes) -> None:
        if self._broken:
            raise broken()
        self.carry(parse(command))

    def receive(self, seconds: float) -> Any:
        return self.read_response() if self.can_read(seconds) else NOTHING

    def read_arrived(self) -> Any:
        return self.receive(0)

    read_confirmed = read_response
    close = disconnect

    def readable(self) -> bool:
        return bool(self.inbox) or self._broken

    def take(self, reply: Any) -> None:
        if not self._broken and not self.deaf:
            self.inbox.append(reply)
            self.wake()

    def execute(self, words: Sequence[bytes]) -> Any:
        name = words[0]
        if name in (b"SUBSCRIBE", b"SSUBSCRIBE"):
            return self._subscribe(name, words[1])
        if name == b"BLPOP":
            self._begin_to_pop(words[1], float(words[2]))
            return NOTHING
        return self.site.execute(words)

    def publish(self, channel: bytes, message: bytes, late: float) -> None:
        kind = b"smessage" if isinstance(self.site, Node) else b"message"
        self.push([kind, channel, message], late=late)

    def pop(self) -> None:
        """Send the first item of the list from which it waits to pop, if there is one."""
        assert self.pops is not None
        item = self.site.execute([b"LPOP", self.pops])
        if item is not None:
            self.push([self.pops, item])
            self.pops = None

    def _subscribe(self, name: bytes, channel: bytes) -> Any:
        if isinstance(self.site, Node) and name == b"SSUBSCRIBE":
            refusal = self.site.refusal([channel])
            if isinstance(refusal, MovedError):
                return refusal
        self.channels.add(channel)
        return [name.lower(), channel, 1]

    def _begin_to_pop(self, key: bytes, seconds: float) -> None:
        self.pops = key
        self._round += 1
        this = self._round

        def give_up() -> None:
            if self.pops is not None and self._round == this:
                self.pops = None
                self.push(None)

        self.site.network.send(give_up, delay=seconds)
        self.pop()


class AsyncioConnection(Wire):
    """Stands for a connection that does not block, its socket, and what reads the replies."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._server = site.server
        self._loop: Any = None
        self._thread: Thread
        self._readable: Callable[[], object]

    def setblocking(self, blocks: bool) -> None:
        """Never block."""

    def watched_by(self, loop: Any, readable: Callable[[], object]) -> None:
        """Call a function in the loop that runs when there is something to read."""
        self._loop, self._thread, self._readable = loop, getcurrent(), readable

    def close(self) -> None:
        self._broken = True

    disconnect = close

    def read_arrived(self) -> Any:
        if not self.inbox:
            return NOTHING
        reply = self.inbox.popleft()
        if isinstance(reply, redis.ConnectionError):
            raise reply
        return reply

    def send(self, data: bytes) -> int:
        self.carry(parse(data))
        return len(data)

    def execute(self, words: Sequence[bytes]) -> Any:
        if self.site.server is self._server:
            return super().execute(words)
        self.break_off()
        return NOTHING

    def take(self, reply: Any) -> Thread | None:
        self.inbox.append(reply)
        if self._loop is None or self._loop.is_closed():
            return None
        self._loop.call_soon(self._readable)
        self._loop._write_to_self()
        return self._thread


def connect(site: Site) -> AsyncioConnection:
    """Return an open connection; stands for the function of ``transport.connections``."""
    Client(site).exchange([b"PING"])
    return AsyncioConnection(site)


class Waker(_Readable):
    _rung = False

    def ring(self) -> None:
        self._rung = True
        self.wake()

    def hush(self) -> None:
        self._rung = False

    def readable(self) -> bool:
        return self._rung


class _Selector:
    def __init__(self) -> None:
        self._watched: list[_Readable] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def register(self, watched: Any, events: int) -> None:
        self._watched.append(watched)

    def select(self, seconds: float) -> None:
        if not any(item.readable() for item in self._watched):
            _wait(self._watched, seconds)


virtual_selectors = SimpleNamespace(DefaultSelector=_Selector, EVENT_READ=1)


def broken() -> redis.exceptions.ConnectionError:
    return redis.exceptions.ConnectionError("Connection closed by server.")


def _too_late() -> redis.exceptions.TimeoutError:
    return redis.exceptions.TimeoutError("Timeout reading from socket")


def _words_of(packed: Any) -> list[bytes]:
    sha = getattr(packed.script, "sha", None)
    if sha is None:
        return parse(packed.pack())
    rest = [word.encode() for word in (*packed.keys, *packed.args)]
    return [b"EVALSHA", sha.encode(), b"%d" % len(packed.keys), *rest]


def parse(command: bytes) -> list[bytes]:
    """Return the words of a command in RESP."""
    words = []
    place = command.index(b"\r\n") + 2
    while place < len(command):
        end = command.index(b"\r\n", place)
        size = int(command[place + 1 : end])
        words.append(command[end + 2 : end + 2 + size])
        place = end + 4 + size
    return words
