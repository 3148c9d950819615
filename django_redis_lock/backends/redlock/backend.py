"""Locks on a majority of independent Redis or Valkey servers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

from django.core import checks

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.index import Index, read_page
from django_redis_lock.backends.redlock import votes
from django_redis_lock.backends.redlock.ballots import Ballots, ignore
from django_redis_lock.backends.redlock.servers import (
    Admit,
    ReadFences,
    ReadPages,
    Server,
    check_servers,
    why_silent,
)
from django_redis_lock.backends.redlock.wires import Letter
from django_redis_lock.backends.servers.errors import reason
from django_redis_lock.backends.settings import read_poll_interval, read_seconds
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call
from django_redis_lock.protocol.conversation import ask
from django_redis_lock.protocol.drivers import Steps, adrive, drive
from django_redis_lock.protocol.waiting import Hub

SERVER_TIMEOUT = 0.5
REJOIN_DELAY = 30.0
INTERVAL = 0.1
"""Seconds between two polls of a lock that another holds, unless POLL_INTERVAL says otherwise."""


class RedlockLockBackend(BaseLockBackend):
    """Locks that a majority of independent servers agrees on, after the Redlock algorithm.

    LOCATION is a list of an odd number of servers, at least three. Each is an alias of CACHES that
    django-redis or Django's RedisCache serves, or a URL. They must not replicate each other. All
    are asked at once, and the answer of a majority counts, so a minority may be slow, paused or
    gone.

    OPTIONS["SERVER_TIMEOUT"] is how many seconds to wait for an answer; no server delays a caller
    for longer. For OPTIONS["REJOIN_DELAY"] seconds a server that was restarted, or lost its data,
    gives no locks, since it may have lost one that is still held. Give the longest lease in use. It
    defaults to TIMEOUT, or to 30 for locks that never expire.

    Waiters poll, and are served in no order.
    """

    options: ClassVar[tuple[str, ...]] = ("SERVER_TIMEOUT", "REJOIN_DELAY", "POLL_INTERVAL")

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        self.server_timeout = read_seconds(options, "SERVER_TIMEOUT", SERVER_TIMEOUT, self.alias)
        delay = REJOIN_DELAY if self.timeout is None else self.timeout
        self.rejoin_delay = read_seconds(options, "REJOIN_DELAY", delay, self.alias, least=0.0)
        params = {"KEY_PREFIX": self.key_prefix}
        self.servers = [
            Server(self.alias, {**params, "LOCATION": item}, self.server_timeout)
            for item in check_servers(self.alias, location)
        ]
        interval = read_poll_interval(options, self.alias, INTERVAL)
        # Waiters are in the queue to be counted, not to be served.
        self.hub = Hub(interval=interval, channel=f"{self.key_prefix}-grant:quorum")
        self._ballots = Ballots(
            self.servers, self.server_timeout, round(self.rejoin_delay * 1000), interval
        )

    def databases(self) -> set[Hashable]:
        return {database for server in self.servers for database in server.databases()}

    def check(self) -> list[checks.CheckMessage]:
        return [message for server in self.servers for message in server.check()]

    def open(self) -> None:
        for server in self.servers:
            server.open()

    def close(self) -> None:
        super().close()
        for server in self.servers:
            server.wire.close()
            server.close()

    def admit(self) -> None:
        """Let all servers vote from now on, without the delay for restarted ones.

        Use it for a new installation, or after a failure when you know that no lock is held: there
        is no other protection from a lock that a server has lost. Fences continue from the greatest
        one that any server knows. Raises ``LockUnavailable``.
        """
        self.run(self._admit())

    async def aadmit(self) -> None:
        """Let all servers vote from now on, as ``admit`` does."""
        await self.arun(self._admit())

    def _admit(self) -> Steps[None]:
        known = yield from ask(ReadFences(self._ballots.delay_ms))
        yield from ask(Admit(max(answer[0] for answer in known if answer)))

    def call(self, call: Call) -> Any:
        return drive(None, self._carry_out(call))

    async def acall(self, call: Call) -> Any:
        return await adrive(None, self._carry_out(call))

    def _carry_out(self, call: Call) -> Steps[Any]:
        try:
            if isinstance(call, calls.Acquire | calls.TakeOver):
                return (yield from self._ballots.gain(call))
            return (yield from self._ask(call))
        except votes.NoQuorum as failure:
            raise self._error_of(call, failure.answers) from failure

    def _ask(self, call: Call) -> Steps[Any]:
        # A release that is not patient is sent again by its caller.
        owed = isinstance(call, calls.Release) and call.patient
        letters = (
            [server.pack(page) for server, page in zip(self.servers, call.pages, strict=True)]
            if isinstance(call, ReadPages)
            else [server.pack(call) for server in self.servers]
        )
        asked = self._ballots.send(call, letters, _FOLDS[type(call)], owed=owed)
        try:
            answer = yield asked
        except votes.NoQuorum:
            if any(letter.again for letter in asked.letters):
                call.sending()  # a server may have carried it out, and its reply was lost
            raise
        again = [letter.again for letter in asked.letters]
        if owed and not answer and votes.in_doubt(asked.answers, again):
            call.sending()  # a server may have released it at the first sending
        if isinstance(call, calls.Renew):
            for (name, token, ms), left_ms in zip(call.leases, answer, strict=True):
                if left_ms == -2 and ms >= 0:  # with -1 it is still being acquired
                    self._give_back(name, token)
        if answer and isinstance(call, calls.Release | calls.ForceRelease):
            self.hub.poll_soon(call.name)  # for the waiters of this process
        return answer

    def _give_back(self, name: str, token: str) -> None:
        """Take back the votes that a lost lock may have left, which would delay others."""
        release = calls.Release(name, token)
        for server in self.servers:
            server.wire.post(Letter(server.release(release), ignore))

    def _error_of(self, call: Call, answers: Sequence[Any]) -> LockError:
        failed = [
            (server, answer)
            for server, answer in zip(self.servers, answers, strict=True)
            if isinstance(answer, Exception)
        ]
        told: list[LockUnavailable] = []
        for server, error in failed:
            found = server.error(call, error)
            if not isinstance(found, LockUnavailable):
                return found
            told.append(found)
        reasons = [f"{server}: {reason(error).rstrip('.')}" for server, error in failed]
        if isinstance(call, calls.Acquire | calls.TakeOver):
            reasons += [
                f"{server} {why}"
                for server, answer in zip(self.servers, answers, strict=True)
                if (why := why_silent(answer))
            ]
        unavailable = LockUnavailable(
            f"LOCKS[{self.alias!r}] has no majority of its {len(self.servers)} servers: "
            f"{'; '.join(reasons) or 'they know too little'}.",
            name=call.lock_name,
        )
        decisive = len(reasons) > len(self.servers) - votes.majority(len(self.servers))
        unavailable.refused = decisive and all(error.refused for error in told)
        unavailable.passing = not unavailable.refused or any(error.passing for error in told)
        # If one server released it, its majority may be gone.
        released = isinstance(call, calls.ForceRelease) and any(
            answer and not isinstance(answer, Exception) for answer in answers
        )
        unavailable.undone = (
            unavailable.refused and isinstance(call, calls.Breaking) and not released
        )
        return unavailable

    def event_of(self, entry_id: bytes, pairs: list[bytes]) -> Hashable:
        """Return the same value for entries of several servers that tell of one event."""
        return tuple(pairs)

    def _read_index(self, pattern: str) -> Steps[Index]:
        """Read the locks of all servers. Those without a majority turn out to have no holder."""
        index = Index(pattern)
        cursors = [Index("*") for _ in self.servers]
        ends: dict[str, float] = {}
        size = 10 * self.page_size
        while any(cursor.more for cursor in cursors):
            asked = [calls.ReadIndex(item.start, item.after, size) for item in cursors]
            pages = yield from ask(ReadPages(asked))
            for cursor, page in zip(cursors, pages, strict=True):
                if page is None:
                    cursor.more = False
                elif cursor.more:
                    cursor.add(read_page(page), size)
        for cursor in cursors:
            for name, end in cursor.latest():
                ends[name] = max(end, ends.get(name, 0.0))
        names = sorted(ends, key=lambda name: ends[name])
        index.keep(names, sorted(ends.values()))
        return index


def _force_released(answers: list[Any]) -> Any:
    agreed = votes.agree(answers)
    return None if agreed is False else agreed


_FOLDS: dict[type[Call], Callable[[list[Any]], Any]] = {
    calls.Release: votes.agree,
    calls.ForceRelease: _force_released,
    calls.Renew: votes.leases,
    calls.Inspect: votes.holders,
    calls.ReadHistory: votes.history,
    calls.ReadQueue: votes.queue,
    ReadPages: votes.everybody,
    ReadFences: votes.everybody,
    Admit: votes.greatest,
}
