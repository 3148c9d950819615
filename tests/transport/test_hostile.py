"""What others may have written where our keys are, and words that nobody should have sent.

After each of these there is a clear error that names the lock, or the odd thing is passed over; the
command and the admin page say what they can; and other locks go on working.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.test import Client

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockError
from django_redis_lock.support.arguments import MAX_NAME_LENGTH, check_name
from django_redis_lock.transport.receiving import ReceivingRegistry
from example_project.embedded import EmbeddedServer
from tests.tools import Background, eventually, waiters
from tests.tools.admin import LIST, page_of, root
from tests.tools.console import command

pytestmark = [pytest.mark.usefixtures("server", "no_workers"), pytest.mark.django_db]

REDIS = "django_redis_lock.backends.redis.RedisLockBackend"
GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"

HUGE = json.dumps({"host": "far", "metadata": {"a": "x" * 1_000_000}})
VICTIM = "victim"
BYSTANDER = "bystander"


@pytest.fixture(params=[REDIS, GETSET], ids=["redis", "getset"], autouse=True)
def _backend(request: pytest.FixtureRequest, server: EmbeddedServer, settings: Any) -> None:
    """One alias, on each backend that keeps its locks on a server."""
    settings.LOCKS = {
        "default": {"BACKEND": request.param, "LOCATION": server.url(), "TIMEOUT": 20}
    }


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client that reads and writes bytes."""
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
            waiting = Background(lambda: lock("another", timeout=20).acquire(blocking_timeout=10))
            eventually(lambda: waiters("another") == 1)
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
    words = [
        ["list", "--sort", "held"],
        ["list", "--sort", "holder", "--format", "json"],
        ["history"],
        ["release", "*", "--dry-run", "--only-dead", "--no-input"],
    ]
    paths = [LIST, f"{LIST}?q=a&o=2.1", f"{LIST}?task=*"]
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
    "blanks": b"   ",
    "word": b"held",
    "not utf-8": b"\xff\xfe \x80 \xff{}",
    "record not utf-8": _deep("") + b'{"host":"\xff\xfe"}',
    "truncated": _deep('{"host":"far","pi'),
    "future fence": b"a" * 32 + b" 9007199254740993 - - {}",
    "huge fence": b"a" * 32 + b" " + b"9" * 5000 + b" - - {}",
    "negative fence": b"a" * 32 + b" -5 - 3 {}",
    "giant": _deep('{"host":"' + "x" * 1_000_000 + '"}'),
    "deep list": _deep("[" * 100_000),
    "wrong kinds": _record(host=5, pid="x", thread=None, task_id=[1], metadata=[1], since="x"),
    "numbers": _record(pid=10**30, metadata={"a": 1e400, "b": None, "c": {"d": [1]}}),
    "long number": _deep('{"pid":' + "9" * 5000 + "}"),
    "surrogates": _record(
        host="\ud800",
        thread="\udfff",
        task_id="\ud800",
        task_name="a\ud800",
        metadata={"\ud800": "\ud800"},
    ),
    "controls": _record(host="\x1b[2J", thread="\r\n", task_name="\u202e", task_id="\x00"),
    "own form": b"253402300800000 " + b"a" * 32 + b" 9999999999999999 9999999999999999 - {}",
    "own form, deep": b"253402300800000 " + b"a" * 32 + b" 1 1 - {" + b"[" * 100_000 + b"}",
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


PUTS: dict[str, Callable[[redis.Redis, str], object]] = {
    "string": lambda raw, key: raw.set(key, b"\xffx"),
    "hash": lambda raw, key: raw.hset(key, "a", "b"),
    "numbers": lambda raw, key: raw.zadd(key, {"a": 1e15 + 0.5, "b": 1e300}),
}


@pytest.mark.parametrize("key", ["lock", "lock-queue"])
def test_key_of_another_kind(key: str, raw: redis.Redis, bystander: Callable[[], None]) -> None:
    """Another kind of data under a key of a lock is a clear error, and no matter to other locks."""
    backend, browser = locks["default"], root()
    for kind, put in PUTS.items():
        held = lock(kind, timeout=20)
        held.acquire()
        raw.delete(f"{key}:{kind}")
        put(raw, f"{key}:{kind}")
        if key == "lock-queue":
            assert held.extend(5, replace_ttl=True) is True  # who waits would be told
        other = lock(kind, timeout=20)
        for operation in (
            lambda other=other: other.acquire(blocking_timeout=0.01),
            lambda other=other: other.take_over("0" * 16),
            lambda kind=kind: backend.holder(kind),
            lambda kind=kind: backend.waiting(kind),
            lambda kind=kind: backend.force_release(kind),
            held.ensure_held,
            held.release,
        ):
            attempt(operation, kind)
    shown(browser, *PUTS)
    bystander()


@pytest.mark.parametrize("key", ["lock-index", "lock-fence", "lock-heard", "lock-audit"])
def test_shared_key_of_another_kind(key: str, raw: redis.Redis) -> None:
    """Another kind of data under a key of all locks is a clear error, until it is deleted."""
    backend, browser = locks["default"], root()
    for kind, put in PUTS.items():
        raw.delete(key)
        held, other = lock(f"{kind}:held", timeout=20), lock(kind, timeout=20)
        held.acquire()
        raw.delete(key)
        put(raw, key)
        if attempt(lambda other=other: other.acquire(blocking_timeout=0.01), kind) is True:
            attempt(other.release, kind)
        held.ensure_held()
        attempt(lambda held=held: held.extend(5), held.name)
        attempt(lambda: list(backend.holders()))
        attempt(lambda kind=kind: backend.history(kind), kind)
        attempt(held.release, held.name)
        attempt(lambda kind=kind: backend.force_release(kind), kind)
    shown(browser, "string", codes=(0, 1, 2, 3))
    raw.delete(key)
    with lock("string", timeout=20, blocking_timeout=0) as held:
        held.ensure_held()


# The last fence.


@pytest.mark.parametrize("number", ["x", "1.5", "9" * 19])
def test_fence_of_another_program(number: str, raw: redis.Redis) -> None:
    """What can't be a fence is passed over or refused; fences go on rising."""
    raw.set("lock-fence", number)
    held = lock(VICTIM, timeout=20)
    if attempt(held.acquire) is not True:
        raw.delete("lock-fence")
        assert held.acquire(blocking_timeout=0)
    first = held.fence
    held.release()
    with lock(VICTIM, timeout=20) as held:
        assert 10**15 < first < held.fence < 2**63
        assert locks["default"].holder(VICTIM).fence == held.fence


# The queue of waiters.

PROCESS = "c0-1"
ENTRIES = [
    b"",
    b"a b",
    b"\xff\xfe",
    b"abc 0 - {}",
    b"abc 99999999999999999999 - {}",
    b"abc 5000 no record",
    b"t" * 100_000 + b" 5000 - {}",
    b"abc 5000 - " + b"[" * 100_000,
    b'abc 5000 7 {"host":"\\ud800","metadata":{"\\udfff":[]}}',
    b'abc 5000 - {"pid":' + b"9" * 5000 + b"}",
]


def write_queue(raw: redis.Redis) -> None:
    """Write what is no queue, before all who wait."""
    raw.zadd(f"lock-queue:{VICTIM}", {PROCESS: 1, b"\xff": 2, "": 3, "@": 4})
    raw.zadd("lock-heard", {PROCESS: time.time() * 1000, b"\xff": time.time() * 1000})
    entries = {entry: number for number, entry in enumerate(ENTRIES, 1)}
    raw.zadd(f"lock-waiters:{PROCESS}:{VICTIM}", entries)


def test_queue_entries_of_other_programs(raw: redis.Redis, bystander: Callable[[], None]) -> None:
    """They are shown as far as they can be read, and passed over at the hand-off."""
    browser, other = root(), lock(VICTIM, timeout=20)
    with lock(VICTIM, timeout=20):
        write_queue(raw)
        assert len(locks["default"].waiting(VICTIM)) in range(5)  # one for each token
        shown(browser, VICTIM)
        waiting = Background(lambda: other.acquire(blocking_timeout=15))
        eventually(lambda: waiters(VICTIM) in (1, len(ENTRIES) + 1))
        bystander()
    assert waiting.outcome() is True
    other.release()
    write_queue(raw)
    with lock(VICTIM, timeout=20, blocking_timeout=0):  # nobody of the queue has it
        pass


# The index and the audit.


def test_index_members_of_other_programs(raw: redis.Redis, bystander: Callable[[], None]) -> None:
    """What is no name is passed over in lists."""
    browser = root()
    strange = [b"", b"\xff\xfe", b"a\nb", b"\x00", b"x" * (MAX_NAME_LENGTH + 1), "\u202e".encode()]
    end = float("inf")
    for number, member in enumerate([*strange, b"nobody's"]):
        raw.zadd("lock-index", {member: end if number % 2 else 10**15 + number})
        raw.set(b"lock:" + member, b"253402300800000 " + b"a" * 32 + b" 1 1 {}")
    raw.delete("lock:nobody's")
    held = [lock(f"{VICTIM}:{number}", timeout=20) for number in range(3)]
    for item in held:
        item.acquire()
    raw.zadd("lock-index", {f"{VICTIM}:0": "1.5e15", f"{VICTIM}:1": "inf", f"{VICTIM}:2": "-inf"})
    found = {holder.name for holder in locks["default"].holders()}
    assert found == {"\u202e", f"{VICTIM}:0", f"{VICTIM}:1", BYSTANDER}
    said = shown(browser, f"{VICTIM}:0")
    assert f"{VICTIM}:1" in said
    bystander()


def test_audit_entries_of_other_programs(raw: redis.Redis, bystander: Callable[[], None]) -> None:
    """They are shown as far as they can be read."""
    browser = root()
    for fields in (
        {"a": "b"},
        {b"\xff": b"\xfe", "event": b"\xff"},
        {"event": "freed", "name": VICTIM, "fence": "x", "pid": "٣", "reason": "\x1b[2J\n"},
        {"event": "freed", "name": b"\xff\xfe", "fence": "9" * 5000, "pid": "9" * 5000},
        {"event": "force_released", "name": VICTIM, "by": "y" * 100_000, "host": "\u202e"},
        {"event": "", "name": "", "token_id": "", "host": "", "task_id": "z", "task_name": ""},
    ):
        raw.xadd("lock-audit", fields)
    raw.xadd("lock-audit", {"event": "freed", "name": VICTIM}, id="9999999999999999-5")
    assert len(locks["default"].history()) == 7
    assert len(locks["default"].history(VICTIM)) == 3
    shown(browser, VICTIM)
    bystander()


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
    waiting = Background(lambda: second.acquire(blocking_timeout=15))
    eventually(lambda: waiters(VICTIM) == 1)
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


# Words that callers pass on: names, metadata, boxes, patterns.

ALPHABET = [
    *"aZ09 :*?[]{}()^$%\\/'\"<>&#|~`!@-_=+,.;",
    *"éß鎖🔒\u00a0\u0301\u200b\u2028\u202e\ufeff\U0010ffff\ue000",
    *"\n\r\t\x00\x1b\x7f\x9b\ud800\udfff",
]


def words(count: int, longest: int) -> Iterator[str]:
    """Yield words by chance, the same in each run."""
    chance = random.Random(20240229)
    for _ in range(count):
        yield "".join(chance.choices(ALPHABET, k=chance.randint(1, longest)))


def test_names(raw: redis.Redis) -> None:
    """A name is refused at once, or it works exactly as it is written."""
    backend, browser = locks["default"], root()
    good = []
    longest = [letter * MAX_NAME_LENGTH for letter in "x🔒"]
    for name in [*words(40, 6), *longest, "{", "}{", "..", "%00"]:
        try:
            check_name(name)
        except ValueError:
            for refuse in (lock, backend.holder, backend.waiting, backend.history):
                with pytest.raises(ValueError, match="name"):
                    refuse(name)
            continue
        if name in good:
            continue
        good.append(name)
        held = lock(name, timeout=20, metadata={name[:40]: name[:40]})
        assert held.acquire(blocking=False)
        assert not lock(name).acquire(blocking=False)
        holder = backend.holder(name)
        assert (holder.name, holder.metadata) == (name, {name[:40]: name[:40]})
        assert backend.waiting(name) == []
    assert len(good) > 15
    assert sorted(holder.name for holder in backend.holders()) == sorted(good)
    shown(browser, *good[:: len(good) // 3])
    for name in good:
        assert backend.force_release(name, by=name[:500], reason=name[:500]).name == name
        assert backend.history(name, 1)[0].by == name[:500].strip()
    shown(browser)
    assert not raw.keys("lock:*")


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
