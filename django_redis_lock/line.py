"""The hand-over of a lock without scripts: what ``common.lua`` does, as commands for one write."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

Command = tuple[str | bytes | int, ...]
CLAIM_MS = 16_000
"""Milliseconds for which a lock is kept for one who subscribes and could not be told."""
LIST_MS = 60_000
NEWS_MS = 15_000  # a lease that ends later is no news to those who wait


@dataclass(frozen=True, slots=True)
class Read:
    """Ask in one round trip; answered by a list of replies."""

    commands: Sequence[Command]
    watch: Sequence[str] = ()
    """What must not change from here to the write."""
    lenient: bool = False
    """Whether an error of one command is its reply, and not that of the operation."""
    whole: bool = False
    """Whether nothing may change between the commands."""


@dataclass(frozen=True, slots=True)
class Write:
    """Carry out all, if nothing has changed of what was watched; the last step of an operation."""

    commands: Sequence[Command]


Operation = Generator[Read | Write, list[Any], Any]


class Line:
    """The hand-over of one lock; gathers the commands for it."""

    def __init__(self, keys: Sequence[str], name: str, *, publishes: bool) -> None:
        self.lock, self.queue, self.index, self.fence = keys
        self.name = name
        self.commands: list[Command] = []
        self._publishes = publishes

    def give(self, token: bytes, lease: int, record: bytes, clock: list[bytes], last: Any) -> int:
        """Write the lock for a token; return the fence."""
        fence = max(int(clock[0]) * 1_000_000 + int(clock[1]), int(last or 0) + 1)
        self.commands.append(("SET", self.fence, fence))
        self.write(b"%s %d %s" % (token, fence, record), milliseconds(clock) + lease)
        return fence

    def write(self, value: bytes, end: int) -> None:
        """Write the lock, to last until a time of the server's clock in ms."""
        self.commands.append(("SET", self.lock, value, "PXAT", end))
        self.commands.append(("ZADD", self.index, end, self.name))

    def hand_over(self, own: bytes, before: int) -> Generator[Read | Write, list[Any], bool]:
        """Give the lock to the longest waiting that still listens; return whether there is one."""
        entries, clock, last = yield Read(
            [("LRANGE", self.queue, 0, -1), ("TIME",), ("GET", self.fence)], watch=[self.fence]
        )
        for place, entry in enumerate(entries):
            match = _ENTRY.match(entry)
            if match is None:
                continue
            channel, token, lease_text, record = match.groups()
            lease = int(lease_text)
            there = True if token == own else (yield from self._is_there(channel))
            if there == 0:
                continue  # dead
            if there is None:
                poll = _POLL.match(channel)
                lease = int(poll[1]) if poll else CLAIM_MS
                record = UNCLAIMED + record[1:]
            self.commands.append(("LPOP", self.queue, place + 1))
            fence = self.give(token, lease, record, clock, last)
            if there and token != own:
                now_ms = milliseconds(clock)
                self._send(channel, b"grant %s %d %d %d" % (token, fence, lease, now_ms))
            yield from self.tell_of_end(entries[place + 1 :], before, lease)
            return True
        if entries:
            self.commands.append(("DEL", self.queue))
        return False

    def _is_there(self, channel: bytes) -> Generator[Read | Write, list[Any], bool | None]:
        """Whether somebody hears a message on a channel; ``None`` where it can't be told."""
        if channel.startswith(b"@poll:"):
            return None
        if channel.startswith(_LIST):
            alive_key = channel.removeprefix(_LIST) + b":alive"
            (alive,) = yield Read([("EXISTS", alive_key)], lenient=True)
            return bool(alive) if isinstance(alive, int) else None
        if not self._publishes:
            return None
        (answer,) = yield Read([("PUBSUB", "NUMSUB", channel)], lenient=True)
        if not isinstance(answer, list | dict):
            return None
        return bool(answer[1] if isinstance(answer, list) else answer.get(channel))

    def tell_of_end(
        self, entries: Sequence[bytes], before: int, after: int
    ) -> Generator[Read | Write, list[Any], None]:
        """Tell whoever waits that the lock's lease ends sooner than it did."""
        if after >= NEWS_MS or 0 <= before <= after:
            return
        for channel in dict.fromkeys(entry.split(b" ", 1)[0] for entry in entries):
            if (yield from self._is_there(channel)):
                self._send(channel, b"look " + self.name.encode())

    def _send(self, channel: bytes, message: bytes) -> None:
        if channel.startswith(_LIST):
            key = channel.removeprefix(_LIST)
            self.commands += [("RPUSH", key, message), ("PEXPIRE", key, LIST_MS)]
        else:
            self.commands.append(("PUBLISH", channel, message))


_ENTRY = re.compile(rb"^(\S+) (\S+) (\d+) (.*)$", re.DOTALL)
_POLL = re.compile(rb"^@poll:(\d+)$")
_LIST = b"@list:"
UNCLAIMED = b'{"unclaimed":true,'


def milliseconds(clock: Sequence[bytes]) -> int:
    """Return the time that the server's clock reads."""
    return int(clock[0]) * 1000 + int(clock[1]) // 1000
