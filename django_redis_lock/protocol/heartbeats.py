"""Heartbeats, by which a process reports to each server that it waits; see ``heartbeat.lua``."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from time import monotonic
from typing import Any

from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Steps
from django_redis_lock.protocol.lease import token_id
from django_redis_lock.protocol.waiting import OUTAGE_LIMIT, LocalWaiter, WaiterRegistry
from django_redis_lock.support import threads

logger = logging.getLogger("django_redis_lock")
BEAT_EVERY = 0.8  # seconds between heartbeats, by which a server knows that a process runs
FOREIGN_EVERY = 0.25  # seconds between checks of a lock that another program releases by itself
SHORTEST = 0.02  # seconds between two heartbeats at least
ANSWER_WITHIN = 1.0  # seconds for which a heartbeat waits for its answer
WAITER_TIMEOUT = 5.0  # seconds of silence after which a process waits no more; see ``common.lua``
AGAIN_AFTER = 0.2  # seconds after which a heartbeat that failed is sent again
LATE = 0.5  # seconds after which a waiter sends a heartbeat that is due, as the thread does not
AT_ONCE = 64  # how many waiters come back in one go
_position = attrgetter("request.position")
Waiters = Mapping[str, Collection[LocalWaiter]]  # those of one server with a position, by lock


class Heart(threads.Background):
    """Sends the heartbeats of a registry, from a thread that lives while there are waiters."""

    def __init__(self, registry: WaiterRegistry, backend: Any) -> None:
        self._registry = registry
        self._backend = backend
        super().__init__(f"django-redis-lock-heartbeat-{backend.alias}")

    def reset(self) -> None:
        super().reset()
        self._due = math.inf
        self._beat_at = -math.inf  # when the last one was sent
        self._turn = 0
        self._notified: set[LocalWaiter] = set()  # who had not reacted yet at the last heartbeat
        self._answered: dict[object, float] = {}  # by server: when it answered the last one
        self._lost_at = -math.inf  # when grants may have been lost with a connection
        self._failing: dict[object, float] = {}  # by server: since when
        self._beating = threading.Lock()

    @property
    def overdue_at(self) -> float:
        """When (monotonic) a waiter has to send the next heartbeat, if the thread does not."""
        return self._due + LATE

    @property
    def unattended_at(self) -> float:
        """The same where no thread could be started, else infinity."""
        if self.runs:
            return math.inf
        return monotonic() + AGAIN_AFTER if self._beating.locked() else self._due

    def expect(self, ttl_ms: int, *, foreign: bool) -> None:
        """Have a heartbeat sent in time for a waiter who was answered: see ``WaiterRegistry``."""
        pause = min(FOREIGN_EVERY if foreign else math.inf, self._registry.interval or BEAT_EVERY)
        self.beat_by(monotonic() + (pause if ttl_ms < 0 else min(pause, (ttl_ms + 2) / 1000)))

    def beat_by(self, due: float) -> None:
        """Have the next heartbeat sent at a time (monotonic), unless one is sent before."""
        if due < self._due:
            self._due = due
            if due < self.wakes_at:
                with suppress(RuntimeError):  # then waiters send them
                    self.wake(due)

    def ask_first(self) -> None:
        """Have the first waiter of each lock ask, as grants may have been lost."""
        self._lost_at = monotonic()
        self.beat_by(self._lost_at)

    def work(self) -> float:
        if monotonic() >= self._due and monotonic() >= self._beat_at + SHORTEST:
            self.beat(waits=True)
        return max(self._due, self._beat_at + SHORTEST)

    def beat(self, *, waits: bool = False) -> None:
        """Send one heartbeat to each server. If another thread does, return, or wait for a turn."""
        if not self._beating.acquire(blocking=waits):
            return
        try:
            self._due = math.inf  # a waiter that comes from here on may say when
            servers = self._by_server()
            if servers or self._notified:
                self._due = min(self._due, monotonic() + (self._registry.interval or BEAT_EVERY))
            self._turn += 1
            self._answered = {each: at for each, at in self._answered.items() if each in servers}
            for server, waiters in servers.items():
                self._backend.run(self._beat(server, waiters))
        finally:
            self._beat_at = monotonic()
            self._beating.release()

    def _by_server(self) -> dict[object, dict[str, list[LocalWaiter]]]:
        names: dict[str, list[LocalWaiter]] = {}
        for waiter in self._registry.present():
            if waiter.request.position:
                names.setdefault(waiter.request.name, []).append(waiter)
        notified = {each for waiters in names.values() for each in waiters if each.notified}
        # Of a lock whose grants do not reach their waiter, as its event loop is blocked, nothing is
        # sent, so that the server passes this process over.
        stuck = {waiter.request.name for waiter in notified & self._notified}
        self._notified = notified
        servers: dict[object, dict[str, list[LocalWaiter]]] = {}
        for name in names.keys() - stuck:
            servers.setdefault(self._backend.renewal_group(name), {})[name] = names[name]
        return servers

    def _beat(self, server: object, waiters: Waiters) -> Steps[None]:
        now = monotonic()
        gone_at = now - max(WAITER_TIMEOUT, 4 * (self._registry.interval or 0))
        answered_at = self._answered.get(server, max(gone_at, self._beat_at))
        asks, until = answered_at < max(gone_at, self._lost_at), now + ANSWER_WITHIN
        try:
            pause = yield from beat(self._registry, waiters, self._turn, until, asks=asks)
        except Exception as error:
            self._answered[server], failed_at = -math.inf, monotonic()
            if not isinstance(error, LockError):
                logger.exception("Could not send a heartbeat; retrying")
            if failed_at - self._failing.setdefault(server, failed_at) >= OUTAGE_LIMIT:
                for waiter in chain(*waiters.values()):
                    self._registry.fail(waiter, error)
            self._due = min(self._due, failed_at + AGAIN_AFTER)
        else:
            self._answered[server] = now
            self._failing.pop(server, None)
            self._due = min(self._due, monotonic() + pause)


def beat(
    registry: WaiterRegistry, waiters: Waiters, turn: int, until: float, *, asks: bool
) -> Steps[float]:
    """Send a heartbeat to one server, and do what its answer asks for.

    With ``asks`` the first waiters of all locks ask. Returns in how many seconds the next is due.
    """
    last = {name: max(each, key=_position) for name, each in waiters.items()}
    names = {name: token_id(one.request.token.encode()) for name, one in last.items()}
    with suppress(LockUnavailable):  # else it waits for its messages until the next heartbeat
        for name in waiters:
            if not registry.receives(name):
                yield calls.Listen(registry, name, until=until)
    process = registry.waits_in(next(iter(waiters)))
    call = calls.Heartbeat(process, names, turn, until=until)
    status, lost, *messages = yield call
    now_ms, left_ms = map(int, status.split())
    registry.note_server_ms(now_ms, call.sent_at)
    tokens = [registry.take_in(message) for message in messages]
    again = waiters if asks else lost.decode().split("\n")
    missed = False
    for name in again:
        # A notified waiter asks itself. To come back as well would put it in the queue again, if it
        # has released the lock by then.
        left = [each for each in waiters.get(name, ()) if each.request.token not in tokens]
        left = [each for each in left if registry.expects(each) and not each.notified]
        ordered = sorted(left, key=_position)
        try:
            missed |= yield from _come_back(registry, name, ordered)
        except LockUnavailable:
            raise
        except LockError:  # another program's data, which they find as they ask
            for waiter in ordered:
                registry.notify(waiter.request.token)
    if missed:  # the next one serves them, and finds what else is lost
        return 0.0
    return (left_ms + 2) / 1000 if left_ms >= 0 else math.inf


def _come_back(registry: WaiterRegistry, name: str, waiters: Sequence[LocalWaiter]) -> Steps[bool]:
    """Have waiters come back until one was in the queue; return whether any was missing."""
    missed = False
    for first in range(0, len(waiters), AT_ONCE):
        some = waiters[first : first + AT_ONCE]
        process = some[0].request.waits_in
        answer = yield calls.ComeBack(process, name, [waiter.request for waiter in some])
        for waiter, found in zip(some, answer, strict=True):
            if found == 2:
                registry.notify(waiter.request.token)
            elif not registry.expects(waiter):
                registry.forget(waiter.request)
        missed |= 1 in answer
        if 0 in answer:
            break
    return missed
