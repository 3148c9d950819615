"""Servers of a quorum that fail while locks are held and waited for, and what they permit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from django.test import override_settings

from django_redis_lock import Lock, lock, locks
from tests.tools import eventually, queue
from tests.tools.docs import acl_rule
from tests.tools.quorums import Quorum, in_use, started


@pytest.fixture
def own_quorum() -> Iterator[Quorum]:
    # A caller that waited for a server would do so for longer than the test may take.
    with started(5) as quorum, in_use(quorum, REJOIN_DELAY=600, SERVER_TIMEOUT=600):
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


@pytest.mark.parametrize("fault", [kill, pause, restart])
def test_a_minority_fails_in_the_middle_of_a_hold_and_a_wait(
    own_quorum: Quorum, name: str, fault: Callable[[Quorum], None]
) -> None:
    """Holder and waiter do not notice it, and wait for none of these servers."""
    held, waiter = (lock(name, timeout=60, using="redlock") for _ in range(2))
    held.acquire()
    eventually(lambda: all(own_quorum.values(name)))
    (waiting,) = queue(waiter)
    fault(own_quorum)
    held.ensure_held()
    assert asyncio.run(_owned(held))
    held.extend(60)
    fence = held.fence
    assert locks["redlock"].holder(name).fence == fence
    held.release()
    assert waiting.outcome() is True
    assert waiter.fence > fence
    assert lock(name, blocking=False, using="redlock").acquire() is False
    fence = waiter.fence
    waiter.release()
    with lock(name, timeout=60, using="redlock") as last:
        assert last.fence > fence


async def _owned(held: Lock) -> bool:
    return await held.aowned()


def test_the_documented_rule_of_acl_is_enough(own_quorum: Quorum, name: str) -> None:
    """A user with the usual rule and what the guide changes for a quorum can do everything."""
    rule = acl_rule("quorum")
    for client in own_quorum.clients:
        client.execute_command("ACL", "SETUSER", "locker", "reset", *rule)
    entry = own_quorum.entry(SERVER_TIMEOUT=2, REJOIN_DELAY=600)
    entry["LOCATION"] = [
        url.replace("redis://", "redis://locker:secret@") for url in own_quorum.urls
    ]
    with override_settings(LOCKS={"default": entry}):
        locks["default"].admit()
        with lock(name, timeout=60) as held:
            (waiting,) = queue(lock(name, timeout=60))
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
