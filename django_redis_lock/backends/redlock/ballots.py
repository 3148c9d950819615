"""How the servers vote on a lock, agree on its fence, and vote again after losing their data."""

from __future__ import annotations

import _thread
import contextlib
import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from django_redis_lock.backends.redlock import votes
from django_redis_lock.backends.redlock.rounds import Round
from django_redis_lock.backends.redlock.servers import Clocks, Newcomers, ReadFences, Server
from django_redis_lock.backends.redlock.wires import Letter
from django_redis_lock.backends.servers.base import numbers
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call, Pause
from django_redis_lock.protocol.drivers import Steps, drive
from django_redis_lock.transport.packing import Packed

SPLIT_TRIES = 4
"""How often to vote at most when callers come at the same time and none gets a majority."""
TEACH_AGAIN = 1.0
"""Seconds between attempts to tell a server the fence that it lost, while others suffice."""
OWED_FOR = 60.0
"""Seconds for which a release is sent again to a server that can't be reached."""


class Ballots:
    """The rounds of questions to the servers.

    ``timeout`` is the seconds to wait for answers, ``delay_ms`` for how long a restarted server
    does not vote, and ``interval`` the seconds between two looks of a waiter.
    """

    def __init__(
        self, servers: Sequence[Server], timeout: float, delay_ms: int, interval: float
    ) -> None:
        self.delay_ms = delay_ms
        self._servers = servers
        self._timeout = timeout
        self._interval = interval
        self._clocks = Clocks()
        self._newcomers = Newcomers()
        self._taught_at = -math.inf
        self._attempts = itertools.count(1)

    def gain(self, call: calls.Acquire | calls.TakeOver) -> Steps[Any]:
        """Vote on a lock, once more if servers that could not vote have learned the last fence.

        Raises ``NoQuorum``.
        """
        try:
            return (yield from self._vote_on(call))
        except votes.NoQuorum:
            if not (yield from self._teach()):
                raise
            return (yield from self._vote_on(call))
        finally:
            if self._newcomers:
                self._teach_aside()

    def _vote_on(self, call: calls.Acquire | calls.TakeOver) -> Steps[Any]:
        if isinstance(call, calls.Acquire):
            return self._acquire(call)
        return self._take_over(call)

    def send(
        self,
        call: Call,
        letters: Sequence[Packed],
        fold: Callable[[list[Any]], Any],
        *,
        owed: bool = False,
        heard: Callable[[int, Any], object] | None = None,
    ) -> Round:
        """Send a call to all servers, each its own of ``letters``.

        ``heard`` gets the index of a server and its answer, late answers included.
        """
        timeout = min(self._timeout, call.until - monotonic())
        asked = Round(len(self._servers), fold, timeout)
        call.sending()
        owed_until = monotonic() + OWED_FOR if owed else 0.0
        for index, packed in enumerate(letters):

            def reply(answer: Any, index: int = index) -> None:
                answer = numbers(answer)
                if heard is not None:
                    heard(index, answer)
                asked.take(index, answer)

            asked.letters.append(Letter(packed, reply, owed_until=owed_until))
        for server, letter in zip(self._servers, asked.letters, strict=True):
            server.wire.post(letter)
        return asked

    def _acquire(self, call: calls.Acquire) -> Steps[Any]:
        request = call.request
        for again in range(SPLIT_TRIES):
            attempt = next(self._attempts)
            least = self._clocks.next_fence()
            letters = [item.acquire(call, attempt, least, self.delay_ms) for item in self._servers]
            vote = self.send(call, letters, votes.count_votes, heard=self._newcomers.heard)
            outcome = yield vote
            took = monotonic() - call.sent_at
            self._clocks.heard(vote.answers, took)
            left_ms = votes.trusted(request.lease_ms)
            if outcome.won:
                entry = request.entry(call.channel) if call.channel else ""
                fence = yield from self._settle(call, request, vote.answers, entry)
                if fence:
                    return [fence, left_ms, outcome.now_ms]
            self._take_back(call, vote, attempt)
            if outcome.won or not outcome.split:
                break
            # The callers that came at the same time try again as well, so this one waits a while.
            yield Pause(random.uniform(0.5, 2.0 ** (again + 1)) * min(took, 0.02))
        return [0, _next_look_ms(outcome, self._interval), outcome.now_ms, 3]

    def _settle(self, call: Call, request: Any, answers: Sequence[Any], entry: str) -> Steps[Any]:
        """Make the fence known to a majority before anybody gets it; return it.

        Any later majority shares one of these servers, and so gives a greater fence. Returns 0 if
        the lock was lost meanwhile, or if that took so long that a server which lost its data may
        have learned the last fence from the others before they knew this one.
        """
        fences = [
            0 if isinstance(item, Exception) or not isinstance(item, list) else item[0]
            for item in answers
        ]
        fence = max(fences)
        behind = [server for server, own in zip(self._servers, fences, strict=True) if own < fence]
        known = len(fences) - len(behind)
        agreed = True
        if known < votes.majority(len(fences)):
            letters = [
                item.settle(request.name, request.token, fence, entry) for item in self._servers
            ]
            sent_at = call.sent_at
            asked = self.send(call, letters, votes.agree)
            call.sent_at = sent_at  # from which the lease counts
            agreed = yield asked
        else:
            for server in behind:
                packed = server.settle(request.name, request.token, fence, entry)
                server.wire.post(Letter(packed, ignore))
        most_ms = min(request.lease_ms, self.delay_ms or request.lease_ms)
        in_time = monotonic() < call.sent_at + votes.trusted(most_ms) / 1000
        return fence if agreed and in_time else 0

    # Servers that lost their data.

    def _teach(self) -> Steps[Any]:
        """Tell restarted servers the last fence so that they vote; return whether any was told.

        The others are asked for it after these servers said that their delay is over. By then every
        hold that they may have forgotten has ended, and the others know its fence.
        """
        starts = self._newcomers.take()
        if not starts:
            return False
        call = ReadFences(self.delay_ms)
        asked = self.send(call, [item.pack(call) for item in self._servers], votes.last_fence)
        try:
            fence = yield asked
        except votes.NoQuorum:
            return False
        told = Round(len(starts), votes.all_told, self._timeout)
        for place, (index, start) in enumerate(starts.items()):
            server = self._servers[index]
            server.wire.post(Letter(server.admit(fence, start), partial(told.take, place)))
        yield told
        return True

    def _teach_aside(self) -> None:
        """Do so in a thread, so that no caller waits; not too often, as it may fail again."""
        now = monotonic()
        if now - self._taught_at > TEACH_AGAIN:
            self._taught_at = now
            with contextlib.suppress(RuntimeError):  # the process is exiting
                _thread.start_new_thread(drive, (None, self._teach()))

    def _take_over(self, call: calls.TakeOver) -> Steps[Any]:
        request = call.request
        least = self._clocks.next_fence()
        letters = [server.take_over(call, least, self.delay_ms) for server in self._servers]
        vote = self.send(call, letters, votes.taken_over, heard=self._newcomers.heard)
        if (yield vote) and (fence := (yield from self._settle(call, request, vote.answers, ""))):
            # The lease counts from a little earlier, since the clocks may differ.
            call.sent_at -= (request.lease_ms - votes.trusted(request.lease_ms)) / 1000
            return fence
        self._take_back(call, vote)
        return None

    def _take_back(
        self, call: calls.Acquire | calls.TakeOver, vote: Round, attempt: int | str = ""
    ) -> None:
        """Take back the votes that a failed attempt was given, or may still be given."""
        request = call.request
        release = calls.Release(request.name, request.token)
        until = monotonic() + min(OWED_FOR, request.lease_ms / 1000)
        for server, letter, answer in zip(self._servers, vote.letters, vote.answers, strict=True):
            refused = attempt and isinstance(answer, list) and not answer[0]
            if not refused and not server.wire.recall(letter):
                packed = server.release(release, attempt)
                server.wire.post(Letter(packed, ignore, owed_until=until))


def _next_look_ms(outcome: votes.Votes, interval: float) -> int:
    """Return after how many milliseconds to ask again, at random to spread the callers."""
    if outcome.won or outcome.split:
        return round(random.uniform(5, 50))
    most = interval * 1000 * random.uniform(0.8, 1.2)
    return round(min(most, outcome.left_ms + random.uniform(0, 15)))


def ignore(answer: Any) -> None:
    """Take no notice of an answer."""
