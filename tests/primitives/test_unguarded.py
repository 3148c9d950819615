"""``on_unavailable="run"``: a block that runs without its lock, as the server is unavailable."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.db.transaction import atomic

from django_redis_lock import lock, lock_many, locks, semaphore, signals
from django_redis_lock.exceptions import LockError, LockNotAcquired, LockNotOwned, LockUnavailable
from django_redis_lock.fencing import _Guard
from django_redis_lock.primitives import held as holds
from django_redis_lock.testing import unavailable
from example_project.embedded import EmbeddedServer
from tests.primitives import test_failed_releases as failed
from tests.tools import PATIENCE, Background, eventually, owes, stored, told
from tests.tools.proxy import Proxy

MAKERS: dict[str, Callable[..., Any]] = {
    "lock": lock,
    "shared": functools.partial(lock, shared=True),
    "reentrant": functools.partial(lock, reentrant=True),
    "semaphore": functools.partial(semaphore, limit=2),
    "several": lambda name, **given: lock_many([name, name + "!"], **given),
}
refused = failed.refused
every_kind = pytest.mark.parametrize("kind", MAKERS)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a probe all the time that it takes on a busy machine."""
    monkeypatch.setattr(holds, "PROBE_FOR", PATIENCE)


def optional(kind: str, name: str, **given: Any) -> Any:
    return MAKERS[kind](name, on_unavailable="run", **given)


def alone(handle: Any, name: str) -> Any:
    return handle[name] if hasattr(handle, "names") else handle


@every_kind
def test_the_block_runs_without_the_lock(
    name: str, refused: failed.Refusing, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The handle holds nothing and says so; a warning and the signals tell of it, once. It can be
    used again, and holds the lock once the first probe is answered, which ends the rest."""
    handle = optional(kind, name)
    with refused.refusing(), told(signals.lock_unavailable, signals.lock_not_acquired) as sent:
        with handle as held:
            assert held is handle
            assert (held.guarded, held.owned(), held.lost) == (False, False, False)
            assert (held.remaining, alone(held, name).fence) == (0.0, None)
            for use in (held.ensure_held, held.reacquire, lambda: alone(held, name).ticket):
                with pytest.raises(
                    LockNotOwned, match="the block runs without it, as the server failed"
                ):
                    use()
            with pytest.raises(LockNotOwned):
                _Guard(alone(held, name))
            if kind != "reentrant":
                with pytest.raises(LockError, match="already runs without lock"):
                    handle.acquire()
        with pytest.raises(LockNotOwned):
            handle.release()
    (warning,) = caplog.messages
    assert warning.startswith("Entered a block without lock")
    assert name in warning
    assert "LOCKS['default'] refused: NOREPLICAS" in warning
    assert [each.get("reason") for each in sent] == ["unavailable", None]
    assert not refused.holds(name)
    locks["default"].failed_until[None] = math.inf
    with handle as held:
        held.ensure_held()
        assert held.guarded
        assert alone(held, name).fence > 0
    assert locks["default"].failed_until == {}
    assert not held.guarded


@every_kind
@pytest.mark.usefixtures("server")
def test_under_asyncio_and_as_a_decorator(name: str, kind: str) -> None:
    @optional(kind, name)
    async def work() -> bool:
        async with optional(kind, name) as held:
            return not await held.aowned()

    with unavailable():
        assert asyncio.run(work())


def test_blocks_are_nested(
    name: str, refused: failed.Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each release ends its own block, guarded or not; a nested entry sends no call."""
    handle = optional("reentrant", name)
    with refused.refusing():
        handle.acquire()
        handle.acquire()
    with handle as held:
        assert held.guarded
        with monkeypatch.context() as patch:
            patch.setattr(locks["default"], "call", None)
            locks["default"].failed_until[None] = math.inf
            with optional("reentrant", name) as other, handle:
                assert other.guarded
        held.ensure_held()
    assert not refused.holds(name)
    handle.release()
    handle.release()
    with pytest.raises(LockNotOwned):
        handle.release()


def test_a_read_only_server_is_asked_once(
    name: str, own_server: EmbeddedServer, settings: Any
) -> None:
    """A caller who may run without the lock waits for no replicas, nor for a failover again. Each
    call is sent once more over another connection, since that may reach the new primary."""
    settings.LOCKS = {"default": {"LOCATION": own_server.url(), "OPTIONS": {"REPLICAS": 1}}}
    only_probe = locks["default"].failed_until = {None: math.inf}
    assert optional("lock", name).acquire()
    assert only_probe == {None: math.inf}
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    asked = [0]
    with redis.Redis.from_url(own_server.url()) as client:
        client.replicaof("127.0.0.1", 1)
        for until in (0.0, math.inf):
            locks["default"].failed_until[None] = until
            with optional("lock", name) as held:
                assert not held.guarded
                asked.append(int(client.info("errorstats")["errorstat_READONLY"]["count"]))
    assert asked[1] > 2
    assert asked[2] == asked[1] + 2


def test_only_an_unavailable_server_lets_it_run(name: str, refused: failed.Refusing) -> None:
    """A lock that another holds, wrong use, a wrong setting and the default raise, as ever."""
    with lock(name), pytest.raises(LockNotAcquired), optional("lock", name, blocking=False):
        pass
    with optional("lock", name) as held, pytest.raises(LockError, match="already holds"):
        held.acquire()
    with pytest.raises(ImproperlyConfigured):
        optional("lock", name, using="nowhere").acquire()
    for make in MAKERS.values():
        with refused.refusing(), pytest.raises(LockUnavailable):
            make(name).acquire()
        with pytest.raises(ValueError, match="on_unavailable='skip' is unknown"):
            make(name, on_unavailable="skip")


def test_a_reply_that_is_lost(name: str, proxy: Proxy) -> None:
    """The server took the lock, so it is released in the background."""
    with told(signals.lock_unavailable) as sent:
        proxy.lose_replies(1000)
        with optional("lock", name, timeout=60) as held:
            assert not held.guarded
            assert len(sent) == 1
            proxy.lose_replies(0)
            eventually(lambda: not owes())
            assert stored(locks["direct"], name) is None


def test_a_stopped_server_is_probed_after_a_failure(
    name: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers that may run without it send a probe of 5 ms; one at a time tries in earnest."""
    backend, sent = locks["default"], list[tuple[str, float]]()
    call = backend.call

    def noted(one: Any) -> Any:
        sent.append((type(one).__name__, one.until - time.monotonic()))
        return call(one)

    monkeypatch.setattr(backend, "call", noted)
    monkeypatch.setattr(holds, "PROBE_FOR", 0.005)
    proxy.hold_back()

    for kind, seconds in (("Acquire", holds.FAILED_FOR), ("Renew", 1000)):
        sent.clear()
        with optional("several", name, blocking=False) as held:
            assert not held.guarded
        assert [sent_kind for sent_kind, _ in sent] == [kind]
        assert 0 < backend.failed_until[None] <= time.monotonic() + seconds
        backend.failed_until[None] = time.monotonic() + 1000
    assert sent[0][1] <= 0.005
    sent.clear()
    with pytest.raises(LockUnavailable):  # who needs the lock waits for the server as ever
        MAKERS["several"](name, blocking=False).acquire()
    assert [kind for kind, _ in sent] == ["Acquire"]
    sent.clear()
    backend.failed_until[None] = time.monotonic() - 1
    trying = Background(lambda: optional("several", name, blocking=False).acquire())
    eventually(lambda: sent)
    assert sent == [("Renew", math.inf)]
    assert backend.failed_until[None] > time.monotonic() - 1  # so that others only probe
    proxy.let_go()
    assert trying.outcome()


def test_the_servers_of_a_cluster_fail_apart(
    name: str, refused: failed.Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of one ends no probing of another, whose callers would wait for it again."""
    monkeypatch.setattr(locks["default"], "renewal_group", lambda name: name[-1])
    with refused.refusing(), optional("lock", f"{name}-a"), optional("several", f"{name}-b"):
        pass
    assert optional("lock", f"{name}-a").acquire()
    assert locks["default"].failed_until.keys() == {"b"}


@pytest.mark.parametrize("kind", ["lock", "reentrant", "several"])
@pytest.mark.parametrize("also", ["run", "raise"])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.django_db
@pytest.mark.usefixtures("server")
def test_the_server_goes_in_a_transaction(
    name: str, kind: str, also: str, order: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is committed, with a warning, unless a caller needs the lock that both have."""
    handle, other = optional(kind, name), MAKERS[kind](name, on_unavailable=also)
    needed = nullcontext() if also == "run" else pytest.raises(LockUnavailable)
    with ExitStack() as down, needed, atomic():
        both = [handle, other][kind != "reentrant" :]
        for each in both[::order]:
            each.acquire()
        for each in reversed(both):
            each.release()
        with handle:
            pass
        down.enter_context(unavailable())
        with handle:
            assert alone(handle, name).fence is None
    assert ("Committed a transaction that may have lost" in caplog.text) is (also == "run")
