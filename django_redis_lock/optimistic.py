"""What the scripts do, done without scripts: by watching what is read, and writing all or nothing.

Each operation does the work of the script of its name, with the same keys, arguments and answer,
and the comments there hold here too. It is a generator without I/O that yields what to read and at
last what to write; ``transacting`` sends that. Where something that was watched has changed before
the write, nothing is written and the operation begins anew (optimistic concurrency control after
Kung and Robinson, 1981; ``WATCH`` is the server's form of it).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any

from django_redis_lock.line import UNCLAIMED, Command, Line, Operation, Read, Write, milliseconds

ALIVE_MS = 5000
LINE_MS = 60_000
_OURS = re.compile(rb"^(\S+) (\d+) (.*)$", re.DOTALL)


def acquire(keys: Sequence[str], args: Sequence[str], *, publishes: bool) -> Operation:
    """Take the lock, or join its waiters."""
    token, lease, record, name, channel = args
    line = Line(keys, name, publishes=publishes)
    entry = f"{channel} {token} {lease} {record}".encode()
    looks: list[Command] = [("GET", line.lock), ("PTTL", line.lock), ("TIME",)]
    looks += [("LLEN", line.queue), ("LPOS", line.queue, entry)]
    held, ttl, clock, waiters, place = yield Read(looks, watch=[line.lock, line.queue])
    if held is None:
        if waiters and (yield from line.hand_over(token.encode(), -2)):
            # Whoever it was given to is read again, as it was written.
            yield Write(line.commands)
            return (yield from acquire(keys, args, publishes=publishes))
        (last,) = yield Read([("GET", line.fence)], watch=[line.fence])
        fence = line.give(token.encode(), int(lease), record.encode(), clock, last)
        if fence % 16 == 0:  # unlike the script it clears them all, for it can't look first
            stale = milliseconds(clock) - 1
            line.commands.append(("ZREMRANGEBYSCORE", line.index, "-inf", stale))
        yield Write(line.commands)
        return fence
    now = milliseconds(clock)
    ours = _OURS.match(held)
    if ours and ours[1] == token.encode():
        if ours[3].startswith(UNCLAIMED):
            ttl = int(lease)
            line.write(b"%s %s %s" % (ours[1], ours[2], record.encode()), now + ttl)
        yield Write(line.commands)  # if only to be sure that it is ours at one moment
        return [int(ours[2]), ttl, now]
    kind = 0 if ours else 3
    if channel:
        kind += 1 if place is None else 2
        if place is None:
            line.commands.append(("RPUSH", line.queue, entry))
        if channel.startswith("@list:"):
            alive = channel.removeprefix("@list:") + ":alive"
            line.commands.append(("SET", alive, "", "PX", ALIVE_MS))
        line.commands.append(("PEXPIRE", line.queue, LINE_MS))
        yield Write(line.commands)
    return [0, ttl, now, kind]


def release(keys: Sequence[str], args: Sequence[str], *, publishes: bool) -> Operation:
    """Release the lock and give it to the longest waiting; or, giving up, leave the waiters."""
    token, name, entry = args
    line = Line(keys, name, publishes=publishes)
    held, ttl, waiters = yield Read(
        [("GET", line.lock), ("PTTL", line.lock), ("LLEN", line.queue)],
        watch=[line.lock, line.queue],
    )
    if held is not None and held.startswith(token.encode() + b" "):
        yield from _let_go(line, ttl, waiters)
        yield Write(line.commands)
        return 1
    if entry:
        yield Write([("LREM", line.queue, 1, entry)])
    return 0


def _let_go(line: Line, ttl: int, waiters: int) -> Generator[Read | Write, list[Any], None]:
    if not (waiters and (yield from line.hand_over(b"", ttl))):
        line.commands += [("DEL", line.lock), ("ZREM", line.index, line.name)]


def force_release(keys: Sequence[str], args: Sequence[str], *, publishes: bool) -> Operation:
    """Take the lock from the holder that was shown, and give it to the longest waiting."""
    name, digest, kept, *entry = args
    audit = keys[4]
    line = Line(keys[:4], name, publishes=publishes)
    held, ttl, waiters = yield Read(
        [("GET", line.lock), ("PTTL", line.lock), ("LLEN", line.queue)],
        watch=[line.lock, line.queue],
    )
    if held is None or _digest(held) != digest:
        return None
    line.commands.append(("XADD", audit, "MAXLEN", "~", kept, "*", *entry))
    yield from _let_go(line, ttl, waiters)
    yield Write(line.commands)
    return 1


def take_over(keys: Sequence[str], args: Sequence[str], *, publishes: bool) -> Operation:
    """Take the lock from the holder of a token, before all who wait; they go on waiting."""
    token, lease, record, name, digest = args
    line = Line(keys, name, publishes=publishes)
    held, before, clock, last, entries = yield Read(
        [
            ("GET", line.lock),
            ("PTTL", line.lock),
            ("TIME",),
            ("GET", line.fence),
            ("LRANGE", line.queue, 0, -1),
        ],
        watch=[line.lock, line.fence],
    )
    if held is None or (held.split(b" ", 1)[0] != token.encode() and _digest(held) != digest):
        return None
    fence = line.give(token.encode(), int(lease), record.encode(), clock, last)
    yield from line.tell_of_end(entries, before, int(lease))
    yield Write(line.commands)
    return fence


def renew(keys: Sequence[str], args: Sequence[str], *, publishes: bool) -> Operation:
    """Set the leases of any number of locks, or look whether they are still held."""
    index = keys[0]
    asked = list(zip(keys[1::2], keys[2::2], args[0::3], args[1::3], args[2::3], strict=True))
    looks: list[Command] = [
        command for lock, *_ in asked for command in (("GET", lock), ("PTTL", lock))
    ]
    found = yield Read(looks, whole=True)
    held = [
        value is not None and value.startswith(f"{item[3]} ".encode())
        for item, value in zip(asked, found[0::2], strict=True)
    ]
    left = [ttl if ours else -2 for ours, ttl in zip(held, found[1::2], strict=True)]
    # A lock that is lost stays so, and may be changing all the time: only ours are watched.
    ours = [number for number, item in enumerate(asked) if held[number] and item[4] != "0"]
    if not ours:
        return left
    looks = [("TIME",)]
    for number in ours:
        looks += [("GET", asked[number][0]), ("PTTL", asked[number][0])]
        looks += [("LRANGE", asked[number][1], 0, -1)]
    clock, *found = yield Read(looks, watch=[asked[number][0] for number in ours])
    now = milliseconds(clock)
    commands: list[Command] = []
    for number, value, ttl, entries in zip(
        ours, found[0::3], found[1::3], found[2::3], strict=True
    ):
        lock, queue, name, token, lease_text = asked[number]
        lease = int(lease_text)
        if value is None or not value.startswith(f"{token} ".encode()):
            left[number] = -2
        elif lease_text.startswith("+") and (ttl < 0 or ttl > lease):
            left[number] = ttl
        elif lease < 0:
            commands += [("PERSIST", lock), ("ZADD", index, "+inf", name)]
            left[number] = -1
        else:
            line = Line((lock, queue, index, ""), name, publishes=publishes)
            yield from line.tell_of_end(entries, ttl, lease)
            commands += [
                *line.commands,
                ("PEXPIREAT", lock, now + lease),
                ("ZADD", index, now + lease, name),
            ]
            left[number] = lease
    yield Write(commands)
    return left


def inspect(keys: Sequence[str], args: Sequence[str], *, publishes: bool) -> Operation:
    """Read who holds locks, without changing anything."""
    looks: list[Command] = [("TIME",)]
    for lock, queue in zip(keys[0::2], keys[1::2], strict=True):
        looks += [("GET", lock), ("PTTL", lock), ("LLEN", queue)]
    clock, *found = yield Read(looks, lenient=True, whole=True)
    answer: list[Any] = [milliseconds(clock)]
    for held, ttl, waiters in zip(found[0::3], found[1::3], found[2::3], strict=True):
        answer += [
            held if isinstance(held, bytes) else None,
            ttl,
            waiters if isinstance(waiters, int) else 0,
        ]
    return answer


def waiting(keys: Sequence[str], args: Sequence[str], *, publishes: bool) -> Operation:
    """Read the line of a lock, without changing anything."""
    clock, entries = yield Read([("TIME",), ("LRANGE", keys[0], 0, -1)], lenient=True)
    now = milliseconds(clock)
    return [now, *(entries if isinstance(entries, list) else [])]


def index(keys: Sequence[str], args: Sequence[str], *, publishes: bool) -> Operation:
    """Read one page of the names of held locks, the earliest lease end first."""
    start, offset, count = args
    if not start:
        (clock,) = yield Read([("TIME",)])
        start = str(milliseconds(clock))
    page: Command = ("ZRANGEBYSCORE", keys[0], start, "+inf", "WITHSCORES", "LIMIT", offset, count)
    (found,) = yield Read([page])
    if found and isinstance(found[0], list):  # RESP3 pairs each name with a number
        found = [part for name, end in found for part in (name, f"{end:.0f}".encode())]
    return found


def history(keys: Sequence[str], args: Sequence[str], *, publishes: bool) -> Operation:
    """Read the audit, the newest entry first."""
    name, most = args
    read: Command = ("XREVRANGE", keys[0], "+", "-")
    (found,) = yield Read([read if name else (*read, "COUNT", most)])
    chosen = [item for item in found if not name or _pairs(item).get(b"name") == name.encode()]
    return chosen[: int(most)]


def note_losses(keys: Sequence[str], args: Sequence[str], *, publishes: bool) -> Operation:
    """Write into the audit that leases were found lost."""
    known = set()
    if args[1] == "1":
        (found,) = yield Read([("XREVRANGE", keys[0], "+", "-")], watch=[keys[0]])
        entries = [_pairs(item) for item in found]
        known = {item.get(b"token_id") for item in entries if item.get(b"event") == b"lost"}
    commands: list[Command] = []
    at = 2
    while at < len(args):
        end = at + 2 + int(args[at + 1])
        if args[at].encode() not in known:
            commands.append(("XADD", keys[0], "MAXLEN", "~", args[0], "*", *args[at + 2 : end]))
        at = end
    yield Write(commands)
    return len(commands)


def get(keys: Sequence[str], args: Sequence[str], *, publishes: bool) -> Operation:
    """Read what is stored for a lock."""
    (value,) = yield Read([("GET", keys[0])])
    return value


def _digest(held: bytes) -> str:
    token = held.split(b" ", 1)[0]
    return hashlib.sha1(token, usedforsecurity=False).hexdigest()[:16]


def _pairs(entry: Any) -> dict[bytes, bytes]:
    return dict(zip(entry[1][0::2], entry[1][1::2], strict=False))


OPERATIONS: dict[str, Callable[..., Operation]] = {
    "acquire": acquire,
    "release": release,
    "take_over": take_over,
    "force_release": force_release,
    "renew": renew,
    "inspect": inspect,
    "waiting": waiting,
    "index": index,
    "history": history,
    "note_losses": note_losses,
    "get": get,
}
