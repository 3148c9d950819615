"""A server in this process: the commands that the package uses, and a Lua that runs its scripts.
Its clock is the caller's. It carries out one command or script at a time, as Redis does."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from tests.simulation.lua import Status, lua

Words = Sequence[bytes]
Reply = Any
"""``bytes``, ``int``, ``None``, a list of these, or a ``ResponseError``."""
OK = Status(b"OK")
Data = dict[bytes, Any]
"""What each key has."""


class Hash(dict[bytes, bytes]):
    """A hash: the value of each field, in the order in which they came."""


class Scores(dict[bytes, float]):
    """A sorted set: the score of each member."""


class Stream(list[tuple[tuple[int, int], list[bytes]]]):
    """Entries, the oldest first."""


class Server:
    """A server; ``clock`` returns the time in microseconds. ``publish`` sends a message to the
    subscribers of a channel and returns how many they are. ``pushed`` is called with a key to which
    a list was pushed."""

    def __init__(
        self,
        clock: Callable[[], int],
        publish: Callable[[bytes, bytes], int],
        pushed: Callable[[bytes], object] = lambda key: None,
        run_id: str = "1",
    ) -> None:
        self.clock = clock
        self.publish = publish
        self.pushed = pushed
        self.run_id = run_id
        self.data: Data = {}
        self.ends: dict[bytes, int] = {}
        """The end (ms) of each key that expires."""
        self.scripts: dict[bytes, bytes] = {}
        """The source of each script that was sent, by its digest."""
        self.writes = 0
        """How often something was written."""

    def now_ms(self) -> int:
        return self.clock() // 1000

    def execute(self, words: Words) -> Reply:
        try:
            return self.carry_out(words)
        except ResponseError as error:
            return error

    def carry_out(self, words: Words) -> Reply:
        """Carry out a command, and return its reply. Raises ``ResponseError``."""
        name, *rest = words
        if name in _OF_SERVERS:
            reply = _OF_SERVERS[name](self, *rest)
            self.writes += name in _WRITES and reply != 0
            return reply
        kind, of_value = _OF_VALUES[name]
        key, *rest = rest
        before = self.look_up(key, kind)
        value = kind() if before is None else before
        former = copy.copy(value)
        reply = of_value(value, *rest)
        self.writes += value != former
        if value and before is None:
            self.data[key] = value
        elif not value and before is not None:
            self.delete(key)
        return reply

    # Keys.

    def look_up(self, key: bytes, kind: type) -> Any:
        """Return what a key has, ``None`` if it does not exist."""
        value = self.data[key] if self.exists(key) else None
        if value is not None and type(value) is not kind:
            raise ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return value

    def exists(self, key: bytes) -> bool:
        end = self.ends.get(key)
        if end is not None and self.now_ms() > end:
            self.delete(key)
        return key in self.data

    def delete(self, key: bytes) -> bool:
        self.ends.pop(key, None)
        return self.data.pop(key, None) is not None

    def keys(self) -> list[bytes]:
        return [key for key in list(self.data) if self.exists(key)]

    def _time(self) -> Reply:
        seconds, rest = divmod(self.clock(), 1_000_000)
        return [b"%d" % seconds, b"%d" % rest]

    def _info(self, section: bytes = b"") -> Reply:
        return b"# Server\r\nrun_id:%b\r\n" % self.run_id.encode()

    def _pttl(self, key: bytes) -> Reply:
        if not self.exists(key):
            return -2
        end = self.ends.get(key)
        return -1 if end is None else max(0, end - self.now_ms())

    def _pexpireat(self, key: bytes, at: bytes | int) -> Reply:
        if not self.exists(key):
            return 0
        if int(at) <= self.now_ms():
            self.delete(key)
        else:
            self.ends[key] = int(at)
        return 1

    # Strings, lists that are popped from, streams.

    def _set(self, key: bytes, value: bytes, *options: bytes) -> Reply:
        old = self.look_up(key, bytes) if b"GET" in options else None
        given = next((each for each in (b"PX", b"PXAT") if each in options), None)
        ms = int(options[options.index(given) + 1]) if given else 1
        if ms <= 0:
            raise ResponseError("invalid expire time in 'set' command")
        self.data[key] = value
        if b"KEEPTTL" not in options:
            self.ends.pop(key, None)
        if given:
            self.ends[key] = ms if given == b"PXAT" else self.now_ms() + ms
        return old if b"GET" in options else OK

    def _incr(self, key: bytes) -> Reply:
        try:
            value = int(self.look_up(key, bytes) or 0) + 1
        except ValueError:
            raise ResponseError("value is not an integer or out of range") from None
        self.data[key] = b"%d" % value
        return value

    def _rpush(self, key: bytes, *items: bytes) -> Reply:
        found = self.look_up(key, list) or self.data.setdefault(key, [])
        found.extend(items)
        length = len(found)
        self.pushed(key)
        return length

    def _xadd(self, key: bytes, *words: bytes) -> Reply:
        most = None
        if words[0] == b"MAXLEN":
            most, words = int(words[2]), words[3:]
        entry_id, *fields = words
        stream = self.look_up(key, Stream) or Stream()
        last = stream[-1][0] if stream else (0, 0)
        now = self.now_ms()
        chosen = (now, 0) if now > last[0] else (last[0], last[1] + 1)
        if entry_id != b"*":
            chosen = _stream_id(entry_id)
        if chosen == (0, 0):
            raise ResponseError("The ID specified in XADD must be greater than 0-0")
        if chosen <= last:
            raise ResponseError("The ID specified in XADD is equal or smaller than the last one")
        self.data[key] = stream
        stream.append((chosen, fields))
        if most is not None and len(stream) >= most + 100:
            del stream[: len(stream) - most]  # a server drops whole nodes of a hundred
        return b"%d-%d" % chosen

    # Scripts.

    def _eval(self, source: bytes, number: bytes, *words: bytes) -> Reply:
        self.scripts[hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()] = source
        return self._run(source, int(number), words)

    def _evalsha(self, digest: bytes, number: bytes, *words: bytes) -> Reply:
        if digest not in self.scripts:
            raise NoScriptError("No matching script. Please use EVAL.")
        return self._run(self.scripts[digest], int(number), words)

    def _run(self, source: bytes, keys: int, words: Words) -> Reply:
        return lua.run(source, words[:keys], words[keys:], self.carry_out)


# What commands do to a value, which is empty if there is none, and removed if nothing is left.


def _hset(found: Hash, name: bytes, value: bytes) -> Reply:
    new = name not in found
    found[name] = value
    return int(new)


def _remove(found: Hash | Scores, *names: bytes) -> Reply:
    return sum(found.pop(name, None) is not None for name in names)


def _ltrim(items: list[bytes], first: bytes, last: bytes) -> Reply:
    items[:] = _cut(items, first, last)
    return OK


def _zadd(found: Scores, *words: bytes) -> Reply:
    flags = set(takewhile({b"NX", b"LT", b"CH"}.__contains__, words))
    items = iter(words[len(flags) :])
    new = changed = 0
    for score, member in zip(map(float, items), items, strict=True):
        before = found.get(member)
        if before is None:
            new += 1
        elif score == before or b"NX" in flags or (b"LT" in flags and score > before):
            continue
        else:
            changed += 1
        found[member] = score
    return new + changed if b"CH" in flags else new


def _zrange(found: Scores, first: bytes, last: bytes, *options: bytes) -> Reply:
    return _with_scores(_cut(_ranked(found), first, last), options)


def _zrangebyscore(found: Scores, least: bytes, most: bytes, *options: bytes) -> Reply:
    above, below = _bound(least), _bound(most)
    pairs = [
        (score, member)
        for score, member in _ranked(found)
        if (score > above[0] or (score == above[0] and not above[1]))
        and (score < below[0] or (score == below[0] and not below[1]))
    ]
    if b"LIMIT" in options:
        offset, count = map(int, options[options.index(b"LIMIT") + 1 :][:2])
        pairs = pairs[offset : None if count < 0 else offset + count]
    return _with_scores(pairs, options)


def _zscore(found: Scores, member: bytes) -> Reply:
    return _number(found[member]) if member in found else None


def _xrevrange(stream: Stream, end: bytes, start: bytes, *options: bytes) -> Reply:
    entries = [
        [b"%d-%d" % entry_id, list(fields)]
        for entry_id, fields in reversed(stream)
        if end == b"+" or entry_id < _stream_id(end[1:])
    ]
    return entries[: int(options[1])] if options else entries


def _cut(items: list[Any], first: bytes, last: bytes) -> list[Any]:
    begin, end = int(first), int(last)
    begin = max(0, begin + len(items)) if begin < 0 else begin
    end = end + len(items) if end < 0 else end
    return items[begin : end + 1]


def _ranked(found: Scores) -> list[tuple[float, bytes]]:
    return sorted((score, member) for member, score in found.items())


def _bound(word: bytes) -> tuple[float, bool]:
    return (float(word[1:]), True) if word[:1] == b"(" else (float(word), False)


def _number(score: float) -> bytes:
    if math.isinf(score):
        return b"inf" if score > 0 else b"-inf"
    return b"%d" % score if score == int(score) else b"%.17g" % score


def _with_scores(found: Sequence[tuple[float, bytes]], options: Sequence[bytes]) -> list[bytes]:
    if b"WITHSCORES" in options:
        return [word for score, member in found for word in (member, _number(score))]
    return [member for _, member in found]


def _stream_id(word: bytes) -> tuple[int, int]:
    ms, _, number = word.partition(b"-")
    return int(ms), int(number)


_OF_SERVERS: dict[bytes, Callable[..., Reply]] = {
    b"PING": lambda server: Status(b"PONG"),
    b"TIME": Server._time,
    b"INFO": Server._info,
    b"EXISTS": lambda server, *keys: sum(server.exists(key) for key in keys),
    b"DEL": lambda server, *keys: sum(server.exists(key) and server.delete(key) for key in keys),
    b"PTTL": Server._pttl,
    b"PEXPIRE": lambda server, key, ms: server._pexpireat(key, server.now_ms() + int(ms)),
    b"PEXPIREAT": Server._pexpireat,
    b"PERSIST": lambda server, key: int(
        server.exists(key) and server.ends.pop(key, None) is not None
    ),
    b"GET": lambda server, key: server.look_up(key, bytes),
    b"SET": Server._set,
    b"INCR": Server._incr,
    b"RPUSH": Server._rpush,
    b"XADD": Server._xadd,
    b"PUBLISH": lambda server, channel, message: server.publish(channel, message),
    b"SPUBLISH": lambda server, channel, message: server.publish(channel, message),
    b"EVAL": Server._eval,
    b"EVALSHA": Server._evalsha,
}
_WRITES = {b"DEL", b"PEXPIRE", b"PEXPIREAT", b"PERSIST", b"SET", b"INCR", b"RPUSH", b"XADD"}
_OF_VALUES: dict[bytes, tuple[type, Callable[..., Reply]]] = {
    b"LLEN": (list, len),
    b"LPOP": (list, lambda items: items.pop(0) if items else None),
    b"LRANGE": (list, _cut),
    b"LTRIM": (list, _ltrim),
    b"HGET": (Hash, Hash.get),
    b"HMGET": (Hash, lambda found, *names: [found.get(name) for name in names]),
    b"HEXISTS": (Hash, lambda found, name: int(name in found)),
    b"HKEYS": (Hash, list),
    b"HLEN": (Hash, len),
    b"HGETALL": (Hash, lambda found: [word for pair in found.items() for word in pair]),
    b"HSET": (Hash, _hset),
    b"HDEL": (Hash, _remove),
    b"HRANDFIELD": (Hash, lambda found, most: [*found][: int(most)]),
    b"ZSCORE": (Scores, _zscore),
    b"ZADD": (Scores, _zadd),
    b"ZREM": (Scores, _remove),
    b"ZCARD": (Scores, len),
    b"ZCOUNT": (Scores, lambda found, *bounds: len(_zrangebyscore(found, *bounds))),
    b"ZRANGE": (Scores, _zrange),
    b"ZRANDMEMBER": (Scores, lambda found, most: _zrange(found, b"0", most)[: int(most)]),
    b"ZRANGEBYSCORE": (Scores, _zrangebyscore),
    b"XREVRANGE": (Stream, _xrevrange),
}
