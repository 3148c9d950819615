"""Locks in the memory of one process, for tests and development."""

from __future__ import annotations

import math
import threading
import time
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from time import monotonic
from typing import Any, ClassVar

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call
from django_redis_lock.protocol.lease import Request, limit_in, token_id, write_value
from django_redis_lock.protocol.waiting import Grant, WaiterRegistry
from django_redis_lock.support.process import forget_after_fork


class LocMemLockBackend(BaseLockBackend):
    """Leases, fences, a queue and listing as on a server, but within one process.

    Threads, greenlets and asyncio tasks of the process exclude each other; other processes have
    locks of their own. Aliases with the same LOCATION share their locks.
    """

    excludes: ClassVar[str] = "only callers in the same process"

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        self._location = str(location or "")
        self.store = _stores.setdefault((self._location, self.key_prefix), _Store())

    def make_registry(self, scheme: str) -> WaiterRegistry:
        registry = WaiterRegistry()
        self.store.registries[registry.id] = registry
        return registry

    def clear(self) -> None:
        """Forget all locks of this LOCATION; for tests, between one and the next."""
        for (location, _), store in [*_stores.items()]:
            if location == self._location:
                store.after_fork()

    def call(self, call: Call) -> Any:
        call.sending()
        return self.store.carry_out(call)


@dataclass(slots=True)
class _Held:
    """The value of a held lock, or of one permit."""

    token: str
    fence: int
    record: str
    end: float  # monotonic

    @property
    def shared(self) -> bool:
        return limit_in(self.record) is not None

    @property
    def ttl_ms(self) -> int:
        return -1 if math.isinf(self.end) else max(0, int((self.end - monotonic()) * 1000))


class _Store:
    """The server's part of the protocol: each method replies like the script of its name."""

    def __init__(self) -> None:
        self.registries = weakref.WeakValueDictionary[str, WaiterRegistry]()
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Start empty: a child does not have its parent's locks."""
        self._mutex = threading.RLock()
        self._holders: dict[str, dict[str, _Held]] = {}  # by token; several if it is shared
        self._queues: dict[str, list[tuple[int, Request]]] = {}  # with their positions, in order
        self.limits: dict[str, str] = {}
        self.audit: deque[tuple[str, Mapping[str, str]]] = deque()
        self._noted = 0
        self._last_fence = 0

    def carry_out(self, call: Call) -> Any:
        with self._mutex:
            return self._operations[type(call)](self, call)

    def _live(self, name: str) -> dict[str, _Held]:
        """Return the holders of a lock by token, without those whose lease has ended."""
        holders = self._holders.get(name, {})
        for held in [*holders.values()]:
            if monotonic() >= held.end:
                self._remove(name, held)
        return holders

    def _remove(self, name: str, held: _Held) -> None:
        holders = self._holders[name]
        del holders[held.token]
        if not holders:
            del self._holders[name]

    def _next_fence(self) -> int:
        self._last_fence = max(self._last_fence + 1, time.time_ns() // 1000)
        return self._last_fence

    def _give(self, request: Request) -> int:
        end = monotonic() + request.lease_ms / 1000
        held = _Held(request.token, self._next_fence(), request.record, end)
        self._holders.setdefault(request.name, {})[request.token] = held
        return held.fence

    def _fits(self, name: str, record: str) -> bool:
        """Whether a caller with this record may have the lock together with its holders."""
        holders, limit = self._live(name), limit_in(record)
        if limit is None:
            return not holders
        if name in self.limits and limit < math.inf:
            limit = int(self.limits[name].split(" ", 1)[0])
        return len(holders) < limit and all(held.shared for held in islice(holders.values(), 1))

    def _hand_off(self, name: str, own: str = "") -> bool:
        """Give the lock to the longest waiting, as many as may have it; return whether others wait.

        A waiter with the token ``own`` asks itself and counts as live.
        """
        queue = self._queues.get(name, [])
        while queue and self._fits(name, queue[0][1].record):
            _, request = queue.pop(0)
            token = request.token
            grant = Grant(self._give(request), request.lease_ms, _now_ms(), monotonic())
            notified = (registry.notify(token, grant) for registry in [*self.registries.values()])
            if token != own and not any(notified):
                self._remove(name, self._holders[name][token])
        if queue:
            self._note_ends(name)
        else:
            self._queues.pop(name, None)
        return bool(queue)

    def _note_ends(self, name: str) -> None:
        """Have a heartbeat sent when the next lease ends, at once if one has just ended."""
        end = min((held.end for held in self._holders.get(name, {}).values()), default=math.inf)
        for registry in [*self.registries.values()]:
            if registry.heart is not None:
                registry.heart.beat_by(end)

    def _acquire(self, call: calls.Acquire) -> Any:
        request = call.request
        name, token = request.name, request.token
        if token not in self._live(name):
            waited = self._hand_off(name, token)
            if token not in self._live(name) and not waited and self._fits(name, request.record):
                return self._give(request)
        holders = self._live(name)
        if held := holders.get(token):
            return [held.fence, held.ttl_ms, _now_ms()]
        ttl_ms = min(holders.values(), key=attrgetter("end")).ttl_ms if holders else -1
        return [0, ttl_ms, _now_ms(), *(self._join(request) if call.waits_in else (0, 0))]

    def _join(self, request: Request) -> tuple[int, int]:
        """Join the queue; return the kind and the position, as ``acquire.lua`` does."""
        queue = self._queues.get(request.name, [])
        for position, waiting in queue:
            if waiting.token == request.token:
                return 2, position
        most = request.max_waiters
        if not request.position and most is not None and len(queue) >= most:
            return 0, 0
        position = request.position or self._next_fence()
        insort(self._queues.setdefault(request.name, []), (position, request))
        return 1, position

    def _come_back(self, call: calls.ComeBack) -> list[int]:
        held = self._live(call.name)
        answers = [2 if one.token in held else 2 - self._join(one)[0] for one in call.requests]
        self._hand_off(call.name)
        return answers

    def _heartbeat(self, call: calls.Heartbeat) -> list[bytes]:
        lost = []
        for name, last in call.names.items():
            self._hand_off(name)
            queue = self._queues.get(name, [])
            if last not in (token_id(one.token.encode()) for _, one in reversed(queue)):
                lost.append(name)
        return [b"%d -1" % _now_ms(), "\n".join(lost).encode()]

    def _holder(self, name: str, digest: str) -> _Held | None:
        held = self._live(name).values()
        return next((each for each in held if token_id(each.token.encode()) == digest), None)

    def _take_over(self, call: calls.TakeOver) -> int | None:
        request, name = call.request, call.request.name
        held = self._holder(name, call.token_id)
        if held is None or (held.shared and not request.shared and len(self._holders[name]) > 1):
            return None
        self._remove(name, held)
        fence = self._give(request)
        if request.shared:
            self._hand_off(name)
        self._note_ends(name)
        return fence

    def _release(self, call: calls.Release) -> int:
        held = self._live(call.name).get(call.token)
        if held is not None:
            self._remove(call.name, held)
        elif queue := self._queues.get(call.name):
            queue[:] = [entry for entry in queue if entry[1].token != call.token]
        self._hand_off(call.name)
        return int(held is not None)

    def _set_limit(self, call: calls.SetLimit) -> None:
        if call.limit is None:
            self.limits.pop(call.name, None)
        else:
            self.limits[call.name] = f"{call.limit} {_now_ms()} {call.by}"
        self._hand_off(call.name)

    def _read_limits(self, call: calls.ReadLimits) -> list[bytes]:
        return [part.encode() for part in chain(*self.limits.items())]

    def _renew(self, call: calls.Renew) -> list[int]:
        left = []
        for name, token, lease_ms in call.leases:
            held = self._live(name).get(token)
            if held is None:
                left.append(-2)
                continue
            end = math.inf if lease_ms < 0 else monotonic() + lease_ms / 1000
            if lease_ms and not (call.at_least and held.end > end):
                held.end = end
                self._note_ends(name)
            left.append(held.ttl_ms)
        return left

    def _inspect(self, call: calls.Inspect) -> list[Any]:
        answer: list[Any] = [_now_ms()]
        for name in call.names:
            value: Any = None
            left = -2
            for held in self._live(name).values():
                left = held.ttl_ms
                if not held.shared:
                    value = write_value(held.token, held.fence, held.record)
                    break
                limit = self.limits.get(name)
                value = value or [None if limit is None else limit.encode(), 0, [], []]
                value[1] += 1
                end = b"inf" if left < 0 else str(_now_ms() + left).encode()
                value[2] += [token_id(held.token.encode()).encode(), end]
                value[3].append(write_value("-", held.fence, held.record))
            answer += [value, left, len(self._queues.get(name, ()))]
        return answer

    def _force_release(self, call: calls.ForceRelease) -> int | None:
        held = self._holder(call.name, call.token_id)
        if held is None:
            return None
        if call.entry:
            self._noted += 1
            self.audit.appendleft((f"{_now_ms()}-{self._noted}", call.entry))
        while len(self.audit) > call.cap:
            self.audit.pop()
        self._remove(call.name, held)
        self._hand_off(call.name)
        return 1

    def _read_history(self, call: calls.ReadHistory) -> list[Any]:
        page: list[Any] = [b""]
        for entry_id, entry in self.audit:
            if not call.name or entry["name"] == call.name:
                pairs = [part.encode() for part in chain(*entry.items())]
                page.append([entry_id.encode(), pairs])
        return [page]

    def _read_queue(self, call: calls.ReadQueue) -> list[Any]:
        answer: list[Any] = [_now_ms()]
        for position, one in self._queues.get(call.name, ()):
            if position > call.after:
                entry = f"i {token_id(one.token.encode())} {one.lease_ms} {one.record}"
                answer += [position, entry.encode()]
        return answer

    def _read_index(self, call: calls.ReadIndex) -> list[bytes]:
        ends = []
        for name in list(self._queues if call.queues else self._holders):
            holders = self._live(name)
            if bool(holders) != call.queues:
                end = max((held.end for held in holders.values()), default=math.inf)
                ends.append((end if math.isinf(end) else round(end * 1000), name.encode()))
        ends.sort()
        first = bisect_right(ends, (float(call.start or 0), call.after))  # no name is empty
        page = ends[first : first + call.count]
        return calls.write_page((name, str(end).encode()) for end, name in page)

    _operations: ClassVar[dict[type[Call], Callable[[Any, Any], Any]]] = {
        calls.Acquire: _acquire,
        calls.Heartbeat: _heartbeat,
        calls.ComeBack: _come_back,
        calls.TakeOver: _take_over,
        calls.Release: _release,
        calls.Renew: _renew,
        calls.SetLimit: _set_limit,
        calls.ReadLimits: _read_limits,
        calls.Inspect: _inspect,
        calls.ForceRelease: _force_release,
        calls.ReadHistory: _read_history,
        calls.ReadQueue: _read_queue,
        calls.ReadIndex: _read_index,
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_stores: dict[tuple[str, str], _Store] = {}  # by LOCATION and KEY_PREFIX
