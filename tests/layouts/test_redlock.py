"""The quorum against the contract, and against servers that fail while locks are held."""

from __future__ import annotations

import json
import re
import signal
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.test import override_settings

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockLost
from example_project.embedded import EmbeddedServer
from tests.contracts.capabilities import LACKS
from tests.contracts.locks import LockContract
from tests.tools import ROOT, Background, Child, eventually
from tests.tools.docs import acl_rule
from tests.tools.quorums import REDLOCK, Quorum, in_use, started


@pytest.fixture(scope="module", params=[3, 5])
def session_quorum(request: pytest.FixtureRequest) -> Iterator[Quorum]:
    with started(request.param) as quorum:
        yield quorum


@pytest.fixture
def quorum(session_quorum: Quorum) -> Iterator[Quorum]:
    with in_use(session_quorum):
        yield session_quorum


@pytest.mark.usefixtures("quorum")
class TestContract(LockContract):
    """The quorum keeps the contract of all backends, except for the order of waiters."""

    using = "redlock"
    lacks = LACKS["RedlockLockBackend"]


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


@pytest.fixture
def own_quorum(session_quorum: Quorum) -> Iterator[Quorum]:
    with started(len(session_quorum.servers)) as quorum, in_use(quorum, REJOIN_DELAY=600):
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
    """Holder and waiter, in two processes, do not notice that a minority fails."""
    held = lock(name, timeout=60, using="redlock")
    held.acquire()
    eventually(lambda: all(own_quorum.values(name)))
    with in_child(WAITER, own_quorum.entry(SERVER_TIMEOUT=2), name) as child:
        assert child.hear() == "ready"
        eventually(lambda: len(locks["redlock"].waiting(name)) == 1)
        fault(own_quorum)
        held.ensure_held()
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


def test_a_hold_of_which_too_few_know_does_not_hinder_the_renewal_of_others(
    own_quorum: Quorum, name: str
) -> None:
    """If a server that would have to confirm a hold is away, only that hold is lost."""
    with lock(name, timeout=6, auto_renew=True, using="redlock") as good:
        bad = lock(name + "bad", timeout=6, auto_renew=True, using="redlock")
        bad.acquire()
        eventually(lambda: all(own_quorum.values(name + "bad")))
        for index in minority(own_quorum):
            own_quorum.clients[index].delete(f"lock:{name}bad")
        own_quorum.servers[-1].pause()
        eventually(lambda: bad.lost)
        first = good._lease.deadline
        eventually(lambda: good._lease.deadline > first)
        assert not good.lost
        with pytest.raises(LockLost):
            bad.release()


def test_an_interrupted_wait_leaves_nothing(own_quorum: Quorum, name: str) -> None:
    """Ctrl-C during a wait, or during a vote that hangs, withdraws all requests."""
    program = """
        held = lock(name, timeout=60)
        say("ready")
        try:
            held.acquire()
        except KeyboardInterrupt:
            say("interrupted")
        hear()
    """
    entry = own_quorum.entry(SERVER_TIMEOUT=20, REJOIN_DELAY=600)
    held = lock(name, timeout=60, using="redlock")
    held.acquire()
    with in_child(program, entry, name) as child:
        assert child.hear() == "ready"
        eventually(lambda: locks["redlock"].waiting(name))
        child.process.send_signal(signal.SIGINT)
        assert child.hear() == "interrupted"
        eventually(lambda: not locks["redlock"].waiting(name))
        child.say()
        assert child.end() == 0
    held.release()
    for server in own_quorum.servers[1:]:
        server.pause()
    with in_child(program, entry, name) as child:
        assert child.hear() == "ready"
        eventually(lambda: own_quorum.clients[0].get(f"lock:{name}"))
        child.process.send_signal(signal.SIGINT)
        own_quorum.resume()
        assert child.hear() == "interrupted"
        eventually(lambda: not any(own_quorum.values(name)))


GREENLETS = """
    import gevent
    ticks, served, inside = [], [], []
    def tick():
        while True:
            ticks.append(1)
            gevent.sleep(0.01)
    def work(number):
        with lock(name, timeout=60) as held:
            inside.append(number)
            assert inside == [number]
            served.append(number)
            gevent.sleep(0.001)
            inside.remove(number)
    ticking = gevent.spawn(tick)
    jobs = [gevent.spawn(work, number) for number in range(20)]
    gevent.joinall(jobs, raise_error=True)
    say(sorted(served) == list(range(20)), len(ticks) > 3)
    say("threads", len([one for one in threading.enumerate() if "quorum" in one.name]))
    locks["default"].close()
    say("threads", len([one for one in threading.enumerate() if "quorum" in one.name]))
"""


def test_gevent(own_quorum: Quorum, name: str) -> None:
    """Greenlets exclude each other and go on while others wait, with a minority paused."""
    pause(own_quorum)
    before = "from gevent import monkey; monkey.patch_all()"
    entry = own_quorum.entry(SERVER_TIMEOUT=2, REJOIN_DELAY=600)
    with in_child(GREENLETS, entry, name, before=before) as child:
        assert child.hear() == "True True"
        assert child.hear() == f"threads {len(own_quorum.servers)}"
        assert child.hear() == "threads 0"


def test_passwords_and_unix_sockets_are_ways_to_a_server(name: str) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedServer()) for _ in range(2)]
        closed = stack.enter_context(EmbeddedServer("--requirepass", "secret"))
        entry = {
            "BACKEND": REDLOCK,
            "LOCATION": [
                servers[0].url(3),
                f"unix://{servers[1].unix_socket}",
                f"redis://:secret@127.0.0.1:{closed.port}/2",
            ],
        }
        with override_settings(LOCKS={"default": entry}):
            locks["default"].admit()
            servers[0].kill()
            with lock(name, timeout=60) as held:
                held.ensure_held()
                assert not lock(name, blocking=False).acquire()
            locks.reset()


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
