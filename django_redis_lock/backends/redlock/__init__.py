"""Locks on a majority of independent Redis or Valkey servers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from time import monotonic
from typing import Any, ClassVar

from django.core import checks

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.errors import lock_error, reason
from django_redis_lock.backends.redlock import servers, votes
from django_redis_lock.backends.settings import read_poll_interval, read_seconds
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call, Pause, Steps, ask
from django_redis_lock.protocol.waiting import PollingRegistry, WaiterRegistry
from django_redis_lock.transport.packing import Packed

SPLIT_TRIES = 4  # votes at most when callers come at the same time and none gets a majority
CLOCK_MARGIN = 5000  # microseconds for a call on its way, and what the clocks differ by meanwhile
OWED_FOR = 60.0  # seconds for which a release is sent again to a server that can't be reached


class RedlockLockBackend(BaseLockBackend):
    """Locks that a majority of independent servers agrees on, after the Redlock algorithm.

    LOCATION is a list of an odd number of servers, at least three. Each is an alias of CACHES that
    django-redis or Django's RedisCache serves, or a URL. They must not replicate each other. All
    are asked at once, and the answer of a majority counts, so a minority may be slow or gone.

    OPTIONS["SERVER_TIMEOUT"] is how many seconds to wait for an answer; no server delays a caller
    for longer. For OPTIONS["REJOIN_DELAY"] seconds a server that was restarted, or lost its data,
    grants no locks, since it may have lost one that is still held. Set it to the longest lease. It
    defaults to TIMEOUT, or to 30 for locks that never expire. Waiters poll, and are served in no
    order.
    """

    can_share: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ("SERVER_TIMEOUT", "REJOIN_DELAY", "POLL_INTERVAL")

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        self.server_timeout = read_seconds(options, "SERVER_TIMEOUT", 0.5, self.alias)
        delay = 30.0 if self.timeout is None else self.timeout
        self.rejoin_delay = read_seconds(options, "REJOIN_DELAY", delay, self.alias, least=0.0)
        self.servers = [
            servers.Server(self.alias, self.key_prefix, item, self.server_timeout)
            for item in servers.check_servers(self.alias, location)
        ]
        self.indexes = len(self.servers)  # locks without a majority turn out to have no holder
        self.interval = read_poll_interval(options, self.alias, 0.1)
        self._delay_ms = round(self.rejoin_delay * 1000)
        self._ahead: dict[int, float] = {}  # by server: its clock less the monotonic one (µs)
        self._starts: dict[int, int] = {}  # by server: the start of one that waits for the fence
        self._attempts = itertools.count(1)

    def make_registry(self, scheme: str) -> WaiterRegistry:
        # Waiters are in the queue to be counted, not to be served.
        return PollingRegistry(self.interval, "quorum")

    def name_maker(self) -> Callable[[str], str] | None:
        return self.servers[0].name_maker()

    def databases(self) -> set[Hashable]:
        return {found for server in self.servers for found in server.databases()}

    def check(self) -> list[checks.CheckMessage]:
        return [message for server in self.servers for message in server.check()]

    def open(self) -> None:
        for server in self.servers:
            server.open()

    def close(self) -> None:
        super().close()
        for server in self.servers:
            server.close()

    def admit(self) -> None:
        """Let all servers vote from now on, without the delay for restarted ones.

        Use it for a new installation, or after a failure if you know that no lock is held: only the
        delay protects from granting a lock that a server has lost. Fences continue from the
        greatest one that any server knows. Raises ``LockUnavailable``.
        """
        self.run(self._admit())

    async def aadmit(self) -> None:
        """Do as ``admit``."""
        await self.arun(self._admit())

    def _admit(self) -> Steps[None]:
        known = yield from ask(servers.ReadFences(self._delay_ms))
        yield from ask(servers.Admit(max(answer[0] for answer in known if answer)))

    def call(self, call: Call) -> Any:
        return servers.Answers().run(self._carry_out(call))

    async def acall(self, call: Call) -> Any:
        return await servers.Answers().arun(self._carry_out(call))

    def _carry_out(self, call: Call) -> Steps[Any]:
        try:
            steps = self._gain(call) if isinstance(call, servers.Vote) else self._ask(call)
            return (yield from steps)
        except votes.NoQuorum as failure:
            raise self._error_of(call, failure.answers) from failure

    # Calls to all servers.

    def _send(self, call: Call, packed: list[Packed], count: votes.Count) -> servers.QuorumCall:
        """Send a call to all servers, each its own of ``packed``."""
        # A release that is not patient is sent again by its caller.
        owed = isinstance(call, calls.Release) and call.patient
        note = self._note if isinstance(call, servers.Vote) else servers.ignore
        timeout = min(self.server_timeout, call.until - monotonic())
        asked = servers.QuorumCall(len(packed), count, timeout, note)
        until = monotonic() + OWED_FOR if owed else asked.until
        for index, (server, item) in enumerate(zip(self.servers, packed, strict=True)):
            item.sending = partial(asked.sendings.append, index)
            server.executor.submit(servers.Job(item, until, partial(asked.receive, index), owed))
        return asked

    def _ask(self, call: Call) -> Steps[Any]:
        packed = [
            server.pack(call.of(number) if isinstance(call, calls.ReadPages) else call)
            for number, server in enumerate(self.servers)
        ]
        call.sending()
        asked = self._send(call, packed, _COUNTS[type(call)])
        answer: Any = None
        try:
            answer = yield asked
        finally:
            if not answer and len(asked.sendings) > len({*asked.sendings}):
                call.sending()  # a server may have carried it out, and its reply was lost
        if isinstance(call, calls.Renew):
            for (name, token, ms), left_ms in zip(call.leases, answer, strict=True):
                if left_ms == -2 and ms >= 0:  # with -1 it is still being acquired
                    release = calls.Release(name, token)
                    for server in self.servers:  # votes may be left, which would delay others
                        self._post(server, server.release(release))
        if answer and isinstance(call, calls.Release | calls.ForceRelease):
            self.freed(call.name)  # for the waiters of this process
        return answer

    def _post(self, server: servers.Server, packed: Packed, owed_for: float = 0.0) -> None:
        until = monotonic() + (owed_for or self.server_timeout)
        server.executor.submit(servers.Job(packed, until, owed=owed_for > 0))

    # Votes on a lock.

    def _gain(self, call: servers.Vote) -> Steps[Any]:
        """Vote on a lock, once more if servers that could not vote have learned the last fence."""
        try:
            answer = yield from self._vote(call)
        except votes.NoQuorum:
            if not (yield from self._teach()):
                raise
            answer = yield from self._vote(call)
        if self._starts:
            yield from self._teach()  # so that another server may fail
        return answer

    def _vote(self, call: servers.Vote) -> Steps[list[int] | None]:
        acquires = isinstance(call, calls.Acquire)
        count = votes.count_votes if acquires else votes.taken_over
        for again in range(SPLIT_TRIES):
            attempt = next(self._attempts)
            # All servers give a fence that no clock has reached, so they need not agree on one.
            ahead = [*self._ahead.values()]  # as other threads add to it
            least = round(max(ahead) + monotonic() * 1_000_000 + CLOCK_MARGIN) if ahead else 0
            packed = [item.acquire(call, attempt, least, self._delay_ms) for item in self.servers]
            call.sending()
            asked = self._send(call, packed, count)
            outcome = yield asked
            took = monotonic() - call.sent_at
            if outcome.won:
                fence = yield from self._agree_on_fence(call, asked.answers)
                if fence:
                    return [fence, votes.trusted(call.request.lease_ms), outcome.now_ms]
            # Take back the votes that it was given, or may still be given.
            release = calls.Release(call.request.name, call.request.token)
            owed_for = min(OWED_FOR, call.request.lease_ms / 1000)
            for server, answer in zip(self.servers, asked.answers, strict=True):
                if not isinstance(answer, list) or answer[0]:
                    self._post(server, server.release(release, attempt), owed_for)
            if not outcome.split:
                break
            # The callers that came at the same time try again as well, so this one waits.
            yield Pause(random.uniform(0.5, 2.0 ** (again + 1)) * min(took, 0.02))
        if acquires:
            return [0, _next_poll_ms(outcome, self.interval), outcome.now_ms, 3]
        return None

    def _agree_on_fence(self, call: servers.Vote, answers: Sequence[Any]) -> Steps[int]:
        """Make the fence known to a majority, so that every later one is greater; return it.

        Returns 0 if the lock was lost meanwhile, or if that took so long that a server which lost
        its data may have learned the last fence from the others before they knew this one.
        """
        fences = [item[0] if isinstance(item, list) else 0 for item in answers]
        fence = max(fences)
        packed = [server.confirm(call, fence) for server in self.servers]
        agreed = True
        if fences.count(fence) < votes.majority(len(fences)):
            agreed = yield self._send(call, packed, votes.agree)
        else:
            for server, item, own in zip(self.servers, packed, fences, strict=True):
                if own < fence:
                    self._post(server, item)
        lease_ms = call.request.lease_ms
        most_ms = min(lease_ms, self._delay_ms or lease_ms)
        in_time = monotonic() < call.sent_at + votes.trusted(most_ms) / 1000
        return fence if agreed and in_time else 0

    # Servers that lost their data.

    def _note(self, index: int, answer: Any) -> None:
        """Note the clock of a server, whether it was restarted and may get the last fence."""
        if isinstance(answer, list):
            self._ahead[index] = answer[2] - monotonic() * 1_000_000
            start, left_ms = votes.start_of(answer)
            if start and not left_ms:
                self._starts[index] = start
            else:
                self._starts.pop(index, None)

    def _teach(self) -> Steps[bool]:
        """Send restarted servers, whose delay is over, the last fence; return whether any was."""
        starts, self._starts = self._starts, {}
        if not starts:
            return False
        call = servers.ReadFences(self._delay_ms)
        packed = [server.pack(call) for server in self.servers]
        try:
            fence = yield self._send(call, packed, votes.last_fence)
        except votes.NoQuorum:
            return False
        for index, start in starts.items():  # each sends its next vote after that
            server = self.servers[index]
            self._post(server, server.pack(servers.Admit(fence, start)))
        return True

    # What operators see.

    def _error_of(self, call: Call, answers: Sequence[Any]) -> LockError:
        errors: list[LockUnavailable] = []
        reasons: list[str] = []
        for server, answer in zip(self.servers, answers, strict=True):
            if isinstance(answer, Exception):
                found = lock_error(call, answer, using=self.alias, key_prefix=self.key_prefix)
                if not isinstance(found, LockUnavailable):
                    return found
                errors.append(found)
                reasons.append(f"{server}: {reason(answer).rstrip('.')}")
            elif isinstance(call, servers.Vote) and (why := votes.why_silent(answer)):
                reasons.append(f"{server} {why}")
        size, why = len(self.servers), "; ".join(reasons) or "they lack data"
        text = f"LOCKS[{self.alias!r}] has no majority of its {size} servers: {why}."
        unavailable = LockUnavailable(text, name=call.lock_name)
        decisive = len(reasons) > size - votes.majority(size)
        unavailable.refused = decisive and all(error.refused for error in errors)
        unavailable.passing = not unavailable.refused or any(error.passing for error in errors)
        # If one server released it, its majority may be gone.
        released = isinstance(call, calls.ForceRelease) and any(votes.received(answers))
        is_forced = isinstance(call, calls.FORCED_RELEASE)
        unavailable.not_applied = unavailable.refused and is_forced and not released
        return unavailable

    def event_of(self, entry_id: bytes, pairs: list[bytes]) -> Hashable:
        return tuple(pairs)


def _next_poll_ms(outcome: votes.Votes, interval: float) -> int:
    """Return after how many milliseconds to ask again, at random to spread the callers."""
    if outcome.won or outcome.split:
        return round(random.uniform(5, 50))
    most = interval * 1000 * random.uniform(0.8, 1.2)
    return round(min(most, outcome.left_ms + random.uniform(0, 15)))


_COUNTS: dict[type[Call], votes.Count] = {
    calls.Release: votes.agree,
    calls.ForceRelease: lambda answers: votes.agree(answers) or None,  # as the script does
    calls.Renew: votes.leases,
    calls.Inspect: votes.holders,
    calls.ReadHistory: votes.history,
    calls.ReadQueue: votes.queue,
    calls.ReadPages: votes.everybody,
    servers.ReadFences: votes.everybody,
    servers.Admit: votes.agree,
}
