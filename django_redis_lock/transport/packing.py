"""The Lua scripts, and how calls to them are packed: the keys of each, and its arguments."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call


def pack(items: Iterable[bytes | str | int]) -> bytes:
    packed = [item if isinstance(item, bytes) else str(item).encode() for item in items]
    text = b"".join([b"$%d\r\n%b\r\n" % (len(item), item) for item in packed])
    return b"*%d\r\n%b" % (len(packed), text)


class _Lengths(dict[int, str]):  # formatting a number takes longer than the rest
    def __missing__(self, length: int) -> str:
        return self.setdefault(length, f"${length}\r\n")


_LENGTHS = _Lengths()  # the prefix of an item by its length


def _bulk(item: str) -> str:
    return f"${len(item)}\r\n{item}\r\n"


_INCLUDE = re.compile(r"^( *)-- include (\w+)\n", re.MULTILINE)


def _read(name: str, included: set[str]) -> str:
    """Return the source of a file with what it includes, each file once, or once in each block."""
    if name in included:
        return ""
    included.add(name)
    source = (files(__package__) / "scripts" / f"{name}.lua").read_text(encoding="ascii")
    return _INCLUDE.sub(
        lambda found: _read(found[2], included.copy() if found[1] else included), source
    )


class Script:
    """A Lua script, made of a ``.lua`` file, and of those that it includes."""

    def __init__(self, name: str) -> None:
        self.source = _read(name, set())
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        self._by_sha = _bulk("EVALSHA") + _bulk(self.sha)
        self._by_source = _bulk("EVAL") + _bulk(self.source)

    def pack(self, keys: Sequence[str], args: Sequence[str], *, with_source: bool = False) -> bytes:
        """Return a call as RESP; ``with_source`` sends the script itself and not its digest."""
        items = [str(len(keys)), *keys, *args]
        text = "\r\n".join([_LENGTHS[len(item)] + item for item in items]) + "\r\n"
        if not text.isascii():
            # Lengths count bytes: let each character stand for one byte of the UTF-8.
            text = "".join([_bulk(item.encode().decode("latin-1")) for item in items])
        head = self._by_source if with_source else self._by_sha
        return f"*{len(items) + 2}\r\n{head}{text}".encode("latin-1")


class Command:
    """A command that is called like a script."""

    def __init__(self, name: str) -> None:
        self.name = name

    def pack(self, keys: Sequence[str], args: Sequence[Any], *, with_source: bool = False) -> bytes:
        return pack([self.name, *keys, *args])


ACQUIRE = Script("acquire")
ACQUIRE_SHARED = Script("acquire_shared")
RELEASE = Script("release")
RELEASE_SHARED = Script("release_shared")
CLAIM = Script("claim")
TAKE_OVER = Script("take_over")
FORCE_RELEASE = Script("force_release")
RENEW = Script("renew")
HISTORY = Script("history")
WAITING = Script("waiting")
INSPECT = Script("inspect")
INDEX = Script("index")
HEARTBEAT = Script("heartbeat")
COME_BACK = Script("come_back")
SET_LIMIT = Script("set_limit")
HASH = Command("HGETALL")
FINAL = "final"
"""Has a refusal wait for replicas as well: it may be due to an attempt that lacks them."""
ASK = "ask"
"""Has a takeover only ask, for replicas to acknowledge before what it can't give back."""


class Replicas(NamedTuple):
    """How many replicas must acknowledge a lock before it counts, within ``timeout`` seconds."""

    number: int
    timeout: float

    def judge(self, reply: Any, acknowledged: Any) -> Any:
        """Return the reply to a call, or the error if too few replicas acknowledged it."""
        if not isinstance(acknowledged, int):
            return acknowledged  # the error of WAIT itself
        if acknowledged >= self.number:
            return reply
        error = LockUnavailable(
            f"only {acknowledged} of {self.number} replicas acknowledged the lock within "
            f"{self.timeout:g} s"
        )
        error.refused, error.passing = True, False
        return error


@dataclass(eq=False, slots=True)
class Packed:
    """A call to a script, ready to be sent. ``sending`` is called when it is."""

    script: Script | Command
    keys: Sequence[str]
    args: Sequence[Any]
    sending: Callable[[], None]
    replicas: Replicas | None = None
    until: float = math.inf
    repeatable: bool = False  # whether it may be sent again as it is, if it may have arrived

    def pack(self, *, with_source: bool = False) -> bytes:
        return self.script.pack(self.keys, self.args, with_source=with_source)

    def completed(self, reply: Any) -> Generator[bytes, Any, Any]:
        """Yield the commands that must follow the first reply; return the answer, or the error."""
        if isinstance(reply, NoScriptError):
            reply = yield self.pack(with_source=True)
        if self.replicas is not None and (self.args[-1] == FINAL or _is_granted(reply)):
            number, timeout = self.replicas
            acknowledged = yield pack(["WAIT", number, round(timeout * 1000)])
            reply = self.replicas.judge(reply, acknowledged)
            if self.script is TAKE_OVER and self.args[-1] == ASK and isinstance(reply, int):
                self.args = self.args[:-1]
                reply = yield from self.completed((yield self.pack()))
        return reply


def _is_granted(reply: Any) -> bool:
    return (
        isinstance(reply, int)
        or (isinstance(reply, bytes) and not reply.startswith(b"-"))
        or reply in ([-1], [-2])  # to the renewal that removed an expiry, or to a probe
    )


class Packing:
    """The keys of a backend, or of one of its shards, and the packing of calls that use them."""

    def __init__(self, prefix: str, shard: str = "", replicas: Replicas | None = None) -> None:
        tag = f":{{{shard}}}" if shard else ""
        self.lock_prefix = f"{prefix}{tag}:"
        self.queue_prefix = f"{prefix}-queue{tag}:"
        self.due_key = f"{prefix}-due{tag}"
        self.index_key = f"{prefix}-index{tag}"
        self.fence_key = f"{prefix}-fence{tag}"
        self.audit_key = f"{prefix}-audit{tag}"
        self.seen_key = f"{prefix}-seen{tag}"
        self.limits_key = f"{prefix}-limits{tag}"
        self.parked_prefix = f"{prefix}-parked{tag}:"
        self.ticks_prefix = f"{prefix}-ticks{tag}:"
        self._permits = f"{prefix}-permits{tag}:"
        self._prefix = prefix
        self._all = self.index_key, self.fence_key, self.seen_key, self.limits_key
        self._replicas = replicas

    def pack(self, call: Call, sending: Callable[[], None] | None = None) -> Packed:
        """Return a call, ready to be sent. ``sending`` replaces the call's own method."""
        script, keys, args = ENCODERS.get(type(call), ENCODERS[Call])(self, call)
        replicas = self._replicas if self._replicas and _must_be_replicated(call) else None
        repeatable = script is not FORCE_RELEASE  # it has to know that it is sent again
        return Packed(script, keys, args, sending or call.sending, replicas, call.until, repeatable)

    def _own_keys(self, name: str) -> list[str]:
        return [self.lock_prefix + name, self.queue_prefix + name, self._permits + name]

    def granting_keys(self, name: str) -> list[str]:
        """Return the keys of one lock for a script that can hand it off."""
        return [self.lock_prefix + name, self.queue_prefix + name, *self._all, self._permits + name]

    def quorum_keys(self, name: str) -> list[str]:
        """Return the keys of one lock for a script of a quorum, which has no shards."""
        waiters = f"{self._prefix}-waiters:quorum:{name}"
        return [*self.granting_keys(name)[:4], f"{self._prefix}-server", waiters]

    def _encode_acquire(self, call: calls.Acquire) -> Encoded:
        request = call.request
        args = [request.token, str(request.lease_ms), request.record, request.name, call.waits_in]
        if call.waits_in or self._replicas is not None:
            args.append(str(request.position or ""))
            if request.max_waiters is not None or self._replicas is not None:
                args.append("" if request.max_waiters is None else str(request.max_waiters))
                own = FINAL if call.final else "1"
                args.append("" if self._replicas is None else own)
        script = ACQUIRE_SHARED if request.shared else ACQUIRE
        return script, self.granting_keys(request.name), args

    def _encode_take_over(self, call: calls.TakeOver) -> Encoded:
        request = call.request
        args = [request.token, str(request.lease_ms), request.record, request.name, call.token_id]
        args += [ASK] if self._replicas else []
        return TAKE_OVER, self.granting_keys(request.name), args

    def _encode_release(self, call: calls.Release) -> Encoded:
        args = [call.token, call.name, call.entry]
        if call.unclaimed:
            args.append("1")
        return RELEASE_SHARED if call.shared else RELEASE, self.granting_keys(call.name), args

    def _encode_claim(self, call: calls.Claim) -> Encoded:
        if call.shared:  # to look at a permit claims it
            return self._encode_renew(calls.Renew([(call.name, call.token, 0)]))
        args = [call.token, str(call.fence), str(call.end_ms)]
        return CLAIM, [self.lock_prefix + call.name], args

    def _encode_set_limit(self, call: calls.SetLimit) -> Encoded:
        limit = "" if call.limit is None else str(call.limit)
        return SET_LIMIT, self.granting_keys(call.name), [call.name, limit, call.by]

    def _encode_force_release(self, call: calls.ForceRelease) -> Encoded:
        again = "0" if call.first_sent_at is None else "1"
        args = [call.name, call.token_id, str(call.cap), again, *chain(*call.entry.items())]
        return FORCE_RELEASE, [*self.granting_keys(call.name), self.audit_key], args

    def _encode_read_history(self, call: calls.ReadHistory) -> Encoded:
        return HISTORY, [self.audit_key], [call.name, call.before, str(call.count)]

    def _encode_read_queue(self, call: calls.ReadQueue) -> Encoded:
        keys = [self.queue_prefix + call.name, self.seen_key]
        return WAITING, keys, [call.name, str(call.after)]

    def _encode_renew(self, call: calls.Renew) -> Encoded:
        keys, args = [self.index_key, self.seen_key], []
        for name, token, lease_ms in call.leases:
            keys += self._own_keys(name)
            args += [name, token, f"+{lease_ms}" if call.at_least else str(lease_ms)]
        return RENEW, keys, args

    def _encode_inspect(self, call: calls.Inspect) -> Encoded:
        own = [key for name in call.names for key in self._own_keys(name)]
        before_name = str(len(self.lock_prefix.encode()))
        return INSPECT, [self.seen_key, self.limits_key, *own], [before_name, str(call.skip)]

    def _encode_heartbeat(self, call: calls.Heartbeat) -> Encoded:
        return HEARTBEAT, self.granting_keys(""), [call.process, *chain(*call.some())]

    def _encode_come_back(self, call: calls.ComeBack) -> Encoded:
        args = [call.process, call.name]
        for one in call.requests:
            args += [one.token, str(one.position), f"{one.lease_ms} {one.record}"]
        return COME_BACK, self.granting_keys(call.name), args

    def _encode_read_index(self, call: calls.ReadIndex) -> Encoded:
        keys = [self.due_key, self.index_key] if call.queues else [self.index_key]
        return INDEX, keys, [call.start, call.after.hex(), str(call.count)]


def _must_be_replicated(call: Call) -> bool:
    if type(call) is calls.Renew:
        return len(call.leases) == 1 and call.leases[0][2] == -1  # it makes a lock never expire
    if type(call) is calls.Release:
        return call.patient and call.entry != ""  # of a caller whose wait has ended
    return isinstance(call, calls.Acquire | calls.TakeOver)


Encoded = tuple[Script | Command, list[str], list[str]]
ENCODERS: dict[type[Call], Callable[[Any, Any], Encoded]] = {
    calls.Acquire: Packing._encode_acquire,
    calls.TakeOver: Packing._encode_take_over,
    calls.Release: Packing._encode_release,
    calls.Claim: Packing._encode_claim,
    calls.Renew: Packing._encode_renew,
    calls.Heartbeat: Packing._encode_heartbeat,
    calls.ComeBack: Packing._encode_come_back,
    calls.Inspect: Packing._encode_inspect,
    calls.ForceRelease: Packing._encode_force_release,
    calls.SetLimit: Packing._encode_set_limit,
    calls.ReadLimits: lambda packing, call: (HASH, [packing.limits_key], []),
    calls.ReadHistory: Packing._encode_read_history,
    calls.ReadQueue: Packing._encode_read_queue,
    calls.ReadIndex: Packing._encode_read_index,
    Call: lambda packing, call: call.encode(packing),  # of a module that few programs import
}


def numbers(reply: Any) -> Any:
    """Return the numbers in a text reply. Scripts send them as text, which is read faster."""
    return list(map(int, reply.split())) if isinstance(reply, bytes) else reply
