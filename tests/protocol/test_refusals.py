"""A refused forced release: nothing was released, or the lock is free and audited."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks, semaphore
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.operators import Outcome, Result, release_shown
from django_redis_lock.protocol.calls import ForceRelease, ask
from example_project.embedded import EmbeddedServer
from tests.tools import ROOT, enqueue, eventually, leave_no_lease, queue

REDIS = "django_redis_lock.backends.redis.RedisLockBackend"
CHANNEL = "lock-grant:c0-1"
UNCLAIMED = re.compile(r" \d+:\d+:c")
WAITER = '{"host":"far","pid":1}'


@pytest.fixture(scope="module")
def strict() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def raw(strict: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client that may do everything; its settings are undone."""
    with redis.Redis.from_url(strict.url(), decode_responses=True) as client:
        client.flushall()
        with client.pubsub() as waiter:  # whose process lives
            waiter.subscribe(CHANNEL)
            assert waiter.get_message(timeout=5)
            yield client
        client.replicaof("NO", "ONE")
        client.config_set("maxmemory", 0)
        client.config_set("min-replicas-to-write", 0)
    leave_no_lease()


def configure(settings: Any, strict: EmbeddedServer) -> None:
    """Two aliases for the same locks; "operator" is an ACL user of the server."""
    operator = strict.url().replace("://", "://operator:secret@")
    settings.LOCKS = {
        "default": {"BACKEND": REDIS, "LOCATION": strict.url(), "TIMEOUT": 30},
        "operator": {"BACKEND": REDIS, "LOCATION": operator, "TIMEOUT": 30},
    }


def become(raw: redis.Redis, words: list[str]) -> None:
    raw.execute_command("ACL", "SETUSER", "operator", "reset", "on", ">secret", *words)


def rule() -> list[str]:
    text = (ROOT / "docs/how-to/secure-the-server.md").read_text()
    (found,) = re.findall(r"^ACL SETUSER locker on >secret (.*)$", text, re.MULTILINE)
    return str(found).split()


def take(name: str) -> Any:
    lock(name, timeout=30).acquire()
    shown = locks["default"].holder(name)
    assert shown
    return shown


def release(shown: Any, using: str = "default") -> Outcome:
    (outcome,) = release_shown([replace(shown, using=using)], by="ada", reason="stuck")
    return outcome


@pytest.mark.parametrize("waiting", [False, True])
def test_user_that_lacks_a_word(
    strict: EmbeddedServer, raw: redis.Redis, settings: Any, waiting: bool
) -> None:
    """Whichever permission is missing, a lock is free and audited, or neither."""
    configure(settings, strict)
    words = rule()
    results = {}
    for word in words[1:]:
        if not word.startswith(("+", "~")):
            continue
        raw.flushall()
        shown = take("a")
        if waiting:
            enqueue(raw, "a", WAITER)
        become(raw, [item for item in words if item != word])
        outcome = release(shown, "operator")
        locks["operator"].close()
        now = locks["default"].holder("a")
        freed = now is None or now.token_id != shown.token_id
        entries = locks["default"].history("a")
        results[word] = outcome.result
        assert outcome.result is (Result.RELEASED if freed else Result.REFUSED), (word, outcome)
        assert len(entries) == freed, word
        assert "secret" not in outcome.error
    assert results["+del"] is (Result.RELEASED if waiting else Result.REFUSED)
    assert results["+xadd"] is results["~lock-audit"] is Result.REFUSED
    free = {word for word, result in results.items() if result is Result.RELEASED}
    assert {"+zadd", "+publish", "+zcard"} <= free


@pytest.mark.parametrize("setting", ["replica", "min-replicas-to-write", "another program's"])
def test_server_that_can_not_be_written(
    strict: EmbeddedServer,
    raw: redis.Redis,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
) -> None:
    """A replica, too few replicas, or other data as the audit: refused, and nothing changed."""
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", (0.0,))
    configure(settings, strict)
    shown = take("a")
    before = raw.get("lock:a"), raw.zrange("lock-index", 0, -1)
    if setting == "replica":
        raw.replicaof("127.0.0.1", 1)
    elif setting == "min-replicas-to-write":
        raw.config_set(setting, 1)
    else:
        raw.set("lock-audit", setting)
    outcome = release(shown)
    assert outcome.result is Result.REFUSED
    assert re.search("READONLY|read only|replicas|WRONGTYPE", outcome.error)
    assert (raw.get("lock:a"), raw.zrange("lock-index", 0, -1)) == before


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("way", ["forced", "released", "released past a silent waiter"])
def test_release_on_a_full_server(
    strict: EmbeddedServer, raw: redis.Redis, settings: Any, waiting: bool, way: str
) -> None:
    """It frees the lock or hands it off, and is audited, though nothing else can be written."""
    configure(settings, strict)
    held = lock("a", timeout=30)
    held.acquire()
    if "silent" in way:
        enqueue(raw, "a", WAITER, process="c0-0")
        raw.zrem("lock-seen", "c0-0")
    if waiting:
        enqueue(raw, "a", WAITER)
    raw.config_set("maxmemory", 1)
    with pytest.raises(LockUnavailable, match="memory"):
        lock("b").acquire(blocking=False)
    if way == "forced":
        assert release(locks["default"].holder("a")).result is Result.RELEASED
        (entry,) = locks["default"].history("a")
        assert (entry.event, entry.by, entry.reason) == ("force_released", "ada", "stuck")
    else:
        held.release()
    now = raw.get("lock:a")
    assert now.startswith("t1 ") if waiting else now is None


@pytest.mark.parametrize("make", [lock, partial(semaphore, limit=1)], ids=["lock", "permit"])
@pytest.mark.parametrize("forced", [False, True])
def test_waiter_claims_its_lock_on_a_full_server(
    strict: EmbeddedServer, raw: redis.Redis, settings: Any, forced: bool, make: Any
) -> None:
    """A lock that was handed off is claimed, renewed, released, and goes to the next waiter."""
    configure(settings, strict)
    held, heirs, beside = make("a"), [make("a"), make("a")], lock("b", timeout=30)
    assert held.acquire()
    assert beside.acquire()
    waiting = queue(*heirs)
    raw.config_set("maxmemory", 1)
    with pytest.raises(LockUnavailable, match="memory"):
        make("c").acquire(blocking=False)
    if forced:
        assert release(locks["default"].holder("a")).result is Result.RELEASED
    else:
        held.release()
    for heir, waiter in zip(heirs, waiting, strict=True):
        assert waiter.outcome() is True
        eventually(
            lambda: not UNCLAIMED.search(str(raw.hgetall("lock-permits:a") or raw.get("lock:a")))
        )
        heir.ensure_held()
        heir.reacquire()
        beside.extend(30, replace_ttl=True)
        heir.release()
    beside.downgrade()
    beside.release()
    assert raw.exists("lock:a", "lock-permits:a", "lock:b", "lock-permits:b") == 0


def test_what_may_not_be_read_is_not_shown_as_none(
    strict: EmbeddedServer, raw: redis.Redis, settings: Any
) -> None:
    """The number of waiters, their entries and the holder are unknown then."""
    configure(settings, strict)
    take("a")
    enqueue(raw, "a", WAITER)
    become(raw, [word for word in rule() if word not in ("+zcard", "+zrange")])
    assert locks["default"].holder("a").waiters == 1
    assert locks["operator"].holder("a").waiters is None
    with pytest.raises(LockUnavailable, match="LOCKS"):
        locks["operator"].waiting("a")
    become(raw, [word for word in rule() if word != "+get"])
    with pytest.raises(LockUnavailable):
        locks["operator"].holder("a")


@pytest.mark.parametrize(
    ("answers", "not_applied"),
    [
        (["refused", "refused"], True),
        (["lost", "refused"], False),
        (["refused", "lost"], False),
        (["again", "refused"], False),
        (["refused", "unsent"], True),
    ],
)
def test_refusal_proves_nothing_after_a_reply_was_lost(
    answers: list[str], not_applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if each sending was refused is it known that none was carried out."""
    tries = len(answers) - answers.count("again")
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", (0.0,) * (tries - 1))
    call = ForceRelease("a", "0" * 16, {"event": "force_released"}, 10)
    asking = ask(call)
    next(asking)
    with pytest.raises(LockUnavailable) as caught:
        for answer in answers:
            if answer != "unsent":  # as where the server refuses the connection
                call.sending()
            if answer != "again":  # as a client does by itself where a script was not known
                error = LockUnavailable("no")
                error.not_applied = answer in ("refused", "unsent")
                asking.throw(error)
                next(asking)  # after the pause
    assert caught.value.not_applied is not_applied
