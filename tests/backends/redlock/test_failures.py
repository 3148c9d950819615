"""Servers of a quorum that fail or refuse while they are asked."""

from __future__ import annotations

import re
from contextlib import ExitStack

import pytest
import redis
from django.test import override_settings

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockLost, LockUnavailable
from django_redis_lock.operators import Result, release_shown
from django_redis_lock.protocol.calls import Release, Renew
from tests.backends.redlock.conftest import backend
from tests.tools import Background, eventually
from tests.tools.proxy import Proxy
from tests.tools.quorums import Quorum, in_use, started


def test_no_majority_is_unavailable_and_not_a_refusal(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two of three down the error names them; it never looks like a held lock."""
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", ())
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


def test_a_contested_vote_does_not_wait_for_a_silent_server(servers: Quorum, name: str) -> None:
    """Callers that share the votes of the others give them back, long before the timeout."""
    with in_use(servers, SERVER_TIMEOUT=600):
        first, second, _ = servers.clients
        first.set(f"lock:{name}", "another's", px=60_000)
        servers.servers[2].pause()
        waiting = Background(lambda: lock(name, using="redlock").acquire(blocking_timeout=600))
        eventually(lambda: second.get(f"lock:{name}"))
        first.delete(f"lock:{name}")
        assert waiting.outcome() is True


def test_a_vote_that_comes_late_is_taken_back(servers: Quorum, name: str) -> None:
    """Also a server that had not answered must not keep the lock for a caller that was refused."""
    with in_use(servers, SERVER_TIMEOUT=600):
        for client in servers.clients[:2]:
            client.set(f"lock:{name}", "another's", px=60_000)
        servers.servers[2].pause()
        assert not lock(name, timeout=60, using="redlock").acquire(blocking=False)
        servers.servers[2].resume()
        list(backend().holders())  # which all have answered, each after the vote
        assert servers.values(name)[2] is None


def test_a_vote_survives_an_idle_connection_that_its_server_closes(
    servers: Quorum, name: str
) -> None:
    """It is sent again, since the others would make a majority without it."""
    with lock(name, using="redlock"):
        eventually(lambda: all(servers.values(name)))
    eventually(lambda: servers.values(name) == [None] * 3)
    servers.clients[0].client_kill_filter(_type="normal", skipme=True)
    with lock(name, using="redlock"):
        eventually(lambda: all(servers.values(name)))


def test_a_renewed_lease_counts_from_the_first_sending(servers: Quorum, name: str) -> None:
    with lock(name, timeout=20, using="redlock") as held:
        for client in servers.clients:  # so that it is sent again
            client.client_kill_filter(_type="normal", skipme=True)
        renewal = Renew([(name, held.lease.token, 20_000)])
        assert backend().call(renewal)[0] > 0
        assert not renewal.resent


def test_lost_replies_to_a_release_are_no_loss(servers: Quorum, name: str) -> None:
    """A majority that has carried it out says at the second sending that the lock is not held."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(server.port)) for server in servers.servers[:2]]
        urls = [f"redis://127.0.0.1:{proxy.port}/0" for proxy in proxies]
        entry = {**servers.entry(SERVER_TIMEOUT=60), "LOCATION": [*urls, servers.urls[2]]}
        stack.enter_context(override_settings(LOCKS={"redlock": entry}))
        stack.callback(locks.reset)
        held = lock(name, timeout=60, using="redlock")
        with held:
            eventually(lambda: all(servers.values(name)))
        eventually(lambda: servers.values(name) == [None] * 3)  # all know the script now
        held.acquire()
        eventually(lambda: all(servers.values(name)))
        for proxy in proxies:
            proxy.lose_replies(1)
        held.release()
        assert all(proxy.lost.acquire(timeout=60) for proxy in proxies)


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


def test_a_majority_that_comes_too_late_is_none(servers: Quorum, name: str) -> None:
    """What is left of the lease has to exceed what the clocks may differ by; so has the delay."""
    assert not lock(name, timeout=0.002, using="redlock").acquire(blocking=False)
    assert lock(name, timeout=20, using="redlock").acquire(blocking_timeout=20)
    with in_use(servers, REJOIN_DELAY=0.002):
        assert not lock(name, timeout=20, using="redlock").acquire(blocking=False)


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


def test_a_refusal_that_does_not_decide_is_none(servers: Quorum, name: str) -> None:
    """The call is sent again, as another answer of the others would do."""
    answers = [1, 0, redis.ResponseError("NOREPLICAS Not enough good replicas to write.")]
    error = backend()._error_of(Release(name, "token"), answers)
    assert (error.refused, error.passing) == (False, True)
