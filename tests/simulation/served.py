"""The simulation's server behind real sockets, so that the tests of the scripts can be run on it.

It takes the command line of Valkey, as far as the tests give it: ``--port`` and ``--unixsocket``.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from tests.simulation.lua import Status
from tests.simulation.server import OK, Scores, Server, Stream

Words = Sequence[bytes]


class Database(Server):
    """One database, with the commands that only tests send."""

    publish_sharded: Callable[[bytes, bytes], int]

    def _spublish(self, channel: bytes, message: bytes) -> Any:
        return self.publish_sharded(channel, message)

    def _zpopmin(self, key: bytes) -> Any:
        first = self._zrange(key, b"0", b"0", b"WITHSCORES")
        self._zrem(key, *first[:1])
        return first

    def _flushdb(self, *how: bytes) -> Any:
        return self._flushall()

    def _dbsize(self) -> Any:
        return len(self.keys())

    def _keys(self, pattern: bytes) -> Any:
        return [key for key in self.keys() if fnmatch.fnmatchcase(key.decode(), pattern.decode())]

    def _scan(self, cursor: bytes, *options: bytes) -> Any:
        flags = [option.upper() for option in options]
        pattern = options[flags.index(b"MATCH") + 1] if b"MATCH" in flags else b"*"
        return [b"0", self._keys(pattern)]

    def _type(self, key: bytes) -> Any:
        kinds = {bytes: b"string", list: b"list", Scores: b"zset", dict: b"hash", Stream: b"stream"}
        return kinds[type(self.data[key])] if self.exists(key) else b"none"

    def _ttl(self, key: bytes) -> Any:
        left = self._pttl(key)
        return left if left < 0 else (left + 500) // 1000

    def _expire(self, key: bytes, seconds: bytes) -> Any:
        return self._pexpire(key, b"%d" % (int(seconds) * 1000))

    def _pexpiretime(self, key: bytes) -> Any:
        return self.ends.get(key, -1) if self.exists(key) else -2

    def _rename(self, old: bytes, new: bytes) -> Any:
        if not self.exists(old):
            raise ResponseError("no such key")
        end = self.ends.pop(old, None)
        self.data[new] = self.data.pop(old)
        if end is not None:
            self.ends[new] = end
        return OK

    def _mget(self, *keys: bytes) -> Any:
        return [self._get(key) for key in keys]

    def _zscore(self, key: bytes, member: bytes) -> Any:
        score = (self.look_up(key, Scores) or {}).get(member)
        return None if score is None else b"%.17g" % score

    def _hlen(self, key: bytes) -> Any:
        return len(self.look_up(key, dict) or ())

    def _hget(self, key: bytes, field: bytes) -> Any:
        return (self.look_up(key, dict) or {}).get(field)

    def _hkeys(self, key: bytes) -> Any:
        return list(self.look_up(key, dict) or ())

    def _xlen(self, key: bytes) -> Any:
        return len(self.look_up(key, Stream) or ())

    def _xrange(self, key: bytes, start: bytes, end: bytes, *options: bytes) -> Any:
        return self._xrevrange(key, end, start)[::-1]


class Hall:
    """All databases, and who listens."""

    def __init__(self) -> None:
        self.guests: list[Guest] = []
        self._databases: dict[int, Database] = {}

    def database(self, number: int) -> Database:
        if number not in self._databases:
            made = self._databases[number] = Database(
                lambda: time.time_ns() // 1000,
                partial(self._publish, b"message"),
                partial(self._pushed, number),
            )
            made.publish_sharded = partial(self._publish, b"smessage")
        return self._databases[number]

    def _publish(self, kind: bytes, channel: bytes, message: bytes) -> int:
        told = [guest for guest in self.guests if guest.channels.get(channel) == kind]
        for guest in told:
            guest.push([kind, channel, message])
        return len(told)

    def _pushed(self, number: int, key: bytes) -> None:
        for guest in self.guests:
            if guest.pops == (number, key):
                guest.pop()


class Guest:
    """A connection."""

    def __init__(self, hall: Hall, writer: asyncio.StreamWriter) -> None:
        self.channels: dict[bytes, bytes] = {}
        """What messages of each channel begin with."""
        self.pops: tuple[int, bytes] | None = None
        self._hall = hall
        self._writer = writer
        self._number = 0
        self._protocol = 2

    def send(self, reply: Any) -> None:
        self._writer.write(packed(reply, self._protocol))

    def push(self, message: list[Any]) -> None:
        """Send what was not asked for."""
        raw = packed(message, self._protocol)
        self._writer.write(b">" + raw[1:] if self._protocol == 3 else raw)

    def answer(self, words: Words) -> None:
        """Carry out a command."""
        name = words[0].upper()
        own = getattr(self, f"_{name.decode().lower()}", None)
        if own is not None:
            own(*words[1:])
        else:
            reply = self._hall.database(self._number).execute(words)
            self.send(typed(words, reply) if self._protocol == 3 else reply)

    def _hello(self, protocol: bytes = b"2", *_: bytes) -> None:
        self._protocol = int(protocol)
        self.send({b"server": b"simulated", b"version": b"7.2.0", b"proto": self._protocol})

    def _select(self, number: bytes) -> None:
        self._number = int(number)
        self.send(OK)

    def _client(self, *words: bytes) -> None:
        self.send(OK)

    def _subscribe(self, *channels: bytes, kind: bytes = b"message") -> None:
        for channel in channels:
            self.channels[channel] = kind
            first = b"ssubscribe" if kind == b"smessage" else b"subscribe"
            self.push([first, channel, len(self.channels)])

    def _ssubscribe(self, *channels: bytes) -> None:
        self._subscribe(*channels, kind=b"smessage")

    def _unsubscribe(self, *channels: bytes) -> None:
        for channel in channels or list(self.channels):
            self.channels.pop(channel, None)
            self.push([b"unsubscribe", channel, len(self.channels)])

    def _blpop(self, key: bytes, seconds: bytes) -> None:
        self.pops = self._number, key
        if not self.pop():
            asyncio.get_running_loop().call_later(
                float(seconds) or 3600.0, self._give_up, self.pops
            )

    def _give_up(self, pops: tuple[int, bytes]) -> None:
        if self.pops is pops:
            self.pops = None
            self.send(None)

    def pop(self) -> bool:
        """Send the first item of the list from which it waits to pop, if there is one."""
        assert self.pops is not None
        number, key = self.pops
        item = self._hall.database(number).execute([b"LPOP", key])
        if item is None:
            return False
        self.pops = None
        self.send([key, item])
        return True


def packed(reply: Any, protocol: int = 2) -> bytes:  # noqa: PLR0911 - one for each type
    """Return a reply as RESP2 or RESP3."""
    if reply is None:
        return b"_\r\n" if protocol == 3 else b"$-1\r\n"
    if isinstance(reply, NoScriptError):
        return b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
    if isinstance(reply, ResponseError):
        code = str(reply).partition(" ")[0]
        return f"-{'' if code.isupper() and len(code) > 3 else 'ERR '}{reply}\r\n".encode()
    if isinstance(reply, Status):
        return b"+%b\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, float):
        return b",%.17g\r\n" % reply
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, dict):
        pairs = [item for pair in reply.items() for item in pair]
        return b"%%%d\r\n" % len(reply) + b"".join(packed(item, protocol) for item in pairs)
    return b"*%d\r\n" % len(reply) + b"".join(packed(item, protocol) for item in reply)


def typed(words: Words, reply: Any) -> Any:
    """Return the reply of a server as RESP3 types it."""
    name = words[0].upper()
    if not isinstance(reply, list | bytes):
        return reply
    if name == b"ZSCORE":
        return float(reply)
    pairs = list(zip(reply[::2], reply[1::2], strict=False))
    if name == b"HGETALL":
        return dict(pairs)
    if name[:6] == b"ZRANGE" and b"WITHSCORES" in [word.upper() for word in words]:
        return [[member, float(score)] for member, score in pairs]
    return reply


async def serve(port: int, path: str) -> None:
    """Serve for ever."""
    hall = Hall()

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        guest = Guest(hall, writer)
        hall.guests.append(guest)
        try:
            while head := await reader.readline():
                if head[:1] != b"*":
                    guest.answer(head.split())
                    continue
                words = []
                for _ in range(int(head[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                guest.answer(words)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            hall.guests.remove(guest)
            writer.close()

    async with await asyncio.start_server(attend, "127.0.0.1", port):
        async with await asyncio.start_unix_server(attend, path):
            await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--unixsocket", required=True)
    options, _ = parser.parse_known_args(sys.argv[1:])
    asyncio.run(serve(options.port, options.unixsocket))
