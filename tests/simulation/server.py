"""A server in this process: the commands that the scripts use, and a Lua that runs the scripts.

Its clock is the caller's. It carries out one command or script at a time, as Redis does.
"""

from __future__ import annotations

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
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class Stream(list[tuple[tuple[int, int], list[bytes]]]):
    """Entries, the oldest first."""


class Server:
    """A server; ``clock`` returns the time in microseconds.

    ``publish`` sends a message to the subscribers of a channel and returns how many they are.
    ``pushed`` is called with a key to which a list was pushed.
    """

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
        self.data: dict[bytes, Any] = {}
        self.ends: dict[bytes, int] = {}
        """The end (ms) of each key that expires."""
        self.scripts: dict[bytes, bytes] = {}
        """The source of each script that was sent, by its digest."""

    def now_ms(self) -> int:
        return self.clock() // 1000

    def execute(self, words: Words) -> Reply:
        """Carry out a command, and return its reply or the error."""
        try:
            return self._carry_out(words)
        except ResponseError as error:
            return error

    def _carry_out(self, words: Words) -> Reply:
        return _COMMANDS[words[0]](self, *words[1:])

    # Keys.

    def look_up(self, key: bytes, kind: type) -> Any:
        """Return what a key has, ``None`` if it does not exist."""
        end = self.ends.get(key)
        if end is not None and self.now_ms() > end:
            self.delete(key)
            return None
        value = self.data.get(key)
        if value is not None and type(value) is not kind:
            raise ResponseError(WRONG_TYPE)
        return value

    def exists(self, key: bytes) -> bool:
        """Whether a key exists, whatever it has."""
        end = self.ends.get(key)
        if end is not None and self.now_ms() > end:
            self.delete(key)
        return key in self.data

    def delete(self, key: bytes) -> bool:
        """Remove a key; return whether it was there."""
        self.ends.pop(key, None)
        return self.data.pop(key, None) is not None

    def keys(self) -> list[bytes]:
        """Return the keys that exist."""
        return [key for key in list(self.data) if self.exists(key)]

    def _made(self, key: bytes, kind: type) -> Any:
        value = self.look_up(key, kind)
        if value is None:
            value = self.data[key] = kind()
        return value

    def _shrunk(self, key: bytes, value: Any) -> None:
        if not value:
            self.delete(key)

    def _ping(self) -> Reply:
        return Status(b"PONG")

    def _time(self) -> Reply:
        seconds, rest = divmod(self.clock(), 1_000_000)
        return [b"%d" % seconds, b"%d" % rest]

    def _info(self, section: bytes = b"") -> Reply:
        return b"# Server\r\nrun_id:%b\r\n" % self.run_id.encode()

    def _exists(self, *keys: bytes) -> Reply:
        return sum(self.exists(key) for key in keys)

    def _del(self, *keys: bytes) -> Reply:
        return sum(self.exists(key) and self.delete(key) for key in keys)

    def _pttl(self, key: bytes) -> Reply:
        if not self.exists(key):
            return -2
        end = self.ends.get(key)
        return -1 if end is None else max(0, end - self.now_ms())

    def _pexpire(self, key: bytes, ms: bytes) -> Reply:
        return self._pexpireat(key, b"%d" % (self.now_ms() + int(ms)))

    def _pexpireat(self, key: bytes, at: bytes) -> Reply:
        if not self.exists(key):
            return 0
        if int(at) <= self.now_ms():
            self.delete(key)
        else:
            self.ends[key] = int(at)
        return 1

    def _persist(self, key: bytes) -> Reply:
        return int(self.exists(key) and self.ends.pop(key, None) is not None)

    # Strings.

    def _get(self, key: bytes) -> Reply:
        return self.look_up(key, bytes)

    def _set(self, key: bytes, value: bytes, *options: bytes) -> Reply:
        flags = [option.upper() for option in options]
        wants_old = b"GET" in flags
        old = self.look_up(key, bytes) if wants_old else None
        if (b"NX" in flags and self.exists(key)) or (b"XX" in flags and not self.exists(key)):
            return old
        self.data[key] = value
        end = self._end_of(flags)
        if end is not None:
            self.ends[key] = end
        elif b"KEEPTTL" not in flags:
            self.ends.pop(key, None)
        return old if wants_old else OK

    def _end_of(self, flags: Sequence[bytes]) -> int | None:
        for name, since in ((b"PX", self.now_ms()), (b"PXAT", 0)):
            if name in flags:
                value = int(flags[flags.index(name) + 1])
                if value <= 0:
                    raise ResponseError("invalid expire time in 'set' command")
                return since + value
        return None

    def _setnx(self, key: bytes, value: bytes) -> Reply:
        if self.exists(key):
            return 0
        self.data[key] = value
        return 1

    def _getset(self, key: bytes, value: bytes) -> Reply:
        old = self.look_up(key, bytes)
        self.data[key] = value
        self.ends.pop(key, None)
        return old

    def _incr(self, key: bytes) -> Reply:
        try:
            value = int(self.look_up(key, bytes) or 0) + 1
        except ValueError:
            raise ResponseError("value is not an integer or out of range") from None
        self.data[key] = b"%d" % value
        return value

    # Lists.

    def _llen(self, key: bytes) -> Reply:
        return len(self.look_up(key, list) or ())

    def _lpop(self, key: bytes) -> Reply:
        items = self.look_up(key, list)
        if items is None:
            return None
        item = items.pop(0)
        self._shrunk(key, items)
        return item

    def _rpush(self, key: bytes, *items: bytes) -> Reply:
        found = self._made(key, list)
        found.extend(items)
        length = len(found)
        self.pushed(key)
        return length

    def _lrange(self, key: bytes, first: bytes, last: bytes) -> Reply:
        return _cut(self.look_up(key, list) or [], first, last)

    def _ltrim(self, key: bytes, first: bytes, last: bytes) -> Reply:
        items = self.look_up(key, list)
        if items is not None:
            items[:] = _cut(items, first, last)
            self._shrunk(key, items)
        return OK

    # Hashes.

    def _hget(self, key: bytes, name: bytes) -> Reply:
        return (self.look_up(key, Hash) or {}).get(name)

    def _hmget(self, key: bytes, *names: bytes) -> Reply:
        found = self.look_up(key, Hash) or {}
        return [found.get(name) for name in names]

    def _hexists(self, key: bytes, name: bytes) -> Reply:
        return int(name in (self.look_up(key, Hash) or ()))

    def _hkeys(self, key: bytes) -> Reply:
        return [*(self.look_up(key, Hash) or ())]

    def _hlen(self, key: bytes) -> Reply:
        return len(self.look_up(key, Hash) or ())

    def _hgetall(self, key: bytes) -> Reply:
        return [word for pair in (self.look_up(key, Hash) or {}).items() for word in pair]

    def _hset(self, key: bytes, name: bytes, value: bytes) -> Reply:
        found = self._made(key, Hash)
        new = name not in found
        found[name] = value
        return int(new)

    def _hsetnx(self, key: bytes, name: bytes, value: bytes) -> Reply:
        return 0 if self._hexists(key, name) else self._hset(key, name, value)

    def _hrandfield(self, key: bytes, most: bytes) -> Reply:
        return self._hkeys(key)[: int(most)]

    def _hdel(self, key: bytes, *names: bytes) -> Reply:
        found = self.look_up(key, Hash)
        if found is None:
            return 0
        gone = sum(found.pop(name, None) is not None for name in names)
        self._shrunk(key, found)
        return gone

    # Sorted sets.

    def _zscore(self, key: bytes, member: bytes) -> Reply:
        found = self.look_up(key, Scores) or {}
        return _number(found[member]) if member in found else None

    def _zadd(self, key: bytes, *words: bytes) -> Reply:
        flags = set(takewhile({b"NX", b"LT", b"CH"}.__contains__, words))
        items = words[len(flags) :]
        pairs = [(_score(items[i]), items[i + 1]) for i in range(0, len(items), 2)]
        if b"NX" in flags and b"LT" in flags:
            raise ResponseError("GT, LT, and/or NX options at the same time are not compatible")
        found = self._made(key, Scores)
        new = changed = 0
        for score, member in pairs:
            before = found.get(member)
            if before is not None and (
                b"NX" in flags or (b"LT" in flags and score >= before) or score == before
            ):
                continue
            new, changed = new + (before is None), changed + (before is not None)
            found[member] = score
        return new + changed if b"CH" in flags else new

    def _zrem(self, key: bytes, *members: bytes) -> Reply:
        found = self.look_up(key, Scores)
        if found is None:
            return 0
        gone = sum(found.pop(member, None) is not None for member in members)
        self._shrunk(key, found)
        return gone

    def _zcard(self, key: bytes) -> Reply:
        return len(self.look_up(key, Scores) or ())

    def _zcount(self, key: bytes, least: bytes, most: bytes) -> Reply:
        return len(self._zrangebyscore(key, least, most))

    def _zrange(self, key: bytes, first: bytes, last: bytes, *options: bytes) -> Reply:
        return _with_scores(_cut(self._ranked(key), first, last), options)

    def _zrandmember(self, key: bytes, most: bytes) -> Reply:
        return self._zrange(key, b"0", most)[: int(most)]

    def _zrangebyscore(self, key: bytes, least: bytes, most: bytes, *options: bytes) -> Reply:
        above, below = _bound(least), _bound(most)
        found = [
            (score, member)
            for score, member in self._ranked(key)
            if (score > above[0] or (score == above[0] and not above[1]))
            and (score < below[0] or (score == below[0] and not below[1]))
        ]
        flags = [option.upper() for option in options]
        if b"LIMIT" in flags:
            offset, count = map(int, options[flags.index(b"LIMIT") + 1 :][:2])
            found = found[offset : None if count < 0 else offset + count]
        return _with_scores(found, flags)

    def _zremrangebyscore(self, key: bytes, least: bytes, most: bytes) -> Reply:
        gone = self._zrangebyscore(key, least, most)
        return self._zrem(key, *gone)

    def _ranked(self, key: bytes) -> list[tuple[float, bytes]]:
        found = self.look_up(key, Scores) or {}
        return sorted((score, member) for member, score in found.items())

    # Streams.

    def _xadd(self, key: bytes, *words: bytes) -> Reply:
        most = None
        if words[0].upper() == b"MAXLEN":
            skip = 3 if words[1] in (b"~", b"=") else 2
            most, words = int(words[skip - 1]), words[skip:]
            if most < 0:
                raise ResponseError("The MAXLEN argument must be >= 0.")
        entry_id, fields = words[0], list(words[1:])
        stream = self.look_up(key, Stream)
        last = stream[-1][0] if stream else (0, 0)
        if entry_id != b"*":
            chosen = _stream_id(entry_id)
            if chosen == (0, 0):
                raise ResponseError("The ID specified in XADD must be greater than 0-0")
        else:
            now = self.now_ms()
            chosen = (now, 0) if now > last[0] else (last[0], last[1] + 1)
        if chosen <= last:
            raise ResponseError(
                "The ID specified in XADD is equal or smaller than the target stream top item"
            )
        stream = self._made(key, Stream)
        stream.append((chosen, fields))
        if most is not None and len(stream) >= most + 100:
            del stream[: len(stream) - most]  # a server drops whole nodes of a hundred
        return b"%d-%d" % chosen

    def _xrevrange(self, key: bytes, end: bytes, start: bytes, *options: bytes) -> Reply:
        found = [
            [b"%d-%d" % entry_id, list(fields)]
            for entry_id, fields in reversed(self.look_up(key, Stream) or Stream())
            if _before(entry_id, end)
        ]
        return found[: int(options[1])] if options else found

    # Channels.

    def _publish(self, channel: bytes, message: bytes) -> Reply:
        return self.publish(channel, message)

    # Scripts.

    def _eval(self, source: bytes, number: bytes, *words: bytes) -> Reply:
        self.scripts[hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()] = source
        return self._run(source, words, int(number))

    def _evalsha(self, digest: bytes, number: bytes, *words: bytes) -> Reply:
        source = self.scripts.get(digest)
        if source is None:
            raise NoScriptError("No matching script. Please use EVAL.")
        return self._run(source, words, int(number))

    def _run(self, source: bytes, words: Words, number: int) -> Reply:
        return lua.run(source, words[:number], words[number:], self._carry_out)


class Hash(dict[bytes, bytes]):
    """A hash: the value of each field, in the order in which they came."""


class Scores(dict[bytes, float]):
    """A sorted set: the score of each member."""


def _cut(items: list[Any], first: bytes, last: bytes) -> list[Any]:
    begin, end = int(first), int(last)
    begin = max(0, begin + len(items)) if begin < 0 else begin
    end = end + len(items) if end < 0 else end
    return items[begin : end + 1]


def _score(word: bytes) -> float:
    return float(word)


def _bound(word: bytes) -> tuple[float, bool]:
    return (float(word[1:]), True) if word[:1] == b"(" else (float(word), False)


def _number(score: float) -> bytes:
    if math.isinf(score):
        return b"inf" if score > 0 else b"-inf"
    return b"%d" % score if score == int(score) else b"%.17g" % score


def _with_scores(found: Sequence[tuple[float, bytes]], options: Sequence[bytes]) -> list[bytes]:
    if any(option.upper() == b"WITHSCORES" for option in options):
        return [word for score, member in found for word in (member, _number(score))]
    return [member for _, member in found]


def _stream_id(word: bytes) -> tuple[int, int]:
    ms, _, number = word.partition(b"-")
    return int(ms), int(number or 0)


def _before(entry_id: tuple[int, int], end: bytes) -> bool:
    if end == b"+":
        return True
    return entry_id < _stream_id(end[1:]) if end[:1] == b"(" else entry_id <= _stream_id(end)


_COMMANDS: dict[bytes, Callable[..., Reply]] = {
    name[1:].upper().encode(): method
    for name, method in vars(Server).items()
    if name[0] == "_" and name[1] != "_" and callable(method)
}
_COMMANDS[b"SPUBLISH"] = Server._publish
