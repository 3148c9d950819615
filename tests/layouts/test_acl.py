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
    assert len(locks["default"].history()) == 2


def test_rule_is_enough(cluster: Cluster, settings: Any, name: str) -> None:
    """A user with the rule can do everything, and the doctor finds nothing missing."""
    become(cluster, rule(), settings)
    do_everything(name)
    done = command("doctor")
    assert "permissions  user" not in done.out
    assert done.out.count("commands that locks need") == 3


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
