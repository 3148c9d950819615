"""The quorum against the contract, and against servers that fail while locks are held."""

from __future__ import annotations

import asyncio
import json
import re
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import override_settings

from django_redis_lock import Lock, lock, locks
from tests.tools import ROOT, Background, Child, eventually
from tests.tools.docs import acl_rule
from tests.tools.quorums import Quorum, in_use, started

# Servers that fail while locks are held and waited for.

USE = """
import json
from django.conf import settings
settings.LOCKS = {"default": json.loads(sys.argv[1])}
name = sys.argv[2]
"""
"""Makes a quorum the default backend of a child process."""


def in_child(program: str, entry: dict[str, Any], *args: str, before: str = "") -> Child:
    return Child(USE + textwrap.dedent(program), json.dumps(entry), *args, before=before)


@pytest.fixture(params=[3, 5])
def own_quorum(request: pytest.FixtureRequest) -> Iterator[Quorum]:
    with (
        started(request.param) as quorum,
        in_use(quorum, REJOIN_DELAY=600, SERVER_TIMEOUT=20),
    ):
        yield quorum


def minority(quorum: Quorum) -> range:
    """Return how many servers may fail, as indices."""
    return range(len(quorum.servers) // 2)


def kill(quorum: Quorum) -> None:
    for index in minority(quorum):
        quorum.servers[index].kill()


def pause(quorum: Quorum) -> None:
    for index in minority(quorum):
        quorum.servers[index].pause()


def restart(quorum: Quorum) -> None:
    for index in minority(quorum):
        quorum.servers[index].kill()
        quorum.servers[index].restart()


WAITER = """
    held = lock(name, timeout=60)
    say("ready")
    held.acquire()
    say("got", held.fence)
    hear()
    held.release()
    say("released")
"""


@pytest.mark.parametrize("fault", [kill, pause, restart])
def test_a_minority_fails_in_the_middle_of_a_hold_and_a_wait(
    own_quorum: Quorum, name: str, fault: Callable[[Quorum], None]
) -> None:
    """Holder and waiter, in two processes, do not notice it, and wait for none of these servers."""
    held = lock(name, timeout=60, using="redlock")
    held.acquire()
    eventually(lambda: all(own_quorum.values(name)))
    with in_child(WAITER, own_quorum.entry(SERVER_TIMEOUT=20), name) as child:
        assert child.hear() == "ready"
        eventually(lambda: len(locks["redlock"].waiting(name)) == 1)
        fault(own_quorum)
        began = time.monotonic()
        held.ensure_held()
        assert asyncio.run(_owned(held))
        held.extend(60)
        assert locks["redlock"].holder(name).fence == held.fence
        fence = held.fence
        held.release()
        said, number = child.hear().split()
        assert said == "got"
        assert int(number) > fence
        assert lock(name, blocking=False, using="redlock").acquire() is False
        child.say()
        assert child.hear() == "released"
    with lock(name, timeout=60, using="redlock") as last:
        assert last.fence > int(number)
    # Waiting for a server would be twenty seconds for each of these calls.
    assert time.monotonic() - began < 20


async def _owned(held: Lock) -> bool:
    return await held.aowned()


def test_the_documented_rule_of_acl_is_enough(own_quorum: Quorum, name: str) -> None:
    """A user with the usual rule and what the guide adds can do everything."""
    guide = (ROOT / "docs/how-to/server-layouts.md").read_text()
    (more,) = re.findall(r"beside it\s+`([^`]*)`", guide)
    rule = [word for word in acl_rule() if word != "+subscribe"] + more.split()
    for client in own_quorum.clients:
        client.execute_command("ACL", "SETUSER", "locker", "reset", *rule)
    entry = own_quorum.entry(SERVER_TIMEOUT=2, REJOIN_DELAY=600)
    entry["LOCATION"] = [
        url.replace("redis://", "redis://locker:secret@") for url in own_quorum.urls
    ]
    with override_settings(LOCKS={"default": entry}):
        locks["default"].admit()
        with lock(name, timeout=60) as held:
            waiting = Background(lambda: lock(name, timeout=60).acquire(blocking_timeout=20))
            eventually(lambda: locks["default"].waiting(name))
            held.extend(5, replace_ttl=True)
            held.ensure_held()
        assert waiting.outcome() is True
        other = lock(name, timeout=60)
        assert other.take_over(locks["default"].holder(name).token_id)
        other.detach(30)
        assert [item.name for item in locks["default"].holders()] == [name]
        assert locks["default"].force_release(name, by="ada")
        assert len(locks["default"].history(name)) == 1
        with lock(name, timeout=None):
            pass
        locks.reset()
    for client in own_quorum.clients:
        refused = {entry["object"] for entry in client.acl_log()}
        assert refused <= {"client|setinfo"}
