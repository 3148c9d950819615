"""Renewal with several servers, with many leases, and with a server that does not answer."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
import redis

from django_redis_lock import lock, lock_many, locks, signals
from django_redis_lock.backends.renewal import BATCH, renewer
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.lease import Lease, Request
from example_project.embedded import EmbeddedServer
from tests.tools import counted, eventually, owes, renewing, told

Told = list[dict[str, Any]]


@pytest.fixture
def lost() -> Iterator[Told]:
    with told(signals.lock_lost) as calls:
        yield calls


@pytest.fixture
def unavailable() -> Iterator[Told]:
    with told(signals.lock_unavailable) as calls:
        yield calls


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


@pytest.mark.parametrize("socket_timeout", [5, None])
def test_stopped_server_costs_no_lease_on_another(
    name: str, stopped: EmbeddedServer, socket_timeout: float | None, lost: Told
) -> None:
    """Locks on a healthy server are renewed in time while a call to a stopped one hangs."""
    locks["other"].pool.connection_kwargs["socket_timeout"] = socket_timeout
    elsewhere = lock(name, timeout=1.5, auto_renew=True, using="other")
    elsewhere.acquire()
    longer = lock(f"{name}!", timeout=30, auto_renew=True, using="other")
    longer.acquire()
    with lock(name, timeout=1, auto_renew=True) as held:
        stopped.pause()
        first = held._lease.deadline
        eventually(lambda: held._lease.deadline > first + 2.5 or held.lost)
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
    monkeypatch.setattr("django_redis_lock.backends.renewal.IDLE", 0.1)
    with lock(name), lock(name, using="other"):
        threads = {f"django-redis-lock-renewal-{using}" for using in ("default", "other")}
        eventually(lambda: threads <= {item.name for item in threading.enumerate()})
    eventually(lambda: not renewing("default") and not renewing("other"))


@pytest.mark.timed
def test_many_leases_are_renewed_in_parts(
    name: str, server: EmbeddedServer, client: redis.Redis
) -> None:
    """No call renews more than ``BATCH`` leases, as the server does nothing else meanwhile."""
    backend, number = locks["default"], 2 * BATCH + 10
    held: list[Lease] = []
    for count in range(number):
        request = Request(f"{name}:{count}", f"{count:032x}", 60.0, "{}", auto_renew=True)
        client.set(f"lock:{request.name}", f"{request.token} 1 {{}}", px=60_000)
        held.append(Lease(request, 1, monotonic() + 15))
    first = [lease.deadline for lease in held]
    with counted(client) as counts:
        for lease in held:
            renewer.add(lease, backend, backend)
        eventually(
            lambda: all(item.deadline > before for item, before in zip(held, first, strict=True))
        )
    for lease in held:
        renewer.discard(lease)
    assert counts["pexpire"] >= number
    assert counts["evalsha"] + counts.get("eval", 0) >= 3


@pytest.mark.parametrize("group", [False, True])
def test_shortened_lease_is_renewed_in_time(name: str, server: EmbeddedServer, group: bool) -> None:
    """A lease that its holder shortens is renewed before it expires."""
    held = lock_many([name, f"{name}!"]) if group else lock(name)
    with held:
        held.extend(0.8, replace_ttl=True)
        eventually(lambda: held.remaining > 20 or held.lost)
        held.ensure_held()


class TestHandedOff:
    """A lock that was handed off is verified once, shortly after it was acquired."""

    def taken(self, name: str, monkeypatch: pytest.MonkeyPatch, *, by: float, **how: Any) -> Any:
        """Return a handle of a lock that must be verified within so many seconds."""
        until = monotonic() + by
        held = lock(name, **how)
        with monkeypatch.context() as patched:
            patched.setattr(Lease, "verify_by", until)
            held.acquire()
            assert held._lease is not None
            held._lease.verify_by = until
        return held

    @pytest.mark.parametrize("auto_renew", [False, True])
    def test_taken_back(
        self,
        name: str,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        lost: Told,
        auto_renew: bool,
    ) -> None:
        """A holder whose lock was taken back is told long before its lease ends."""
        held = self.taken(name, monkeypatch, by=1.2, timeout=60, auto_renew=auto_renew)
        client.set(f"lock:{name}", "another", px=20_000)
        eventually(lambda: lost)
        assert lost[0]["lock"] is held
        assert held.lost
        assert client.get(f"lock:{name}") == "another"

    def test_unreachable(
        self,
        name: str,
        stopped: EmbeddedServer,
        monkeypatch: pytest.MonkeyPatch,
        lost: Told,
    ) -> None:
        """If the server does not answer in time the lock is lost, and released when it does."""
        held = self.taken(name, monkeypatch, by=0.8, timeout=60, using="other")
        stopped.pause()
        eventually(lambda: held.lost)
        eventually(lambda: lost)
        stopped.resume()
        eventually(lambda: not lock(name, using="other").locked())


def test_failed_renewals_are_reported(
    name: str, stopped: EmbeddedServer, unavailable: Told, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failed renewal sends ``lock_unavailable``, so that outages can be counted."""
    held = lock(name, timeout=3, auto_renew=True, using="other")
    held.acquire()
    with caplog.at_level(logging.WARNING, "django_redis_lock"):
        stopped.kill()
        eventually(lambda: unavailable)
    (told, *_) = unavailable
    assert told["using"] == "other"
    assert told["sender"] is type(locks["other"])
    assert isinstance(told["error"], LockUnavailable)
    eventually(lambda: "not renewed, trying again" in caplog.text)
    eventually(lambda: held.lost)
