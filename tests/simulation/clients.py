"""What the package has in place of sockets: a client for calls, and connections that listen."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import redis
from greenlet import getcurrent
from redis.exceptions import ResponseError

from django_redis_lock.transport.packing import pack
from tests.simulation.network import SOCKET_TIMEOUT, Fate, Site, broken
from tests.simulation.threads import Thread

POST_WITHIN = 0.2
"""Seconds for which a call that nobody waits for may stay in the kernel."""


class Client:
    """Stands for ``BlockingClient``: the calls of the threads of one process to one server."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def call(self, packed: Any) -> Any:
        """Send a call and return its reply."""
        packed.sending()
        reply = self.exchange(words_of(packed), packed.until)
        completion = packed.completed(reply)
        try:
            command = next(completion)
            while True:
                command = completion.send(self.exchange(parse(command), packed.until))
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
        if fate is not Fate.LOST:
            late = delay if fate is Fate.LATE else 0.0

            def arrive() -> None:
                if site.up:
                    site.execute(words)

            site.network.send(arrive, site=site, delay=late, within=POST_WITHIN)

    def exchange(self, words: Sequence[bytes], until: float = math.inf) -> Any:
        """Send a command and return its reply, or the error that the server returns."""
        site = self._site
        network = site.network
        machine = network.machine
        thread: Thread = getcurrent()
        fate, delay = network.fate(site)
        replies: list[Any] = []
        waits = [True]

        def arrive() -> None:
            reply = broken()
            if site.up and fate is not Fate.LOST:
                answer = site.execute(words)
                if fate is not Fate.UNANSWERED:
                    reply = answer

            def land() -> Thread | None:
                if not waits:
                    return None
                replies.append(reply)
                machine.wake(thread)
                return thread

            late = delay if fate is Fate.ANSWERED_LATE else 0.0
            network.send(land, site=site, delay=late)

        late = delay if fate is Fate.LATE else 0.0
        network.send(arrive, site=site, delay=late)
        try:
            machine.block(min(machine.now + SOCKET_TIMEOUT, max(until, machine.now)))
        finally:
            waits.clear()
        if not replies:
            raise too_late()
        if isinstance(replies[0], redis.exceptions.ConnectionError):
            raise replies[0]
        return replies[0]

    def close(self) -> None:
        """There is nothing to close."""


class Connection:
    """Stands for a connection of redis-py that listens, pops, or carries a quorum's letters."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.process = getcurrent().process
        self.channels: set[bytes] = set()
        self.pops: bytes | None = None
        """The list from which it waits to pop."""
        self.deaf = False
        """Whether nothing arrives any more, without either end being told."""
        self._broken = False
        self._round = 0
        self._inbox: deque[Any] = deque()
        self._readers: list[Thread] = []
        self._in, self._out = object(), object()

    def connect(self) -> None:
        Client(self.site).exchange([b"PING"])
        self._broken = False
        self.site.connections.append(self)

    def disconnect(self, *_: Any) -> None:
        self._broken = True
        if self in self.site.connections:
            self.site.connections.remove(self)

    def break_off(self) -> None:
        """Be closed by the server."""
        self.disconnect()
        self._wake()

    def pack_command(self, *words: Any) -> list[bytes]:
        return [pack(words)]

    def send_command(self, *words: str, check_health: bool = True) -> None:
        self.send_packed_command(self.pack_command(*words))

    def send_packed_command(self, commands: Sequence[bytes], check_health: bool = True) -> None:
        if self._broken:
            raise broken()
        site = self.site
        for command in commands:
            fate, delay = site.network.fate(site)
            words = parse(command)
            site.network.send(
                lambda words=words, fate=fate, delay=delay: self._arrive(words, fate, delay),
                line=self._out,
                site=site,
                delay=delay if fate is Fate.LATE else 0.0,
            )

    def can_read(self, timeout: float = 0) -> bool:
        if not self._inbox and not self._broken and timeout:
            self._wait(timeout)
        if self._broken and not self._inbox:
            raise broken()
        return bool(self._inbox)

    def read_response(self, *, disable_decoding: bool = False) -> Any:
        if not self.can_read(SOCKET_TIMEOUT):
            raise too_late()
        reply = self._inbox.popleft()
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def readable(self) -> bool:
        """Whether reading would not block."""
        return bool(self._inbox) or self._broken

    def push(self, reply: Any, *, late: float = 0.0) -> None:
        """Send something from the server to the client."""
        self.site.network.send(
            lambda: self._receive(reply), line=self._in, site=self.site, delay=late
        )

    def pop(self) -> None:
        """Send the first item of the list from which it waits to pop, if there is one."""
        assert self.pops is not None
        item = self.site.execute([b"LPOP", self.pops])
        if item is not None:
            self.push([self.pops, item])
            self.pops = None

    def watched_by(self, thread: Thread) -> None:
        """Wake a thread when there is something to read."""
        self._readers.append(thread)

    def unwatched_by(self, thread: Thread) -> None:
        self._readers.remove(thread)

    def _receive(self, reply: Any) -> None:
        if not self._broken and not self.deaf:
            self._inbox.append(reply)
            self._wake()

    def _wake(self) -> None:
        for thread in self._readers:
            self.site.network.machine.wake(thread)

    def _wait(self, seconds: float) -> None:
        thread, machine = getcurrent(), self.site.network.machine
        self.watched_by(thread)
        try:
            machine.block(machine.now + seconds)
        finally:
            self.unwatched_by(thread)

    def _arrive(self, words: Sequence[bytes], fate: Fate, delay: float) -> None:
        if self._broken or self.deaf or not self.site.up:
            return
        if fate is Fate.LOST:
            self.break_off()
            return
        name = words[0]
        if name in (b"SUBSCRIBE", b"SSUBSCRIBE"):
            reply: Any = self._subscribe(name, words[1])
        elif name == b"BLPOP":
            self._begin_to_pop(words[1], float(words[2]))
            return
        else:
            reply = self.site.execute(words)
        if fate is Fate.UNANSWERED:
            self.break_off()
        else:
            self.push(reply, late=delay if fate is Fate.ANSWERED_LATE else 0.0)

    def _subscribe(self, name: bytes, channel: bytes) -> Any:
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


def too_late() -> redis.exceptions.TimeoutError:
    """Return the error of a call that was not answered in time."""
    return redis.exceptions.TimeoutError("Timeout reading from socket")


def words_of(packed: Any) -> list[bytes]:
    """Return the words of a call."""
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
