"""Leases are renewed in the background, and losses reported."""

from __future__ import annotations

import contextlib
import gc
import math
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any
from unittest.mock import MagicMock

import pytest
import redis

from django_redis_lock import lock, lock_many, locks, signals
from django_redis_lock.backends.renewal import BATCH, Entry, ServerRenewer, Withdrawal, renewer
from django_redis_lock.exceptions import LockLost, LockNotOwned, LockUnavailable
from django_redis_lock.protocol import drivers
from django_redis_lock.protocol.calls import Release
from django_redis_lock.protocol.lease import Lease, Request
from example_project.embedded import EmbeddedServer
from tests.tools import Background, counted, eventually, owes, renewing, told

pytestmark = pytest.mark.usefixtures("server")


Told = list[dict[str, Any]]


@pytest.fixture
def lost() -> Iterator[Told]:
    with told(signals.lock_lost) as calls:
        yield calls


@pytest.mark.parametrize("how", ["broken", "taken"])
def test_holder_learns_of_a_loss(
    name: str, how: str, client: redis.Redis, lost: Told, caplog: pytest.LogCaptureFixture
) -> None:
    """If the key is gone or replaced the holder is told, and the key is not written again."""
    held = lock(name, timeout=1, auto_renew=True)
    held.acquire()
    if how == "broken":
        locks["default"].force_release(name)
    else:
        client.set(f"lock:{name}", "another", px=20_000)
    eventually(lambda: lost)
    assert held.lost
    assert (lost[0]["name"], lost[0]["lock"]) == (name, held)
    assert client.get(f"lock:{name}") == ("another" if how == "taken" else None)
    why = "its lease expired, or an operator released it"
    assert f"was lost while it was held: {why}" in caplog.text
    for use in (held.ensure_held, lambda: held.extend(5), held.release):
        with pytest.raises(LockLost, match=why):
            use()
    assert len(lost) == 1
    with pytest.raises(LockNotOwned):
        held.release()


def test_dropped_handle_is_not_renewed(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A handle that is dropped without a release logs a warning, and its lease expires."""
    lock(name, timeout=0.5, auto_renew=True).acquire()
    gc.collect()
    with lock(name, blocking_timeout=10):
        pass
    eventually(lambda: f"The handle of lock {name!r} was garbage-collected" in caplog.text)


@pytest.mark.parametrize("using", ["default", "locmem"])
def test_longer_extension_is_not_cut_by_renewal(name: str, using: str) -> None:
    """A renewal never shortens the lease that ``extend`` has set."""
    options = {"timeout": 1, "auto_renew": True, "using": using}
    held, other = lock(name, **options), lock(f"{name}!", **options)
    with held, other:
        held.extend(20, replace_ttl=True)
        first = other.lease.deadline
        eventually(lambda: other.lease.deadline > first + 1.2)
        held.ensure_held()
        assert held.remaining > 15
        assert locks[using].holder(name).ttl > 15


@pytest.mark.parametrize("using", ["default", "locmem"])
def test_renewal_ends_at_max_hold(
    name: str, using: str, lost: Told, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the lock is lost, its holder is told, and a waiter gets it.

    Even a first lease is no longer, so a dead process holds the lock no longer.
    """
    with lock(name, max_hold=5, using=using) as held:
        assert 0 < held.remaining <= 5
        assert held.backend.holder(name).ttl <= 5
    held = lock(name, timeout=0.6, auto_renew=True, max_hold=1.2, using=using)
    held.acquire()
    first = held.lease.deadline
    waiting = Background(lambda: lock(name, using=using).acquire(blocking_timeout=10))
    eventually(lambda: lost)
    assert first + 0.1 < held.lease.deadline < first + 0.6 + 0.25  # it had been renewed
    assert lost[0]["lock"] is held
    assert "was held for max_hold seconds" in caplog.text
    for use in (held.ensure_held, held.release):
        with pytest.raises(LockLost, match="was held for max_hold seconds"):
            use()
    assert waiting.outcome()
    assert len(lost) == 1


def test_several_are_held_for_max_hold_once_all_are_held(name: str) -> None:
    """Those that are held while others are waited for do not run out."""
    first, second = f"{name}-a", f"{name}-b"
    ahead = lock(second)
    group = lock_many([second, first], timeout=1, auto_renew=True, max_hold=1)
    ahead.acquire()
    taking = Background(group.acquire)
    lease = eventually(lambda: group[first].lease)
    fence = lease.fence
    eventually(lambda: lease.lost or lease.deadline > lease.began + 1.6)
    ahead.release()
    assert taking.outcome()
    assert group[first].fence == fence
    eventually(lambda: group.lost)


# Several servers, many leases, and a server that does not answer.


@pytest.fixture
def stopped(
    server: EmbeddedServer, own_server: EmbeddedServer, settings: Any
) -> Iterator[EmbeddedServer]:
    """A server behind the alias ``other``, to be stopped; it is resumed in the end."""
    settings.LOCKS = {
        "default": {"LOCATION": server.url()},
        "other": {"LOCATION": own_server.url()},
    }
    yield own_server
    with contextlib.suppress(RuntimeError):  # a test may have killed it
        own_server.resume()


def test_stopped_server_costs_no_lease_on_another(
    name: str, stopped: EmbeddedServer, lost: Told
) -> None:
    """Locks on a healthy server are renewed in time while a call to a stopped one hangs."""
    locks["other"].pool.connection_kwargs["socket_timeout"] = None
    elsewhere = lock(name, timeout=0.8, auto_renew=True, using="other")
    elsewhere.acquire()
    longer = lock(f"{name}!", timeout=30, auto_renew=True, using="other")
    longer.acquire()
    with lock(name, timeout=0.8, auto_renew=True) as held:
        stopped.pause()
        first = held.lease.deadline
        eventually(lambda: (lost and held.lease.deadline > first + 1) or held.lost)
        held.ensure_held()
        # The holder on the stopped one is told in time, while the call still hangs.
        assert [item["lock"] for item in lost] == [elsewhere]
        assert elsewhere.lost
    stopped.resume()
    eventually(lambda: not owes("other"), "the lost lock is given back")
    longer.extend(3, replace_ttl=True)
    eventually(lambda: longer.remaining > 20, "its lease goes on to be renewed")
    longer.release()


def test_threads_end_when_idle(name: str, stopped: EmbeddedServer, monkeypatch: Any) -> None:
    """Each server has its own thread, which ends some time after the last release."""
    monkeypatch.setattr("django_redis_lock.support.threads.IDLE", 0.1)
    with lock(name), lock(name, using="other"):
        threads = {f"django-redis-lock-renewal-{using}" for using in ("default", "other")}
        eventually(lambda: threads <= {item.name for item in threading.enumerate()})
    eventually(lambda: not renewing("default") and not renewing("other"))


@pytest.mark.timed
def test_many_leases_are_renewed_in_parts(
    name: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call renews more than ``BATCH`` leases, as the server does nothing else meanwhile.

    A call examines only the leases that it renews, however many there are.
    """
    number, examined, lost_at = 5 * BATCH + 10, list[Entry](), Entry.lost_at
    monkeypatch.setattr(Entry, "lost_at", lambda entry: [examined.append(entry), lost_at(entry)][1])
    held: list[Lease] = []
    for count in range(number):
        request = Request(f"{name}:{count}", f"{count:032x}", 60.0, "- {}", auto_renew=True)
        client.set(f"lock:{request.name}", f"{request.token} 1 {{}}", px=60_000)
        held.append(Lease(request, 1, monotonic() + 15))
    before = monotonic() + 15
    with counted(client) as counts:
        for lease in held:
            renewer.add(lease, locks["default"], locks["default"])
        eventually(lambda: all(lease.deadline > before for lease in held))
    for lease in held:
        renewer.discard(lease)
    assert counts["pexpire"] >= number
    assert 6 <= counts["evalsha"] + counts.get("eval", 0) <= 12
    assert len(examined) <= 4 * number


@pytest.mark.parametrize("group", [False, True])
def test_shortened_lease_is_renewed_in_time(name: str, group: bool) -> None:
    """A lease that its holder shortens is renewed before it expires."""
    with lock_many([name, f"{name}!"]) if group else lock(name) as held:
        held.extend(0.8, replace_ttl=True)
        eventually(lambda: held.remaining > 20 or held.lost)
        held.ensure_held()


def test_a_lock_that_was_handed_off_is_verified(
    name: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, lost: Told
) -> None:
    """A holder whose lock was taken back is told long before its lease ends."""
    held = lock(name, timeout=60, auto_renew=False)
    monkeypatch.setattr(Lease, "verify_by", monotonic() + 1.2)
    held.acquire()
    client.set(f"lock:{name}", "another", px=20_000)
    eventually(lambda: lost)
    assert lost[0]["lock"] is held
    assert held.lost
    assert client.get(f"lock:{name}") == "another"


def test_a_lock_that_was_handed_off_is_lost_unless_it_is_verified_in_time(name: str) -> None:
    lease = Lease(Request(name, "token", 60.0, "- {}"), 1, monotonic() + 60)
    lease.handed_off(monotonic() + 1.2)
    entry = Entry(lease, lease, renewer.server_of(locks["locmem"], name), renew=False)
    assert entry.lost_at() == lease.verify_by


def test_what_a_renewal_claims_after_the_release_is_given_back(
    name: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a late heartbeat enters its waiter again, which is granted the lock once more."""
    held = lock(name, timeout=60, auto_renew=False)
    monkeypatch.setattr(Lease, "verify_by", monotonic() + 60)
    held.acquire()
    (server,) = renewing()

    def overtaken(steps: Any) -> Any:
        monkeypatch.undo()
        value = client.get(f"lock:{name}")
        held.release()
        client.set(f"lock:{name}", value, px=60_000)
        return locks["default"].run(steps)

    monkeypatch.setattr(server, "backend", MagicMock(wraps=locks["default"], run=overtaken))
    eventually(lambda: not client.exists(f"lock:{name}"))


def test_an_outage_is_reported_and_in_the_end_a_loss(
    name: str, stopped: EmbeddedServer, lost: Told, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failed renewal sends ``lock_unavailable``, so that outages can be counted.

    The holder knows by its own clock that the lease has expired.
    """
    held = lock(name, timeout=1, auto_renew=True, using="other")
    held.acquire()
    with told(signals.lock_unavailable) as calls:
        stopped.kill()
        eventually(lambda: calls)
    assert calls[0]["using"] == "other"
    assert calls[0]["sender"] is type(locks["other"])
    assert isinstance(calls[0]["error"], LockUnavailable)
    eventually(lambda: "locks; retrying" in caplog.text)
    eventually(lambda: held.lost)
    assert held.remaining == 0.0
    eventually(lambda: lost)
    assert lost[0]["lock"] is held
    with pytest.raises(LockLost, match=r"in time: .*[^.]\.$"):
        held.ensure_held()


def test_a_server_that_is_away_is_asked_once_for_all_that_is_owed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "carry_out", MagicMock(side_effect=LockUnavailable("away")))
    server = ServerRenewer(renewer, (locks["locmem"], None))
    items = [Withdrawal(Release(name, token), 0.0, math.inf) for token in "ab"]
    server.withdrawals.update(dict.fromkeys(items))
    server._send(items[0], math.inf)
    assert all(each.due > monotonic() for each in items)
