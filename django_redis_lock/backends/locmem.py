"""Locks in the memory of one process, for tests and development."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from typing import Any, ClassVar

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.index import write_page
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call
from django_redis_lock.protocol.lease import token_id
from django_redis_lock.protocol.records import Fields
from django_redis_lock.protocol.waiting import Grant, Hub
from django_redis_lock.support.process import forget_after_fork


class LocMemLockBackend(BaseLockBackend):
    """Leases, fences, a queue and listing as on a server, but within one process.

    Threads, greenlets and asyncio tasks of the process exclude each other; other processes have
    locks of their own. Entries with the same LOCATION share their locks.
    """

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        self.store = _stores.setdefault(str(location or ""), _Store())

    def make_hub(self, scheme: str) -> Hub:
        return self.store.hub

    def clear(self) -> None:
        """Forget all locks of this LOCATION; for tests, between one and the next."""
        self.store.after_fork()

    def clear_history(self) -> None:
        """Forget the audit of this LOCATION."""
        self.store.audits.clear()

    def call(self, call: Call) -> Any:
        call.sending()
        return self.store.carry_out(call, self.key_prefix)


@dataclass(slots=True)
class _Held:
    """The value of a held lock."""

    token: str
    fence: int
    record: str
    end: float  # monotonic

    @property
    def ttl_ms(self) -> int:
        return -1 if math.isinf(self.end) else max(0, int((self.end - monotonic()) * 1000))


_Key = tuple[str, str]


class _Store:
    """The server's part of the protocol: each method replies like the script of its name."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Start empty: a child does not have its parent's locks."""
        self._mutex = threading.RLock()
        self._locks: dict[_Key, _Held] = {}
        self._queues: dict[_Key, deque[str]] = {}
        self.audits: dict[str, deque[tuple[str, Fields]]] = {}
        self._noted = 0
        self._last_fence = 0

    def carry_out(self, call: Call, prefix: str) -> Any:
        """Carry out a call atomically."""
        with self._mutex:
            return self._operations[type(call)](self, call, prefix)

    def _get(self, key: _Key) -> _Held | None:
        held = self._locks.get(key)
        if held is not None and monotonic() >= held.end:
            del self._locks[key]
            return None
        return held

    def _give(self, key: _Key, token: str, lease_ms: int, record: str) -> int:
        self._last_fence = max(self._last_fence + 1, time.time_ns() // 1000)
        end = monotonic() + lease_ms / 1000
        self._locks[key] = _Held(token, self._last_fence, record, end)
        return self._last_fence

    def _hand_off(self, key: _Key, own: str) -> str:
        """Give the lock to the longest waiting live waiter; return its token, or ``""``.

        A waiter with the token ``own`` asks itself and counts as live.
        """
        queue = self._queues.get(key, deque())
        end = self._locks[key].end if key in self._locks else 0.0
        while queue:
            _, token, lease_ms, record = queue.popleft().split(" ", 3)
            fence = self._give(key, token, int(lease_ms), record)
            if token == own or self.hub.notify(token, Grant(fence, int(lease_ms), _now_ms())):
                self._notify_of_end(key, end)
                break
        else:
            self._locks.pop(key, None)
            token = ""
        if not queue:
            self._queues.pop(key, None)
        return token

    def _notify_of_end(self, key: _Key, before: float) -> None:
        if self._locks[key].end < before:
            self.hub.poll_soon(key[1])

    def _acquire(self, call: calls.Acquire, prefix: str) -> Any:
        request = call.request
        key = prefix, request.name
        held = self._get(key)
        if held is None:
            winner = self._hand_off(key, request.token)
            if winner == request.token:
                return [self._locks[key].fence, request.lease_ms, _now_ms()]
            if not winner:
                return self._give(key, request.token, request.lease_ms, request.record)
            held = self._locks[key]
        if held.token == request.token:
            return [held.fence, held.ttl_ms, _now_ms()]
        kind = 0
        if call.channel:
            entry = request.entry(call.channel)
            queue = self._queues.setdefault(key, deque())
            kind = 2 if entry in queue else 1
            if kind == 1:
                queue.append(entry)
        return [0, held.ttl_ms, _now_ms(), kind]

    def _take_over(self, call: calls.TakeOver, prefix: str) -> int | None:
        request = call.request
        key = prefix, request.name
        held = self._get(key)
        if held is None or call.token_id != token_id(held.token.encode()):
            return None
        fence = self._give(key, request.token, request.lease_ms, request.record)
        self._notify_of_end(key, held.end)
        return fence

    def _release(self, call: calls.Release, prefix: str) -> int:
        key = prefix, call.name
        held = self._get(key)
        if held is not None and held.token == call.token:
            self._hand_off(key, "")
            return 1
        queue = self._queues.get(key, deque())
        if call.entry in queue:
            queue.remove(call.entry)
            if not queue:
                del self._queues[key]
        return 0

    def _renew(self, call: calls.Renew, prefix: str) -> list[int]:
        left = []
        for name, token, lease_ms in call.leases:
            held = self._get((prefix, name))
            if held is None or held.token != token:
                left.append(-2)
                continue
            before, end = held.end, math.inf if lease_ms < 0 else monotonic() + lease_ms / 1000
            if lease_ms and not (call.at_least and before > end):
                held.end = end
                self._notify_of_end((prefix, name), before)
            left.append(held.ttl_ms)
        return left

    def _inspect(self, call: calls.Inspect, prefix: str) -> list[Any]:
        answer: list[Any] = [_now_ms()]
        for name in call.names:
            held = self._get((prefix, name))
            value = f"{held.token} {held.fence} {held.record}".encode() if held else None
            waiters = len(self._queues.get((prefix, name), ()))
            answer += [value, held.ttl_ms if held else -2, waiters]
        return answer

    def _force_release(self, call: calls.ForceRelease, prefix: str) -> int | None:
        key = prefix, call.name
        held = self._get(key)
        if held is None or call.token_id != token_id(held.token.encode()):
            return None
        self._noted += 1
        audit = self.audits.setdefault(prefix, deque())
        audit.appendleft((f"{_now_ms()}-{self._noted}", call.entry))
        while len(audit) > call.cap:
            audit.pop()
        self._hand_off(key, "")
        return 1

    def _read_history(self, call: calls.ReadHistory, prefix: str) -> list[Any]:
        page: list[Any] = [b""]
        for entry_id, entry in self.audits.get(prefix, ()):
            if not call.name or entry["name"] == call.name:
                pairs = [part.encode() for pair in entry.items() for part in pair]
                page.append([entry_id.encode(), pairs])
        return [page]

    def _read_queue(self, call: calls.ReadQueue, prefix: str) -> list[Any]:
        queue = self._queues.get((prefix, call.name), ())
        return [_now_ms(), *[entry.encode() for entry in islice(queue, call.limit)]]

    def _read_index(self, call: calls.ReadIndex, prefix: str) -> list[bytes]:
        ends = sorted(
            (round(held.end * 1000) if math.isfinite(held.end) else math.inf, name.encode())
            for (of, name) in list(self._locks)
            if of == prefix and (held := self._get((of, name))) is not None
        )
        first = bisect_right(ends, (float(call.start or 0), call.after))  # no name is empty
        page = ends[first : first + call.count]
        return write_page((name, str(end).encode()) for end, name in page)

    _operations: ClassVar[dict[type[Call], Callable[[Any, Any, str], Any]]] = {
        calls.Acquire: _acquire,
        calls.TakeOver: _take_over,
        calls.Release: _release,
        calls.Renew: _renew,
        calls.Inspect: _inspect,
        calls.ForceRelease: _force_release,
        calls.ReadHistory: _read_history,
        calls.ReadQueue: _read_queue,
        calls.ReadIndex: _read_index,
    }


def _now_ms() -> int:
    """Return what would be the server's clock."""
    return time.time_ns() // 1_000_000


_stores: dict[str, _Store] = {}
