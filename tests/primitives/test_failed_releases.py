"""Releases that fail or are interrupted are completed in the background."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import redis

from django_redis_lock import lock, lock_many, locks, signals
from django_redis_lock.backends.renewal import renewer
from django_redis_lock.exceptions import LockNotOwned, LockUnavailable
from django_redis_lock.primitives.held import abandon
from django_redis_lock.transport import packing
from example_project.embedded import EmbeddedServer
from tests.tools import ROOT, eventually, owes, renewing, told
from tests.tools.proxy import Proxy


class Refusing:
    """A server that can be made to refuse writes, and keeps its data."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.client = redis.Redis.from_url(server.url())

    def refuse(self, replicas: int = 1) -> None:
        self.client.config_set("min-replicas-to-write", replicas)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        self.refuse()
        try:
            yield
        finally:
            self.refuse(0)

    def holds(self, name: str) -> bool:
        return bool(self.client.exists(f"lock:{name}"))


@pytest.fixture
def refused(settings: Any, own_server: EmbeddedServer) -> Iterator[Refusing]:
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    refusing = Refusing(own_server)
    yield refusing
    refusing.client.close()


def handle(kind: str, name: str, **options: Any) -> Any:
    if kind == "lock":
        return lock(name, timeout=None, **options)
    return lock_many([name, name + "!"], None, **options)


@pytest.mark.parametrize("kind", ["lock", "group"])
@pytest.mark.parametrize("on_unavailable", ["raise", "run"])
def test_block_whose_release_fails_leaves_nothing_held(
    name: str, refused: Refusing, kind: str, on_unavailable: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets the error, or may run without the lock and finds a warning in the log.

    The lock is released once the server accepts writes again.
    """
    fails = pytest.raises(LockUnavailable)
    optional = on_unavailable == "run"
    with nullcontext() if optional else fails:
        with handle(kind, name, on_unavailable=on_unavailable) as held:
            refused.refuse()
            if optional:
                with fails:
                    held.release()
    assert [("after the block" in line) for line in caplog.messages] == [True] * optional
    assert refused.holds(name)
    refused.refuse(0)
    eventually(lambda: not refused.holds(name))


@pytest.mark.parametrize("kind", ["lock", "group"])
def test_release_can_be_called_again(name: str, refused: Refusing, kind: str) -> None:
    """It reports no loss if the release in the background came first."""
    held = handle(kind, name)
    held.acquire()
    with refused.refusing():
        for _ in range(2):
            with pytest.raises(LockUnavailable):
                held.release()
        with pytest.raises(LockNotOwned, match="released already"):
            held.ensure_held()
        owed = {each: each.due for one in renewing() for each in one.withdrawals}
        eventually(lambda: all(each.due > due for each, due in owed.items()), "retried in vain")
    eventually(lambda: not refused.holds(name))
    eventually(lambda: not owes())
    assert not held.owned()
    held.release()
    assert locks["default"].history() == []
    with pytest.raises(LockNotOwned):
        held.release()


@pytest.mark.parametrize("then", ["detach", "release", "abandon"])
def test_detach_that_was_carried_out_unseen(name: str, proxy: Proxy, then: str) -> None:
    """It is not a loss, and a second call succeeds; a release ends what was detached."""
    with told(signals.lock_lost) as lost:
        other = lock(f"{name}!", timeout=1.2)
        other.acquire()
        other.detach(30)  # makes the script known
        held = lock(name, timeout=1.2, auto_renew=True)
        held.acquire()
        proxy.lose_replies(1000, marker=packing.TAKE_OVER.sha.encode())
        with pytest.raises(LockUnavailable):
            held.detach(30)
        proxy.lose_replies(0)
        assert locks["direct"].holder(name).token_id == held.ticket
        if then == "detach":
            eventually(lambda: held.lost)
            assert held.detach(30) == locks["direct"].holder(name).token_id
        elif then == "release":
            held.release()
        else:  # as where an exception of a signal handler ends the block
            abandon([held])
    eventually(lambda: then == "detach" or locks["direct"].holder(name) is None)
    assert lost == []


def test_lock_that_could_not_be_detached_is_renewed_on(name: str, refused: Refusing) -> None:
    with lock(name, timeout=30, auto_renew=True) as held:
        with refused.refusing(), pytest.raises(LockUnavailable):
            held.detach(30)
        assert held.lease.token in renewer.entries


AT_EXIT = """
    import _thread, atexit, sys, threading
    import django, redis
    from django.conf import settings
    url, name, when = sys.argv[1:]
    settings.configure(LOCKS={"default": {"LOCATION": url}})
    django.setup()
    from django_redis_lock import lock
    from django_redis_lock.backends import renewal
    from django_redis_lock.exceptions import LockUnavailable

    def refuse(*args, **kwargs):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    def refuse_threads():
        _thread.start_new_thread = threading.Thread.start = refuse

    def fail_to_release():
        held = lock(name, timeout=None)
        held.acquire()
        with redis.Redis.from_url(url) as client:
            client.config_set("min-replicas-to-write", 1)
            try:
                held.release()
            except LockUnavailable:
                client.config_set("min-replicas-to-write", 0)

    renewal.WITHDRAW_EVERY = 60
    if when == "after":
        atexit.register(fail_to_release)
        atexit.register(refuse_threads)
    else:
        fail_to_release()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_release_is_tried_at_the_end_of_the_process(
    name: str, own_server: EmbeddedServer, when: str
) -> None:
    """A program that ends before the next retry in the background makes one more.

    With Python 3.12 no thread can be started once it has begun to end; here with none.
    """
    command = [sys.executable, "-c", textwrap.dedent(AT_EXIT), own_server.url(), name, when]
    ended = subprocess.run(command, check=True, cwd=ROOT, timeout=30, stderr=subprocess.PIPE)
    assert not Refusing(own_server).holds(name)
    assert ended.stderr == b""


@pytest.mark.parametrize("how", ["acquire", "aacquire", "release", "holders"])
def test_each_failed_operation_is_reported_once(
    name: str, settings: Any, own_server: EmbeddedServer, how: str
) -> None:
    """``lock_unavailable`` is sent once for each operation, however often it was tried."""
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    held = lock(name, timeout=60)
    if how == "release":
        held.acquire()
    own_server.kill()
    with (
        told(signals.lock_unavailable) as unavailable,
        told(signals.lock_not_acquired) as missed,
        pytest.raises(LockUnavailable) as caught,
    ):
        if how == "holders":
            list(locks["default"].holders())
        elif how == "aacquire":
            asyncio.run(held.aacquire())
        else:
            getattr(held, how)()
    (outage,) = unavailable
    assert outage["error"] is caught.value
    assert (outage["using"], outage["name"]) == ("default", "" if how == "holders" else name)
    reasons = [miss["reason"] for miss in missed if miss["waited"] > 0]
    assert reasons == ["unavailable"] * ("acquire" in how)
