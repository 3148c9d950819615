"""The rule for a cluster's user, as its page gives it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockLost, LockUnavailable
from tests.layouts.servers import BACKEND, Cluster, client
from tests.tools import ROOT, Background, eventually, waiters
from tests.tools.console import command


def rule() -> list[str]:
    """Return the arguments of the rule on its page."""
    text = (ROOT / "docs/how-to/restrict-by-acl.md").read_text()
    (found,) = re.findall(r"^ACL SETUSER cluster-locker (.*)$", text, re.MULTILINE)
    return str(found).split()


def become(cluster: Cluster, words: list[str], settings: Any, **entry: Any) -> None:
    for server in cluster.servers:
        with client(server) as one:
            one.execute_command("ACL", "SETUSER", "cluster-locker", "reset", *words)
    urls = [url.replace("://", "://cluster-locker:secret@") for url in cluster.urls]
    settings.LOCKS = {"default": {"BACKEND": BACKEND, "LOCATION": urls, **entry}}


def do_everything(name: str) -> None:
    """Call whatever there is to call, so that each command is used."""
    for number in range(40):  # one in sixteen clears the index
        lock(f"{name}:{number % 2}", timeout=0.002).acquire(blocking_timeout=5)
    with lock(name, timeout=20) as held:
        held.extend(5, replace_ttl=True)
        assert not lock(name).acquire(blocking_timeout=0.05)
        waiting = Background(lock(name, timeout=None).acquire)
        eventually(lambda: waiters(name) == 1)
        assert list(locks["default"].holders()) != []
        assert len(locks["default"].waiting(name)) == 1
    assert waiting.outcome() is True
    assert asyncio.run(lock(name).aacquire(blocking=False)) is False
    locks["default"].force_release(name)
    with lock(name, timeout=20) as held:
        ticket = held.ticket
        held.detach(20)
        assert held.take_over(ticket)
        locks["default"].force_release(name)
        with pytest.raises(LockLost):
            held.ensure_held()
        held.acquire()
    assert len(locks["default"].history()) == 3


def pass_on(name: str) -> None:
    held = lock(name, timeout=2)
    held.acquire()
    waiting = Background(lambda: lock(name, timeout=5).acquire(blocking_timeout=4))
    try:
        eventually(lambda: waiters(name) == 1 or not waiting.is_alive())
        held.release()
        waiting.outcome()
    finally:
        waiting.join()


def test_rule_is_enough(cluster: Cluster, settings: Any, name: str) -> None:
    """A user with the rule can do everything, and the doctor finds nothing missing."""
    become(cluster, rule(), settings)
    do_everything(name)
    done = command("doctor")
    assert "permissions  user" not in done.out
    assert done.out.count("commands that locks need") == 3


@pytest.mark.parametrize("word", ["+spublish", "+ssubscribe", "&lock-grant:*", "~lock-index:*"])
def test_rule_has_nothing_to_spare(cluster: Cluster, settings: Any, name: str, word: str) -> None:
    """Every cluster-specific part is needed, and the doctor names the missing one."""
    become(cluster, [one for one in rule() if one != word], settings)
    if word != "+spublish":  # without which waiters find their turn by looking
        with pytest.raises(LockUnavailable):
            pass_on(name)
    done = command("doctor")
    assert done.code != 0
    assert f"user cluster-locker lacks: {word}\n" in done.out


def test_waiting_for_replicas_takes_a_word_more(cluster: Cluster, settings: Any, name: str) -> None:
    """``+wait`` is needed with REPLICAS; without it nothing is acquired."""
    options = {"OPTIONS": {"REPLICAS": 1}}
    become(cluster, rule(), settings, **options)
    with pytest.raises(LockUnavailable, match="wait"):
        lock(name).acquire(blocking=False)
    assert "user cluster-locker lacks: +wait\n" in command("doctor").out
    become(cluster, [*rule(), "+wait"], settings, **options)
    with lock(name):
        pass


def test_doctor_examines_each_master(cluster: Cluster) -> None:
    """Every master has its findings, the state of the cluster among them."""
    done = command("doctor")
    for server in cluster.masters():
        assert f"127.0.0.1:{server.port} database 0 answers" in done.out
    assert done.out.count("state ok, 16384 of 16384 slots served") == 3
    assert done.code == 0


def test_doctor_tells_a_node_from_a_server(cluster: Cluster, settings: Any) -> None:
    """A cluster node as the LOCATION of one server is an error with a remedy."""
    settings.LOCKS = {"default": {"BACKEND": BACKEND, "LOCATION": cluster.urls[0]}}
    done = command("doctor")
    assert "LOCATION names a single server" in " ".join(done.out.split())
    assert done.code != 0


def test_doctor_counts_replicas(cluster: Cluster, settings: Any) -> None:
    """More replicas than there are is reported before a caller waits for them."""
    options = {"OPTIONS": {"REPLICAS": 2}}
    settings.LOCKS = cluster.locks(**options)["LOCKS"]
    done = command("doctor")
    assert "waits for 2: no lock can be acquired" in " ".join(done.out.split())
    assert done.code != 0
