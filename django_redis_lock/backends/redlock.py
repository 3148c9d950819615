"""Locks on a majority of independent Redis or Valkey servers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Hashable, Sequence
from time import monotonic
from typing import Any, ClassVar

from django.core import checks
from redis.exceptions import ResponseError

from django_redis_lock import quorum, steps
from django_redis_lock.backends.base import BaseLockBackend, Index
from django_redis_lock.backends.redis import numbers, reason
from django_redis_lock.backends.voters import (
    Admit,
    Clocks,
    ReadPages,
    Server,
    check_servers,
    silent,
)
from django_redis_lock.drivers import Steps
from django_redis_lock.exceptions import InvalidLockBackend, LockError, LockUnavailable
from django_redis_lock.fanout import Letter
from django_redis_lock.packing import Packed
from django_redis_lock.polling import POLL_OPTIONS, Polling, PollingHub, poll_options
from django_redis_lock.protocol import ask
from django_redis_lock.rounds import Rest, Round
from django_redis_lock.steps import Call
from django_redis_lock.timing import LONGEST

SERVER_TIMEOUT = 0.5
REJOIN_DELAY = 30.0
INTERVAL = 0.1
"""Seconds between two looks at a lock that another holds, unless POLL_INTERVAL says otherwise."""
SPLIT_TRIES = 4
"""How often a vote is held again at once where callers came together and nobody got a majority."""
OWED_FOR = 60.0
"""Seconds for which a server that can't be reached is tried with a release."""


class _Hub(PollingHub):
    """Where waiters sleep between their looks; they stand in line to be seen, not to be called."""

    def __init__(self, polling: Polling, channel: str) -> None:
        super().__init__(polling.interval, retries=polling.retries, channel=channel)
        self.glances = False

    @property
    def in_line(self) -> bool:
        """Nobody waits for a turn."""
        return False


Rounds = Generator[Round | Rest, Any, Any]


class RedlockLockBackend(BaseLockBackend):
    """Locks that a majority of independent servers agrees on, after the Redlock algorithm.

    LOCATION is a list of an odd number of servers, from three up, each an alias of CACHES that
    django-redis serves, or a URL. They must not replicate each other. All are asked at once, and
    what a majority says counts, so that a minority may be slow, paused or gone.

    OPTIONS["SERVER_TIMEOUT"] is for how many seconds an answer is waited for; longer than that no
    server delays anybody. For OPTIONS["REJOIN_DELAY"] seconds a server that was started anew, or
    lost its data, gives no lock to anybody, for it may have forgotten one that is still held; give
    the longest lease in use. By default it is TIMEOUT, or 30.

    Waiters poll, and are served in no order.
    """

    supports_queue: ClassVar[bool] = False
    hub: _Hub
    options: ClassVar[tuple[str, ...]] = ("SERVER_TIMEOUT", "REJOIN_DELAY", *POLL_OPTIONS)

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        """Take in LOCATION and OPTIONS; no connection is made. Raises ``InvalidLockBackend``."""
        self.server_timeout = self._seconds(options, "SERVER_TIMEOUT", SERVER_TIMEOUT, 0.001)
        delay = REJOIN_DELAY if self.timeout is None else self.timeout
        self.rejoin_delay = self._seconds(options, "REJOIN_DELAY", delay, 0.0)
        params = {"KEY_PREFIX": self.key_prefix}
        self.servers = [
            Server(self.alias, {**params, "LOCATION": item}, self.server_timeout)
            for item in check_servers(self.alias, location)
        ]
        polling = poll_options(self.alias, {"POLL_INTERVAL": INTERVAL, **options})
        self.hub = _Hub(polling, f"{self.key_prefix}-grant:quorum")
        self._clocks = Clocks()
        self._attempts = itertools.count(1)

    def _seconds(self, options: dict[str, Any], name: str, default: float, least: float) -> float:
        value = options.get(name, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not least <= value <= LONGEST
        ):
            raise InvalidLockBackend(
                f"LOCKS[{self.alias!r}]['OPTIONS'][{name!r}] is {value!r}; "
                f"give seconds from {least:g} up, such as {default:g}."
            )
        return float(value)

    def databases(self) -> set[Hashable]:
        """Return where its keys are, as far as the settings tell."""
        return {database for server in self.servers for database in server.databases()}

    def check(self) -> list[checks.CheckMessage]:
        """Return the system check messages about this entry."""
        return [message for server in self.servers for message in server.check()]

    def open(self) -> None:
        """Import and make what calls need; no connection is made. Raises ``InvalidLockBackend``."""
        for server in self.servers:
            server.open()

    def close(self) -> None:
        """Let go of connections and threads; the backend can be used again afterwards."""
        super().close()
        for server in self.servers:
            server.wire.close()
            server.close()

    def admit(self) -> None:
        """Let all servers vote from now on, without the delay for those that were started anew.

        For a new installation, or after a failure when it is known that nobody holds a lock: there
        is no other protection from a lock that a server forgot. Raises ``LockUnavailable``.
        """
        self.run(ask(Admit()))

    async def aadmit(self) -> None:
        """Let all servers vote from now on, as ``admit`` does."""
        await self.arun(ask(Admit()))

    # Carrying out calls.

    def call(self, call: Call) -> Any:
        """Carry out one call. Raises ``LockUnavailable``."""
        rounds = self._carry_out(call)
        while True:
            try:
                step = next(rounds)
            except StopIteration as stop:
                return stop.value
            step.wait()

    async def acall(self, call: Call) -> Any:
        """Carry out one call under asyncio. Raises ``LockUnavailable``."""
        rounds = self._carry_out(call)
        while True:
            try:
                step = next(rounds)
            except StopIteration as stop:
                return stop.value
            await step.await_()

    def _carry_out(self, call: Call) -> Rounds:
        try:
            if isinstance(call, steps.Acquire):
                return (yield from self._acquire(call))
            if isinstance(call, steps.TakeOver):
                return (yield from self._take_over(call))
            return (yield from self._ask(call))
        except quorum.NoQuorum as failure:
            raise self._error_of(call, failure.answers) from failure

    def _ask(self, call: Call) -> Rounds:
        fold = _FOLDS[type(call)]
        # What is not patient is sent again by whoever sends it.
        owed = isinstance(call, steps.Release) and call.patient
        letters = (
            [server.pack(page) for server, page in zip(self.servers, call.pages, strict=True)]
            if isinstance(call, ReadPages)
            else [server.pack(call) for server in self.servers]
        )
        asked = self._send(call, letters, lambda answers: fold(call, answers), owed=owed)
        yield asked
        answer = asked.outcome()
        if owed and not answer:
            again = [letter.again for letter in asked.letters]
            if quorum.in_doubt(asked.answers, again):
                call.sending()  # as it did for a server that may have said yes the first time
        if isinstance(call, steps.Renew):
            for (name, token, ms), left_ms in zip(call.leases, answer, strict=True):
                if left_ms == -2 and ms >= 0:  # to be endless is asked in the taking, which goes on
                    self._give_back(name, token)
        if answer and isinstance(call, steps.Release | steps.ForceRelease):
            self.hub.look_soon(call.name)  # here nobody has to wait for the next look
        return answer

    def _give_back(self, name: str, token: str) -> None:
        """Take back what votes a lost lock may have left, which would hold others up."""
        release = steps.Release(name, token)
        for server in self.servers:
            server.wire.post(Letter(server.release(release), _nothing))

    def _send(
        self,
        call: Call,
        letters: Sequence[Packed],
        fold: Callable[[list[Any]], Any],
        *,
        owed: bool = False,
    ) -> Round:
        """Send a call to all servers, as each is asked it."""
        asked = Round(len(self.servers), fold, self.server_timeout)
        call.sending()
        owed_until = monotonic() + OWED_FOR if owed else 0.0
        for index, packed in enumerate(letters):

            def reply(answer: Any, index: int = index) -> None:
                asked.take(index, numbers(answer))

            asked.letters.append(Letter(packed, reply, owed_until=owed_until))
        for server, letter in zip(self.servers, asked.letters, strict=True):
            server.wire.post(letter)
        return asked

    def _acquire(self, call: steps.Acquire) -> Rounds:
        request = call.request
        for again in range(SPLIT_TRIES):
            attempt = next(self._attempts)
            least, delay_ms = self._clocks.next_fence(), round(self.rejoin_delay * 1000)
            letters = [item.acquire(call, attempt, least, delay_ms) for item in self.servers]
            vote = self._send(call, letters, quorum.count_votes)
            yield vote
            votes = vote.outcome()
            took = monotonic() - call.sent_at
            self._clocks.heard(vote.answers, took)
            left_ms = quorum.trusted(request.lease_ms)
            if votes.won:
                entry = request.entry(call.channel) if call.channel else ""
                fence = yield from self._settle(call, request, vote.answers, entry)
                if monotonic() < call.sent_at + left_ms / 1000:
                    return [fence, left_ms, votes.now_ms]
            self._take_back(call, vote, attempt)
            if votes.won or not votes.split:
                break
            # Whoever came at the same time comes again as well; let it be at another time.
            yield Rest(random.uniform(0.5, 2.0 ** (again + 1)) * min(took, 0.02))
        return [0, _next_look_ms(votes, self.hub.interval), votes.now_ms, 3]

    def _settle(self, call: Call, request: Any, answers: Sequence[Any], entry: str) -> Rounds:
        """Agree on the fence: a majority must know the greatest before anybody gets it.

        Any later majority has one of those servers, and so gives a greater one.
        """
        fences = [
            0 if isinstance(item, Exception) or not isinstance(item, list) else item[0]
            for item in answers
        ]
        fence = max(fences)
        behind = [server for server, own in zip(self.servers, fences, strict=True) if own < fence]
        known = len(fences) - len(behind)
        if known < quorum.majority(len(fences)):
            letters = [
                item.settle(request.name, request.token, fence, entry) for item in self.servers
            ]
            sent_at = call.sent_at
            agreed = self._send(call, letters, quorum.arrived)
            call.sent_at = sent_at  # the lease counts from then
            yield agreed
            agreed.outcome()
        else:
            for server in behind:
                packed = server.settle(request.name, request.token, fence, entry)
                server.wire.post(Letter(packed, _nothing))
        return fence

    def _take_back(self, call: steps.Acquire, vote: Round, attempt: int) -> None:
        """Take back each vote that was, or may yet be, given to an attempt that failed."""
        request = call.request
        release = steps.Release(request.name, request.token)
        until = monotonic() + min(OWED_FOR, request.lease_ms / 1000)
        for server, letter, answer in zip(self.servers, vote.letters, vote.answers, strict=True):
            refused = isinstance(answer, list) and not answer[0]
            if not refused and not server.wire.recall(letter):
                packed = server.release(release, attempt)
                server.wire.post(Letter(packed, _nothing, owed_until=until))

    def _take_over(self, call: steps.TakeOver) -> Rounds:
        request = call.request
        least, delay_ms = self._clocks.next_fence(), round(self.rejoin_delay * 1000)
        letters = [server.take_over(call, least, delay_ms) for server in self.servers]
        vote = self._send(call, letters, quorum.count_passed_on)
        yield vote
        if vote.outcome():
            fence = yield from self._settle(call, request, vote.answers, "")
            # The lease is counted from a little earlier, for clocks that run differently.
            call.sent_at -= (request.lease_ms - quorum.trusted(request.lease_ms)) / 1000
            return fence
        release = steps.Release(request.name, request.token)
        for server, letter in zip(self.servers, vote.letters, strict=True):
            if not server.wire.recall(letter):
                until = monotonic() + min(OWED_FOR, request.lease_ms / 1000)
                server.wire.post(Letter(server.release(release), _nothing, owed_until=until))
        return None

    def _error_of(self, call: Call, answers: Sequence[Any]) -> LockError:
        """Return the error that says why there is no majority."""
        failed = [
            (server, answer)
            for server, answer in zip(self.servers, answers, strict=True)
            if isinstance(answer, Exception)
        ]
        reasons = [f"{server}: {reason(error)}" for server, error in failed]
        if isinstance(call, steps.Acquire | steps.TakeOver):
            reasons += [
                f"{server} was started anew and does not vote yet (REJOIN_DELAY)"
                for server, answer in zip(self.servers, answers, strict=True)
                if silent(answer)
            ]
        for server, error in failed:
            told = server.error(call, error)
            if not isinstance(told, LockUnavailable):
                return told
        name = getattr(call, "name", "") or getattr(getattr(call, "request", None), "name", "")
        unavailable = LockUnavailable(
            f"LOCKS[{self.alias!r}] has no majority of its {len(self.servers)} servers: "
            f"{'; '.join(reasons) or 'they know too little'}.",
            name=name,
        )
        unavailable.refused = bool(reasons) and all(
            isinstance(error, ResponseError) for _, error in failed
        )
        return unavailable

    # For operators.

    def _turn_page(self, index: Index) -> Steps[None]:
        """Read the names that any server holds; those without a majority have no holder later."""
        cursors = [Index("*") for _ in self.servers]
        ends: dict[bytes, float] = {}
        size = 10 * self.page_size
        while any(cursor.more for cursor in cursors):
            asked = [steps.ReadIndex(item.start, item.offset, size) for item in cursors]
            pages = yield from ask(ReadPages(asked))
            for cursor, page in zip(cursors, pages, strict=True):
                if page is None:
                    cursor.more = False
                elif cursor.more:
                    cursor.add(page, size)
                    for name, end in zip(page[0::2], page[1::2], strict=True):
                        ends[name] = max(float(end), ends.get(name, 0.0))
        names = sorted(ends, key=lambda name: ends[name])
        index.add([part for name in names for part in (name, str(ends[name]).encode())], -1)


def _next_look_ms(votes: quorum.Votes, interval: float) -> int:
    """Return after how many milliseconds to ask again, never all callers at the same time."""
    if votes.won or votes.split:
        return round(random.uniform(5, 50))
    most = interval * 1000 * random.uniform(0.8, 1.2)
    return round(min(most, votes.left_ms + random.uniform(0, 15)))


def _nothing(answer: Any) -> None:
    """Want to hear nothing."""


def _as_number(answer: Any) -> Any:
    return answer if not isinstance(answer, bool) else int(answer)


_FOLDS: dict[type[Call], Callable[[Any, list[Any]], Any]] = {
    steps.Release: lambda _, answers: _as_number(quorum.agree(answers)),
    steps.ForceRelease: lambda _, answers: {True: 1, False: None}.get(
        agreed := quorum.agree(answers), agreed
    ),
    steps.Renew: lambda _, answers: quorum.leases(answers),
    steps.Inspect: lambda _, answers: quorum.holders(answers),
    steps.NoteLosses: lambda _, answers: quorum.arrived(answers),
    steps.ReadHistory: lambda call, answers: quorum.history(answers, call.limit),
    steps.ReadLine: lambda _, answers: quorum.line(answers),
    ReadPages: lambda _, answers: quorum.everybody(answers),
    Admit: lambda _, answers: quorum.arrived(answers),
}
