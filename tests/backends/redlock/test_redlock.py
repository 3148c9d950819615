"""The quorum: its settings, servers that fail while it is asked, and fences across majorities."""

from __future__ import annotations

import asyncio
import contextlib
import dis
import itertools
import math
import os
import random
import re
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pytest

from django_redis_lock import Lock, lock, locks
from django_redis_lock.backends.redlock import RedlockLockBackend, rounds, votes, wires
from django_redis_lock.backends.redlock.ballots import Ballots
from django_redis_lock.backends.redlock.rounds import PENDING
from django_redis_lock.backends.redlock.servers import Clocks
from django_redis_lock.backends.redlock.wires import Letter, Wire
from django_redis_lock.exceptions import (
    InvalidLockBackend,
    LockLost,
    LockUnavailable,
)
from django_redis_lock.operators.breaking import Result, release_shown
from django_redis_lock.protocol import calls, waiting
from django_redis_lock.transport import scripts
from tests.tools import Background, eventually, findings, owes, waiters
from tests.tools.proxy import Proxy
from tests.tools.quorums import REDLOCK, Quorum, in_use, started

# A process with threads forks here on purpose, as web servers do.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

URLS = [f"redis://locks-{number}.internal:6379/0" for number in range(1, 6)]


@pytest.fixture(scope="module")
def session_quorum() -> Iterator[Quorum]:
    """Three servers for all tests of this module."""
    with started(3) as servers:
        yield servers


@pytest.fixture
def servers(session_quorum: Quorum) -> Iterator[Quorum]:
    """The servers, empty, as an entry of LOCKS."""
    with in_use(session_quorum):
        yield session_quorum


def backend() -> RedlockLockBackend:
    """Return the backend under test."""
    found = locks["redlock"]
    assert isinstance(found, RedlockLockBackend)
    return found


# Settings.


@pytest.mark.parametrize(
    ("location", "words"),
    [
        (None, "a list of at least three"),
        (URLS[0], "a list of at least three"),
        (URLS[:1], "names 1 server; name 3, 5 or"),
        (URLS[:2], "names 2 servers; name 3"),
        (URLS[:4], "names 4 servers; .* another odd number"),
        ([URLS[0], URLS[1], URLS[0]], "one server twice"),
        ([URLS[0], URLS[1], URLS[0].replace("/0", "/1")], "one server twice.*6379/0.*6379/1"),
        (["redis://localhost", "redis://127.0.0.1:6379/3", URLS[0]], "one server twice"),
        (["unix:///a.sock", "unix:///b.sock", "unix:///a.sock?db=1"], "one server twice"),
        (["locks", "locks", URLS[0]], "one server twice"),
        ([*URLS[:2], 7], "has 7"),
        ([*URLS[:2], "http://a"], "http://"),
    ],
)
def test_servers_that_are_no_quorum(settings: Any, location: Any, words: str) -> None:
    """An even number, too few, or a repeated server fails the checks and the first use."""
    settings.LOCKS = {"default": {"BACKEND": REDLOCK, "LOCATION": location}}
    assert [item.id for item in findings()] == ["django_redis_lock.E002"]
    with pytest.raises(InvalidLockBackend, match=words):
        lock("a").acquire()


def test_passwords_are_not_shown(settings: Any) -> None:
    """The error about a wrong LOCATION shows no password."""
    urls = ["redis://:secret@a/0", "redis://:secret@a/1", "redis://b"]
    settings.LOCKS = {"default": {"BACKEND": REDLOCK, "LOCATION": urls}}
    with pytest.raises(InvalidLockBackend) as caught:
        lock("a").acquire()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("size", [3, 5])
def test_good_settings(settings: Any, size: int) -> None:
    """Three or five servers are valid, and REJOIN_DELAY defaults to TIMEOUT."""
    entry = {"BACKEND": REDLOCK, "LOCATION": URLS[:size], "TIMEOUT": 7}
    settings.LOCKS = {
        "default": entry,
        "endless": {**entry, "TIMEOUT": None},
        "set": {**entry, "OPTIONS": {"SERVER_TIMEOUT": 0.1, "REJOIN_DELAY": 0}},
    }
    assert not findings()
    assert [locks[alias].rejoin_delay for alias in locks] == [7, 30, 0]
    assert [locks[alias].server_timeout for alias in locks] == [0.5, 0.5, 0.1]


@pytest.mark.parametrize(
    "options",
    [
        {"SERVER_TIMEOUT": 0},
        {"SERVER_TIMEOUT": "1"},
        {"SERVER_TIMEOUT": 10**400},
        {"SERVER_TIMEOUT": True},
        {"REJOIN_DELAY": -1},
        {"REJOIN_DELAY": math.inf},
        {"WAIT": "queue"},
    ],
)
def test_senseless_options(settings: Any, options: dict[str, Any]) -> None:
    """The error names an invalid option."""
    (name,) = options
    settings.LOCKS = {"default": {"BACKEND": REDLOCK, "LOCATION": URLS[:3], "OPTIONS": options}}
    with pytest.raises(InvalidLockBackend, match=name):
        lock("a").acquire()


def test_aliases_of_caches(settings: Any) -> None:
    """A server can be an alias; a check finds one that CACHES lacks."""
    redis = {"BACKEND": "django_redis.cache.RedisCache"}
    settings.CACHES = {
        **settings.CACHES,
        "one": {**redis, "LOCATION": URLS[0]},
        "two": {**redis, "LOCATION": URLS[1]},
    }
    settings.LOCKS = {"default": {"BACKEND": REDLOCK, "LOCATION": ["one", "two", "three"]}}
    assert [item.id for item in findings()] == ["django_redis_lock.E004"]
    settings.CACHES = {**settings.CACHES, "same": {**redis, "LOCATION": URLS[0]}}
    settings.LOCKS = {"default": {"BACKEND": REDLOCK, "LOCATION": ["one", "two", "same"]}}
    with pytest.raises(InvalidLockBackend, match="one server twice: one and same"):
        lock("a").acquire()


# The outcome of answers.


def test_votes_are_counted_as_soon_as_they_decide() -> None:
    """A vote does not wait for a server that can't change the outcome."""
    yes, no, silent = [7, 100, 0, 0, 1], [0, 50, 0, 0, 2], [0, 50, 0, 2, 0]
    down = OSError()
    count = votes.count_votes
    assert count([yes, yes, PENDING]).won
    assert count([yes, no, PENDING]) is PENDING
    assert not count([no, no, PENDING]).won
    assert count([yes, down, PENDING]) is PENDING
    assert not count([yes, no, down]).won
    for answers in ([yes, down, down], [yes, silent, silent], [no, down, silent]):
        with pytest.raises(votes.NoQuorum):
            count(answers)


def test_split_votes_are_known_from_held_locks() -> None:
    """The lock is held if one token may have a majority; otherwise the votes are split."""
    yes, one, two = [7, 100, 0, 0, 1], [0, 50, 0, 0, 2], [0, 70, 0, 0, 3]
    assert votes.count_votes([yes, one, two]).split
    assert not votes.count_votes([yes, one, one]).split
    assert not votes.count_votes([yes, one, OSError()]).split  # the third may be for one too
    assert votes.count_votes([two, one, one]).left_ms == 50
    assert votes.count_votes([two, two, [0, -1, 0, 0, 3]]).left_ms == 70
    assert votes.count_votes([two, [0, -1, 0, 0, 3], [0, -1, 0, 0, 3]]).left_ms == math.inf


def test_a_lease_is_what_a_majority_keeps() -> None:
    """The lease is what a majority keeps at least, less the drift."""
    assert votes.leases([[10_000], [5_000], [1_000]]) == [votes.trusted(5_000)]
    assert votes.trusted(5_000) == 4_948
    assert votes.leases([[10_000], [5_000], PENDING]) == [votes.trusted(5_000)]
    assert votes.leases([[-1], [-1], [-2]]) == [-1]
    assert votes.leases([[-2], [-2], PENDING]) == [-2]
    assert votes.leases([[9], [-2], PENDING]) is PENDING
    assert votes.leases([[9, -1], [-2, -1], OSError()]) == [None, -1]
    with pytest.raises(votes.NoQuorum):
        votes.leases([[9], [-2], OSError()])


# Servers that fail.


@pytest.mark.parametrize("how", ["down", "paused"])
def test_a_minority_that_fails_is_not_noticed(name: str, how: str) -> None:
    """With one server of three down or paused, locks work without waiting for it."""
    with started(3) as servers, in_use(servers, SERVER_TIMEOUT=20):
        before = lock(name + "before", using="redlock")
        before.acquire()
        if how == "down":
            servers.servers[1].kill()
        else:
            servers.servers[1].pause()
        began = time.monotonic()
        before.ensure_held()
        for _ in range(5):
            with lock(name, timeout=60, using="redlock") as held:
                held.ensure_held()
                assert lock(name, blocking=False, using="redlock").acquire() is False
                assert backend().holder(name).fence == held.fence
        asyncio.run(_hold_under_asyncio(name))
        before.release()
        # Waiting for the server would be twenty seconds for each of these calls.
        assert time.monotonic() - began < 20


async def _hold_under_asyncio(name: str) -> None:
    async with lock(name, timeout=60, using="redlock") as held:
        await held.aensure_held()
        assert not await lock(name, blocking=False, using="redlock").aacquire()


def test_what_a_slow_server_grants_late_is_taken_back(servers: Quorum, name: str) -> None:
    """A server that answers after the vote was lost keeps nothing."""
    with in_use(servers, SERVER_TIMEOUT=0.2):
        for client in servers.clients[:2]:
            client.set(f"lock:{name}", "other")
        servers.servers[2].pause()
        assert lock(name, blocking=False, using="redlock").acquire() is False
        servers.servers[2].resume()
        wire = backend().servers[2].wire
        eventually(lambda: not wire.busy)
        assert servers.values(name) == ["other", "other", None]
        script = servers.clients[2].info("commandstats")
        assert sum(script[key]["calls"] for key in script if key.startswith("cmdstat_eval")) >= 2


def test_a_partial_vote_is_taken_back(servers: Quorum, name: str) -> None:
    """A caller with one vote of three gives it back at once, so it does not block others."""
    for client in servers.clients[:2]:
        client.set(f"lock:{name}", "other", px=60_000)
    assert lock(name, blocking=False, using="redlock").acquire() is False
    eventually(lambda: servers.values(name) == ["other", "other", None])
    assert backend().holder(name).fence is None  # the other program has the majority
    for client in servers.clients[:2]:
        client.delete(f"lock:{name}")
    assert lock(name, blocking=False, using="redlock").acquire() is True


def test_taking_back_does_not_hit_a_later_attempt(servers: Quorum, name: str) -> None:
    """A withdrawal that arrives late does not remove the vote for the next attempt."""
    held = lock(name, using="redlock")
    held.acquire()
    late = [item.split(" ", 2) for item in servers.values(name) if item]
    call = calls.Release(name, late[0][0])
    (attempt,) = {int(item[2].rpartition(":")[2].rstrip("}")) for item in late}
    for other in (attempt - 1, attempt + 1):
        for server in backend().servers:
            _ask(server, server.release(call, other))
    held.ensure_held()
    for server in backend().servers:
        _ask(server, server.release(call, attempt))
    assert servers.values(name) == [None] * 3


def _ask(server: Any, packed: Any) -> Any:
    answered, answers = threading.Event(), []

    def reply(answer: Any) -> None:
        answers.append(answer)
        answered.set()

    server.wire.post(Letter(packed, reply))
    assert answered.wait(20)
    return answers[0]


def test_no_majority_is_unavailable_and_not_a_refusal(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two of three down the error names them; it never looks like a held lock."""
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())
    with started(3) as servers, in_use(servers):
        servers.servers[0].kill()
        servers.servers[1].kill()
        with pytest.raises(LockUnavailable, match="no majority of its 3 servers") as error:
            lock(name, using="redlock").acquire(blocking=False)
        assert error.value.name == name
        for url in servers.urls[:2]:
            assert url in str(error.value)
        assert servers.urls[2] not in str(error.value)
        assert not re.search(r"[.][.;]", str(error.value))
        for ask in (backend().holder, backend().waiting, backend().history):
            with pytest.raises(LockUnavailable):
                ask(name)
        # The vote that the third gave is withdrawn, so that it blocks nobody later.
        eventually(lambda: servers.clients[2].get(f"lock:{name}") is None)


def test_a_release_reaches_a_server_that_was_away(name: str) -> None:
    """A server that was paused during a release gets it when it resumes."""
    with started(3) as servers, in_use(servers):
        held = lock(name, timeout=600, using="redlock")
        held.acquire()
        eventually(lambda: all(servers.values(name)))
        servers.servers[0].pause()
        held.release()
        assert lock(name, using="redlock").locked() is False
        servers.servers[0].resume()
        eventually(lambda: servers.values(name) == [None] * 3)


def test_a_release_reaches_a_server_that_was_down(name: str) -> None:
    """A server that kept its data over a crash gets the release that it missed."""
    with started(3, persist=True) as servers, in_use(servers):
        held = lock(name, timeout=600, using="redlock")
        held.acquire()
        eventually(lambda: all(servers.values(name)))
        servers.servers[0].kill()
        held.release()
        servers.servers[0].restart()
        eventually(lambda: servers.values(name) == [None] * 3)


class Proxied(Quorum):
    """Servers with a proxy in front of each."""

    def __init__(self, servers: Quorum, proxies: list[Proxy]) -> None:
        super().__init__(servers.servers)
        self.proxies = proxies

    @property
    def urls(self) -> list[str]:
        """Where the proxies are."""
        return [f"redis://127.0.0.1:{proxy.port}/0" for proxy in self.proxies]


def test_renewal_ends_at_max_hold(servers: Quorum, name: str) -> None:
    """The majority releases the lock then, and its holder is told."""
    held = Lock(backend, name, timeout=0.3, auto_renew=True, max_hold=0.6)
    held.acquire()
    first = held._lease.deadline
    eventually(lambda: held._lease is not None and held._lease.lost)
    assert first + 0.1 < held._lease.deadline < first + 0.55
    with lock(name, using="redlock", timeout=30, blocking_timeout=10):
        eventually(lambda: not owes("redlock"))


@pytest.fixture
def proxied(session_quorum: Quorum) -> Iterator[Proxied]:
    """The servers, empty, behind proxies, as an entry of LOCKS."""
    with ExitStack() as stack:
        ports = [server.port for server in session_quorum.servers]
        proxies = [stack.enter_context(Proxy(port)) for port in ports]
        servers = Proxied(session_quorum, proxies)
        stack.enter_context(in_use(servers, SERVER_TIMEOUT=20))
        yield servers


def test_a_release_that_is_told_again_is_no_loss(
    proxied: Proxied, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers whose replies are lost are asked again, and then do not know the lock."""
    monkeypatch.setattr("django_redis_lock.backends.redlock.wires.Wire.OWED_AGAIN", 0.02)
    held = lock(name, timeout=600, using="redlock")
    with held:
        eventually(lambda: all(proxied.values(name)))
    eventually(lambda: proxied.values(name) == [None] * 3)  # all know the script now
    held.acquire()
    eventually(lambda: all(proxied.values(name)))
    for server in proxied.servers[1:]:
        server.pause()
    for proxy in proxied.proxies[:2]:
        proxy.lose_replies(1, scripts.QUORUM_RELEASE.sha.encode())
    releasing = Background(held.release)
    wire = backend().servers[0].wire
    eventually(lambda: not proxied.proxies[0].losing and _settled(wire))
    proxied.servers[1].resume()
    assert releasing.outcome() is None
    proxied.resume()
    eventually(lambda: proxied.values(name) == [None] * 3)


@pytest.mark.parametrize(
    ("answers", "again", "in_doubt"),
    [
        ([0, 0, 0], [False, False, False], False),
        ([0, 0, 0], [True, False, False], False),
        ([0, 0, 0], [True, True, False], True),
        ([0, 0, 1], [True, False, False], True),
        ([0, 0, 1], [False, False, True], False),
        ([0, PENDING, 0], [True, False, False], True),
        ([0, OSError(), 0], [False, False, False], False),
        ([0, 0, 0, PENDING, 0], [True, False, False, False, False], False),
        ([0, 0, 0, PENDING, 1], [True, False, False, False, False], True),
    ],
)
def test_a_loss_is_what_a_majority_tells_at_the_first_asking(
    answers: list[Any], again: list[bool], in_doubt: bool
) -> None:
    """A server that was asked again proves nothing: the first sending may have worked."""
    assert votes.in_doubt(answers, again) is in_doubt


def _settled(wire: Wire) -> bool:
    with wire._mutex:
        return not wire.busy and not wire._owed


def test_a_vote_that_came_too_late_is_no_lock(servers: Quorum, name: str) -> None:
    """A majority that answers after the lease has ended gives no lock, and keeps none."""
    for server in servers.servers:
        server.pause()
    late = lock(name, timeout=0.2, using="redlock")
    trying = Background(lambda: late.acquire(blocking=False))
    wires = [server.wire for server in backend().servers]
    eventually(lambda: all(wire.busy for wire in wires))
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 0.3)
    servers.resume()
    assert trying.outcome() is False
    assert late.remaining == 0.0
    eventually(lambda: servers.values(name) == [None] * 3)


def test_a_lock_without_its_majority_is_lost(name: str) -> None:
    """When two servers of three lost their data, the holder is told, and the third is freed."""
    with started(3) as servers, in_use(servers):
        held = lock(name, timeout=60, using="redlock")
        held.acquire()
        eventually(lambda: all(servers.values(name)))
        servers.clients[0].flushall()
        held.ensure_held()
        servers.clients[1].flushall()
        with pytest.raises(LockLost):
            held.ensure_held()
        eventually(lambda: servers.values(name) == [None] * 3)


@pytest.mark.parametrize("how", ["restart", "flush", "old data"])
def test_a_server_that_forgot_gives_no_lock_to_anybody(
    name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that lost its data can't form a second majority with one that missed the lock."""
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())
    with started(3) as servers, in_use(servers, REJOIN_DELAY=600):
        held = lock(name, timeout=60, using="redlock")
        with _away(servers, 2, name):
            held.acquire()  # by the first two
        if how == "flush":
            servers.clients[1].flushall()
        else:
            mark = servers.clients[1].get("lock-server")
            servers.servers[1].kill()
            servers.servers[1].restart()
            if how == "old data":
                servers.clients[1].set("lock-server", mark)
        assert lock(name, timeout=60, using="redlock").acquire(blocking=False) is False
        with pytest.raises(LockLost):  # and the holder is told
            held.ensure_held()
        servers.servers[0].kill()
        with pytest.raises(LockUnavailable, match=r"restarted.*\(REJOIN_DELAY\)"):
            lock(name, timeout=60, using="redlock").acquire(blocking=False)
        backend().admit()
        assert lock(name, timeout=60, using="redlock").acquire(blocking=False) is True


def test_a_delay_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server votes again after the delay, by its own clock."""
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())
    with started(3) as servers, in_use(servers, REJOIN_DELAY=0.3):
        for client in servers.clients:
            client.flushall()
        with pytest.raises(LockUnavailable, match="restarted"):
            lock(name, using="redlock").acquire(blocking=False)
        eventually(lambda: _available(name))


def _available(name: str) -> bool:
    try:
        with lock(name, using="redlock"):
            return True
    except LockUnavailable:
        return False


# Fences.


@pytest.mark.parametrize("quick", [True, False], ids=["one round", "two rounds"])
def test_fences_rise_across_majorities(
    servers: Quorum, name: str, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever two of three servers answer, and however their clocks differ, fences rise."""
    if not quick:
        monkeypatch.setattr(
            "django_redis_lock.backends.redlock.servers.Clocks.next_fence", lambda self: 0
        )
    now = time.time_ns() // 1000
    hour = 3_600_000_000
    servers.clients[0].set("lock-fence", now + 5 * hour)  # as with a clock five hours ahead
    servers.clients[1].set("lock-fence", now + 2 * hour)
    fences = []
    pairs = itertools.chain.from_iterable([itertools.permutations(range(3))] * 3)
    for away, *_ in pairs:
        with _away(servers, away, name), lock(name, timeout=60, using="redlock") as held:
            fences.append(held.fence)
            assert backend().holder(name).fence == held.fence
    assert fences == sorted(set(fences))
    assert fences[0] > now + 2 * hour


class _away:  # noqa: N801 - it reads as a word
    """Exclude one server from the votes on a name, as if it could not be reached."""

    def __init__(self, servers: Quorum, index: int, name: str) -> None:
        self._wire = backend().servers[index].wire
        self._post = self._wire.post

    def __enter__(self) -> None:
        vars(self._wire)["post"] = lambda letter: letter.reply(ConnectionError("away"))

    def __exit__(self, *error: object) -> None:
        del vars(self._wire)["post"]


def test_a_fence_is_known_to_a_majority_before_it_is_given_out(servers: Quorum, name: str) -> None:
    """A fence that only one server knows is written to others first."""
    ahead = time.time_ns() // 1000 + 3_600_000_000
    servers.clients[1].set("lock-fence", ahead)
    with _away(servers, 2, name), lock(name, timeout=60, using="redlock") as held:
        assert held.fence > ahead
        assert [int(client.get("lock-fence")) for client in servers.clients[:2]] == [held.fence] * 2
        assert all(str(held.fence) in value for value in servers.values(name)[:2])


def test_a_fence_is_known_to_a_majority_of_those_who_voted(servers: Quorum, name: str) -> None:
    """A server that voted for another caller may have given a smaller fence with that vote."""
    servers.clients[0].set("lock-fence", time.time_ns() // 1000 + 3_600_000_000)
    servers.clients[2].set(f"lock:{name}", "other", px=60_000)
    wire = backend().servers[1].wire
    post = wire.post

    def lose(letter: Letter) -> None:
        if letter.packed.script is scripts.QUORUM_SETTLE:
            letter.reply(ConnectionError("lost"))
        else:
            post(letter)

    vars(wire)["post"] = lose
    try:
        with pytest.raises(LockUnavailable):
            lock(name, timeout=60, using="redlock").acquire(blocking=False)
    finally:
        del vars(wire)["post"]


def test_the_last_fence_is_what_a_majority_of_voters_or_everybody_knows() -> None:
    """A server that lost the fence does not count, unless all servers have answered."""
    assert votes.last_fence([[7, 1], [9, 1], PENDING]) == 9
    assert votes.last_fence([[7, 1], [0, 0], PENDING]) is PENDING
    assert votes.last_fence([[7, 1], [0, 0], [5, 0]]) == 7
    assert votes.last_fence([[0, 0], [9, 0], PENDING]) is PENDING
    for answers in ([[7, 1], [0, 0], OSError()], [[0, 0], OSError(), PENDING]):
        with pytest.raises(votes.NoQuorum):
            votes.last_fence(answers)


@pytest.mark.parametrize("seed", range(4))
def test_fences_rise_whatever_a_minority_forgets(
    session_quorum: Quorum, name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers are away, ahead by hours, or lose their data, in any order: no fence ever falls.

    Never two of three have lost their data at the same time without having learned it since.
    """
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())
    monkeypatch.setattr("django_redis_lock.backends.redlock.ballots.TEACH_AGAIN", 0.0)
    chance = random.Random(seed)
    fences: list[int] = []
    unavailable = 0
    with in_use(session_quorum, REJOIN_DELAY=0.05) as servers:
        for _ in range(120):
            index = chance.randrange(3)
            event = chance.choice(["forget", "ahead", "nothing"])
            if event == "forget" and all(map(_votes, servers.clients)):
                servers.clients[index].flushall()
            elif event == "ahead" and _votes(servers.clients[index]):
                ahead = time.time_ns() // 1000 + chance.randrange(3_600_000_000)
                last = int(servers.clients[index].get("lock-fence") or 0)
                servers.clients[index].set("lock-fence", max(last, ahead))
            backend()._ballots._clocks = Clocks()  # as in another process
            with _away(servers, chance.randrange(3), name):
                try:
                    with lock(name, timeout=20, using="redlock") as held:
                        fences.append(held.fence)
                except LockUnavailable:
                    unavailable += 1
    assert fences == sorted(set(fences))
    assert len(fences) > 30
    assert unavailable


def _votes(client: Any) -> bool:
    """Whether a server has learned the last fence again."""
    return (client.get("lock-server") or "").count(" ") == 1


def test_a_free_lock_is_one_round_trip_where_the_clocks_are_known(
    servers: Quorum, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fence ahead of all clocks, all servers give the same, and none has to be settled."""
    monkeypatch.setattr(Clocks, "MOST_AHEAD", 60_000_000)
    rounds = []
    send = Ballots.send

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(getattr(args[0], "request", args[0]), "name", "") == name:
            rounds.append(args[0])
        return send(self, *args, **kwargs)

    monkeypatch.setattr(Ballots, "send", count)
    fences = []
    for _ in range(5):
        with lock(name, timeout=60, using="redlock") as held:
            fences.append(held.fence)
        backend()._ballots._clocks._took = (
            10.0  # so much does it add for calls that are on their way
        )
    assert len(rounds) in (10, 11)  # to acquire and to release; the first did not know the clocks
    assert fences == sorted(set(fences))


def test_the_least_fence_is_ahead_of_every_clock() -> None:
    """It is a little ahead of the clocks as last read; 0 if no clock is known."""
    clocks = Clocks()
    assert clocks.next_fence() == 0
    clocks.heard([[1, 1, 5_000_000, 0, 0], OSError(), [1, 1, 9_000_000, 0, 0]], took=0.001)
    assert 9_000_200 <= clocks.next_fence() < 9_000_000 + 60_000_000
    clocks.heard([[1, 1, 20_000_000, 0, 0], PENDING, [1, 1, 19_000_000, 0, 0]], took=5.0)
    assert 20_000_200 <= clocks.next_fence() < 20_000_000 + 60_000_000


# Exceptions from signal handlers, which meet callers anywhere.


class Interrupted(BaseException):
    """What a signal handler raises."""


class Interruption:
    """Raises ``Interrupted`` at the n-th place in the code that callers share with the threads.

    Places are those where Python runs signal handlers: as a function begins, after a call within
    it (but not while it enters a ``with``), and where a loop begins anew.
    """

    FILES = tuple(module.__file__ for module in (wires, rounds, waiting, threading))

    def __init__(self, at: int) -> None:
        self._left = at
        self._last: dict[FrameType, str] = {}
        self.raised = False

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self.FILES:
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._may_raise()
        elif event == "opcode":
            last = self._last.get(frame, "")
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._last[frame] = "ENTER" if last == "LOAD_SPECIAL" else name
            if last.startswith(("CALL", "JUMP_BACKWARD")):
                self._may_raise()
        return self._trace

    def _may_raise(self) -> None:
        self._left -= 1
        if self._left == -1:
            self.raised = True
            raise Interrupted


@pytest.mark.parametrize("running", [True, False])
def test_an_exception_from_a_signal_handler_anywhere(
    servers: Quorum, name: str, running: bool
) -> None:
    """Wherever it occurs in a caller, later calls work, and only one thread reads the answers."""
    for at in itertools.count():
        if not running:
            backend().close()
        interruption = Interruption(at)
        key = f"{name}:{at}"
        with contextlib.suppress(Interrupted), interruption:
            for server in backend().servers:
                server.wire.post(Letter(server.pack(calls.Inspect([key])), lambda answer: None))
            assert backend().call(calls.Inspect([key]))[1] is None
        for _ in range(2):
            said = Background(lambda key=key: backend().call(calls.Inspect([key])))
            assert said.outcome()[1:] == [None, -2, 0]
        eventually(lambda: all(count <= 1 for count in serving().values()))
        if not interruption.raised:
            break
    assert at > 20


def serving() -> Counter[Wire]:
    """Return the number of threads that serve each wire."""
    stacks = map(traceback.walk_stack, list(sys._current_frames().values()))
    return Counter(
        frame.f_locals["self"]
        for stack in stacks
        for frame, _ in stack
        if frame.f_code is Wire._run.__code__
    )


# Life of the threads.


def quorum_threads() -> list[threading.Thread]:
    """Return the threads of the backend under test."""
    wires = [server.wire for server in backend().servers]
    return [
        thread
        for thread in threading.enumerate()
        if getattr(getattr(thread, "_target", None), "__self__", None) in wires
    ]


def test_threads_are_few_and_end_with_the_backend(
    servers: Quorum, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one thread per server, however many callers; ``close()`` ends them."""
    monkeypatch.setattr("django_redis_lock.backends.redlock.wires.Wire.IDLE", 600.0)
    with lock(name, timeout=60, using="redlock"):
        waiting = [
            Background(lambda: lock(name, timeout=60, using="redlock").acquire(blocking_timeout=1))
            for _ in range(20)
        ]
        eventually(lambda: waiters(name, "redlock") == 20)
        assert len(quorum_threads()) == 3
        for item in waiting:
            assert item.outcome() is False
    backend().close()
    assert not quorum_threads()
    with lock(name, timeout=60, using="redlock"):  # and it can be used again
        pass


def test_threads_end_when_nobody_locks(
    servers: Quorum, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads end some seconds after the last call; the next call starts them again."""
    monkeypatch.setattr("django_redis_lock.backends.redlock.wires.Wire.IDLE", 0.05)
    for _ in range(2):
        with lock(name, timeout=60, using="redlock"):
            pass
        eventually(lambda: not quorum_threads())


def test_a_forked_child_has_its_own_connections(servers: Quorum, name: str) -> None:
    """A forked child uses connections of its own, and leaves those of its parent alone."""
    with lock(name, timeout=60, using="redlock") as held:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                other = lock(name + "child", timeout=60, using="redlock")
                mine = lock(name, blocking=False, using="redlock").acquire()
                os.write(writing, b"good" if other.acquire() and not mine else b"bad")
                other.release()
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as said:
            assert said.read() == b"good"
        os.waitpid(pid, 0)
        held.ensure_held()
    assert lock(name + "child", blocking=False, using="redlock").acquire()


# Releases by force where servers refuse.


@pytest.mark.parametrize(
    ("setting", "number", "result"),
    [
        ("maxmemory", 3, Result.RELEASED),
        ("min-replicas-to-write", 1, Result.RELEASED),
        ("min-replicas-to-write", 2, Result.UNAVAILABLE),  # one has done it
        ("min-replicas-to-write", 3, Result.REFUSED),
    ],
)
def test_forced_release_where_servers_refuse(
    servers: Quorum, name: str, setting: str, number: int, result: Result
) -> None:
    """The release counts as refused only if no server has released the lock."""
    lock(name, using="redlock", timeout=20).acquire()
    eventually(lambda: None not in servers.tokens(name))
    shown = backend().holder(name)
    assert shown
    for client in servers.clients[:number]:
        client.config_set(setting, 1)
    try:
        (outcome,) = release_shown([shown], by="ada")
        free = 3 if setting == "maxmemory" else 3 - number
        eventually(lambda: servers.tokens(name).count(None) == free)
    finally:
        for client in servers.clients:
            client.config_set(setting, 0)
    assert outcome.result is result


def test_forced_release_whose_answers_are_lost_is_told(
    servers: Quorum, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When asked again, the servers find in the audit what they did."""
    lock(name, using="redlock", timeout=20).acquire()
    eventually(lambda: None not in servers.tokens(name))
    carry_out = backend().call

    def lose_the_first(call: calls.Call) -> Any:
        first = call.first_sent_at is None
        answer = carry_out(call)
        if first and isinstance(call, calls.ForceRelease):
            raise LockUnavailable("the answers were lost")
        return answer

    monkeypatch.setattr(backend(), "call", lose_the_first)
    assert backend().force_release(name, by="ada")
    assert [entry.by for entry in backend().history(name)] == ["ada"]
