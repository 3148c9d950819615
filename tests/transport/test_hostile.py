"""Keys that another program has overwritten, and messages of an unknown form. Each leads to a clear
error that names the lock, or is ignored; the command and the admin page show the rest; and other
locks work."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.test import Client

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockError
from django_redis_lock.transport.receiving import ReceivingRegistry
from example_project.embedded import EmbeddedServer
from tests.tools import queue
from tests.tools.admin import LIST, page_of, root
from tests.tools.console import command

pytestmark = [pytest.mark.usefixtures("server", "no_workers"), pytest.mark.django_db]

REDIS = "django_redis_lock.backends.redis.RedisLockBackend"

HUGE = json.dumps({"host": "far", "metadata": {"a": "x" * 1_000_000}})
VICTIM = "victim"
BYSTANDER = "bystander"


@pytest.fixture(autouse=True)
def _backend(server: EmbeddedServer, settings: Any) -> None:
    settings.LOCKS = {"default": {"BACKEND": REDIS, "LOCATION": server.url(), "TIMEOUT": 20}}


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url()) as client:
        yield client


@pytest.fixture
def bystander() -> Iterator[Callable[[], None]]:
    """A lock that was taken before; return a function that tries it and other locks."""
    held = lock(BYSTANDER, timeout=20)
    held.acquire()

    def others_work() -> None:
        held.ensure_held()
        held.extend(5)
        with lock("another", timeout=20):
            (waiting,) = queue(lock("another", timeout=20))
        assert waiting.outcome() is True
        assert locks["default"].force_release("another")

    yield others_work
    held.release()


def attempt(what: Callable[[], Any], name: str = VICTIM) -> Any:
    """Do something; return its result, or the error if it is one of ours that names the lock."""
    try:
        return what()
    except LockError as error:
        refused = error
    assert refused.name in (name, "")
    assert len(str(refused)) < 1000
    return refused


def shown(browser: Client, *names: str, codes: tuple[int, ...] = (0, 3)) -> str:
    """Look at everything with the command and the admin page; return what they said."""
    said = ""
    words = [["list", "--sort", "holder", "--format", "json"], ["history"]]
    paths = [LIST, f"{LIST}?task=*"]
    for name in names:
        words += [["show", name], ["show", name, "--format", "json"]]
        paths += [page_of(name), page_of(name, view="history")]
    for word in words:
        done = command(*word)
        assert done.code in codes, (word, done)
        said += done.out + done.err
    for path in paths:
        page = browser.get(path)
        assert page.status_code == 200, path
        said += page.content.decode()
    assert "Traceback" not in said
    said.encode()
    return said


# Under the key of a lock.


def _deep(text: str) -> bytes:
    return f"{'a' * 32} 1700000000000000 - - ".encode() + text.encode()


def _record(**fields: Any) -> bytes:
    return _deep(json.dumps({"host": "far", "pid": 1, "thread": "t", **fields}))


VALUES = {
    "empty": b"",
    "not utf-8": b"\xff\xfe \x80 \xff{}",
    "truncated": _deep('{"host":"far","pi'),
    "future fence": b"a" * 32 + b" 9007199254740993 - - {}",
    "negative fence": b"a" * 32 + b" -5 - 3 {}",
    "giant": _deep('{"host":"' + "x" * 1_000_000 + '"}'),
    "deep list": _deep("[" * 100_000),
    "wrong kinds": _record(host=5, pid="x", thread=None, task_id=[1], metadata=[1], since="x"),
    "surrogates": _record(host="\ud800", task_name="a\ud800", metadata={"\ud800": "\ud800"}),
    "controls": _record(host="\x1b[2J", thread="\r\n", task_name="\u202e", task_id="\x00"),
    "own form": b"253402300800000 " + b"a" * 32 + b" 9999999999999999 9999999999999999 - {}",
}


def test_values_of_other_programs(raw: redis.Redis, bystander: Callable[[], None]) -> None:
    """Whatever is stored there excludes; it can be shown, and an operator can take it away."""
    backend, browser = locks["default"], root()
    for name, value in VALUES.items():
        raw.set(f"lock:{name}", value)
        raw.zadd("lock-index", {name: "inf"})
    assert {holder.name for holder in backend.holders()} == {*VALUES, BYSTANDER}
    said = shown(browser, *list(VALUES)[::4])
    for name in VALUES:
        assert name in said
        assert not lock(name).acquire(blocking=False)
        held = lock(name, timeout=20)
        assert held.take_over("0" * 16) is False
        holder = backend.holder(name)
        assert backend.force_release(name, by="ada").token_id == holder.token_id
        assert not raw.exists(f"lock:{name}")
        assert held.acquire(blocking=False)
        assert backend.history(name)[0].token_id == holder.token_id
    bystander()


@pytest.mark.parametrize(
    "key", ["lock", "lock-queue", "lock-index", "lock-fence", "lock-seen", "lock-audit"]
)
def test_key_of_another_kind(key: str, raw: redis.Redis) -> None:
    """It is a clear error, and no matter to other locks unless they share it, until it is gone."""
    backend, browser, key = (
        locks["default"],
        root(),
        f"{key}:{VICTIM}" if key in ("lock", "lock-queue") else key,
    )
    for put in (lambda: raw.set(key, b"\xffx"), lambda: raw.zadd(key, {"a": 1e15 + 0.5})):
        held, other = lock(VICTIM, timeout=20), lock(VICTIM, timeout=20)
        held.acquire()
        raw.delete(key)
        put()
        for operation in (
            lambda other=other: other.acquire(blocking_timeout=0.01),
            lambda other=other: other.take_over("0" * 16),
            lambda: list(backend.holders()),
            lambda: backend.waiting(VICTIM),
            lambda: backend.history(VICTIM),
            lambda held=held: held.extend(5, replace_ttl=True),
            held.ensure_held,
            held.release,
            lambda: backend.force_release(VICTIM),
        ):
            attempt(operation)
        shown(browser, VICTIM, codes=(0, 1, 2, 3))
        raw.delete(key, f"lock:{VICTIM}")
        with lock(VICTIM, timeout=20, blocking_timeout=0) as held:
            held.ensure_held()


# The channel.

MESSAGES = [
    b"",
    b"\xff\xfe",
    b"grant",
    b"grant a 1 2 3 4",
    b"grant TOKEN x 1 1",
    b"grant TOKEN 1 " + b"9" * 400 + b" 1",
    b"grant TOKEN -1 -1 -1",
    b"grant TOKEN 9223372036854775807 60000 1 " + VICTIM.encode(),  # it asks, and waits on
    b"due x",
    b"due " + b"9" * 400,
    b"x" * 100_000,
]


@pytest.mark.parametrize("_backend", [REDIS], indirect=True)  # the one that has a channel
def test_garbage_on_the_channel(raw: redis.Redis, bystander: Callable[[], None]) -> None:
    """It wakes nobody, gives nobody a lock, and costs no connection."""
    backend = locks["default"]
    assert isinstance(backend.registry_for(""), ReceivingRegistry)
    first, second = lock(VICTIM, timeout=20), lock(VICTIM, timeout=20)
    first.acquire()
    (waiting,) = queue(second)
    connection = backend.registry_for("").receiver.connection
    (token,) = backend.registry_for("")._waiters
    for message in MESSAGES:
        assert raw.publish(
            f"lock-grant:{backend.registry_for('').waits_in(VICTIM)}",
            message.replace(b"TOKEN", token.encode()),
        )
    bystander()
    assert waiting.is_alive()
    first.ensure_held()
    first.release()
    assert waiting.outcome() is True
    assert backend.registry_for("").receiver.connection is connection
    second.ensure_held()
    second.release()


@pytest.mark.parametrize("_backend", [REDIS], indirect=True)  # the one with such records
@pytest.mark.parametrize("shared", [False, True])
def test_huge_record_is_cut(raw: redis.Redis, shared: bool) -> None:
    """The list, the lock and the page show that, and a script of ours does not send the rest."""
    ends = (time.time() + 60) * 1000
    if shared:
        raw.zadd(f"lock:{VICTIM}", {"token": ends})
        raw.hset(f"lock-permits:{VICTIM}", "token", f"- 1700000000000000 - 2 {HUGE}")
    else:
        raw.set(f"lock:{VICTIM}", f"token 1700000000000000 - - {HUGE}", px=60_000)
    raw.zadd("lock-index", {VICTIM: ends})
    holder = locks["default"].holder(VICTIM)
    assert holder is not None
    assert (holder.cut, holder.shared, holder.fence) == (True, shared, 1700000000000000)
    before = int(raw.info("stats")["total_net_output_bytes"])
    told = [command("list").out]
    told += [command("show", VICTIM).out, root().get(LIST).content.decode()]
    sent = int(raw.info("stats")["total_net_output_bytes"]) - before
    assert [("was cut" in text, len(text) < 100_000) for text in told] == [(True, True)] * 3
    assert sent < 200_000
    assert locks["default"].force_release(VICTIM, holder.token_id) is not None
    assert locks["default"].holder(VICTIM) is None
