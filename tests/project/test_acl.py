"""The documented rule for the user of the server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest
import redis
from django.conf import settings
from django.test import override_settings

from django_redis_lock import lock, locks, semaphore
from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.operators import unheld
from django_redis_lock.protocol.calls import ask
from django_redis_lock.transport import parking
from example_project.embedded import EmbeddedServer
from tests.tools import Background, counted, enqueue, eventually, queue, waiters
from tests.tools.docs import acl_rule


@pytest.fixture
def wait() -> str:
    return "queue"


@pytest.fixture
def prefix() -> str:
    return "lock"


def key(rest: str) -> str:
    return f"{locks['default'].key_prefix}-{rest}"


@pytest.fixture
def locker(
    own_server: EmbeddedServer, wait: str, prefix: str
) -> Iterator[Callable[[list[str]], redis.Redis]]:
    """Give the locks a user with a rule; return a client of the administrator."""
    entry = {
        "LOCATION": f"redis://locker:secret@127.0.0.1:{own_server.port}/1",
        "KEY_PREFIX": prefix,
        "TIMEOUT": 20,
        "OPTIONS": {"WAIT": wait, "POLL_INTERVAL": 0.02},
    }
    with (
        redis.Redis.from_url(own_server.url(1), decode_responses=True) as admin,
        override_settings(LOCKS={"default": entry}),
    ):

        def become(rule: list[str]) -> redis.Redis:
            admin.execute_command("ACL", "SETUSER", "locker", "reset", *rule)
            return admin

        yield become


@pytest.mark.parametrize(
    ("wait", "prefix"), [("queue", "shop"), ("blpop", "lock"), ("poll", "lock")]
)
def test_the_acl_rule_is_enough_and_has_nothing_to_spare(
    wait: str, prefix: str, locker: Callable[[list[str]], redis.Redis]
) -> None:
    rule = acl_rule(*({wait} - {"queue"}), "worker", prefix=prefix)
    admin = locker(rule)
    with counted(admin) as counts:
        _do_everything(admin)
    allowed = {word[1:] for word in rule if word.startswith("+")}
    of_the_connection = {"auth", "hello", "client|setinfo"}
    of_this_test = {"config|resetstat", "info", "zscore", "lindex", "multi", "exec"}
    of_this_test = (of_this_test | {"subscribe", "unsubscribe"}) - allowed
    used = {command for command, calls in counts.items() if calls}
    assert used - of_the_connection - of_this_test == allowed


def _do_everything(admin: redis.Redis) -> None:
    prefix = locks["default"].key_prefix
    first = lock("a", timeout=20)
    assert first.acquire()
    assert first.extend(10)
    assert first.locked()
    first.ensure_held()
    heir = lock("a", timeout=20)
    (waiting,) = queue(heir)
    inbox = key(f"inbox:{admin.zrange(key('queue:a'), 0, 0)[0]}")
    admin.rpush(inbox, "a message that it missed")
    admin.delete(key("queue:a"))  # its next heartbeat brings it back
    eventually(lambda: waiters("a") and not admin.exists(inbox))
    first.extend(5, replace_ttl=True)  # the waiters are told
    assert lock("a", blocking_timeout=0.05).acquire() is False  # and one of them gives up
    first.release()
    assert waiting.outcome()
    assert [holder.name for holder in locks["default"].holders()] == ["a"]
    admin.zadd(key("index"), {f"endless:{number}": math.inf for number in range(20)})
    with patch.object(RedisLockBackend, "page_size", 1):  # ten names a page
        assert len(locks["default"].read_index("endless:*")) == 20
    assert locks["default"].force_release("a")
    assert len(locks["default"].history("a")) == 1

    with admin.pubsub() as deaf:  # a process that is notified and does not run
        deaf.subscribe(key("grant:c0-1"))
        deaf.get_message(timeout=5)
        with lock("deaf", timeout=20):
            enqueue(admin, "deaf", "{}", process="c0-1", prefix=prefix)
        assert lock("deaf", blocking_timeout=10).acquire()
        assert not admin.exists(key("queue:deaf"))
        locks["default"].force_release("deaf")
    with lock("parked elsewhere", timeout=20):
        enqueue(admin, "parked elsewhere", "{}", process="i0-1", prefix=prefix)
    assert len(admin.lrange(key("inbox:i0-1"), 0, -1)) == 1
    with lock("renewed", timeout=2, auto_renew=True):
        end = admin.zscore(key("index"), "renewed")
        eventually(lambda: admin.zscore(key("index"), "renewed") > end)
    with lock("endless", timeout=None):
        pass
    assert lock("lapsed", timeout=0.001).acquire()
    eventually(lambda: not locks["default"].holder("lapsed"))
    sweeper = lock("sweeper", timeout=5)
    eventually(lambda: sweeper(admin.zscore)(key("index"), "lapsed") is None)
    _share()
    _park()
    _tick()


def _tick() -> None:
    with lock("beat", timeout=20) as held:
        note = parking.NoteTick("beat", held.held_lease().token, "hourly", 1.5)
        assert locks["default"].run(ask(note)) == 1
    assert locks["default"].run(ask(parking.ReadTicks("beat"))) == [b"hourly", b"1.500000"]


def _park() -> None:
    backend, tokens = locks["default"], [f"{digit}" * 48 for digit in range(4)]
    about = {"turn": parking.NO_TURN, "owner": tokens[0][32:], "worker": "0 -"}

    def park(token: str, **more: str) -> None:
        request = lock("parked", timeout=20).make_request(backend)
        request.token, request.waits_in = token, "@broker"
        parked = backend.run(ask(parking.Park(request, "@broker", message="a:b", **more)))
        assert parked[:2] == [0, -1]

    with lock("parked", timeout=20) as held:
        for token, more in zip(tokens, ({}, {"instead_of": "0" * 16}, {}, {}), strict=True):
            park(token, **more)
        assert [waiter.parked for waiter in backend.waiting(held.name)] == [True] * 3
        assert backend.run(ask(parking.Unpark("broker", "parked", ids=("3" * 16,)))) == 1
    assert len(backend.run(ask(parking.PollOutbox("broker", most=20, skip=0)))[0]) == 6
    backend.run(ask(parking.SetParkedLimit("broker", "parked", limit="2", **about)))
    put_off = parking.PutOff("broker", "parked", token=tokens[1], why="it", again=1, aside=0)
    assert backend.run(ask(put_off)) == 2
    assert backend.run(ask(parking.Restore("broker", "parked"))) == 1
    assert backend.run(ask(parking.Unpark("broker", "parked"))) == 0
    for token in tokens:
        backend.run(ask(parking.EndParking("broker", "parked", token=token, turn=parking.NO_TURN)))


def _share() -> None:
    locks["default"].set_limit("shared", 2)
    assert [each.limit for each in locks["default"].limits()] == [2]
    with semaphore("shared", 9, timeout=20), semaphore("shared", 9, timeout=20) as permit:
        third = semaphore("shared", 9, timeout=20)
        (waiting,) = queue(third)
        writer = lock("shared", blocking_timeout=0.05)
        assert Background(writer.acquire).outcome() is False
        permit.extend(5)
        locks["default"].set_limit("shared", None)
        assert waiting.outcome()
        assert len(list(locks["default"].holders("shared"))) == 3
        assert locks["default"].force_release("shared", third.token_id)
    with lock("shared", blocking_timeout=20) as writer:
        writer.downgrade()


def test_a_web_process_needs_no_parked_messages(
    own_server: EmbeddedServer, locker: Callable[[list[str]], redis.Redis]
) -> None:
    """It can't write any. What it releases is free for the message that is next."""
    admin = locker(acl_rule())
    web, key = locks["default"], "lock-parked:broker::a"
    with override_settings(LOCKS={**settings.LOCKS, "worker": {"LOCATION": own_server.url(1)}}):
        worker = locks["worker"]
        with lock("a", timeout=20):
            request = lock("a", timeout=20, using="worker").make_request(worker)
            request.token, request.waits_in = "1" * 48, "@broker"
            worker.run(ask(parking.Park(request, "@broker", message="a:b")))
        assert web.holder("a") is None
        assert not lock("a").acquire(blocking_timeout=0.05)
        with pytest.raises(LockUnavailable, match=r"(?i)no permissions"):
            web.run(ask(parking.Park(request, "@broker", message="c:d")))
        assert admin.hvals(key) == ["a:b"]
        eventually(lambda: worker.run(ask(parking.PollOutbox("broker", most=1)))[0])
        assert web.holder("a") is not None


def test_a_reader_reads_all_and_changes_nothing(locker: Callable[[list[str]], redis.Redis]) -> None:
    """Nor does it see a token of a waiter, with which it could forge a grant."""
    admin = locker(acl_rule())
    locks["default"].set_limit("shared", 2)
    with lock("a", timeout=20), semaphore("shared", 2, timeout=20):
        enqueue(admin, "a", "{}", process="i0-1")
        locker(acl_rule(user="reader"))
        locks.reset()
        backend = locks["default"]
        with counted(admin) as counts:
            assert [each.waiters for each in backend.holders("a")] == [1]
            assert len(backend.waiting("a")) == len(list(backend.holders("shared"))) == 1
            assert [each.limit for each in backend.limits()] == [2]
            assert [each.name for each in unheld(backend, bool)] == []
            assert backend.history("a") == []
            assert not lock("b").locked()
        allowed = {word[1:] for word in acl_rule(user="reader") if word.startswith("+")}
        assert {each for each in allowed if not counts[each]} == set()
        with pytest.raises(LockUnavailable, match=r"(?i)permissions"):
            backend.force_release("a")
        locker(acl_rule())
        locks.reset()
