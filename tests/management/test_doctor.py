"""``manage.py locks doctor`` on healthy servers and on faulty ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.management import doctor
from example_project.embedded import EmbeddedServer
from tests.tools import eventually, leave_no_lease
from tests.tools.console import command
from tests.tools.docs import DOCS, acl_rule

pytestmark = pytest.mark.usefixtures("no_workers")

GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
Findings = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedServer]:
    """A server for the tests of this module, which reconfigure it while it runs."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def target(own_server: EmbeddedServer, settings: Any) -> Iterator[redis.Redis]:
    """The server, as it was started, keeps the locks; a client of its administrator."""
    settings.LOCKS = {"default": {"LOCATION": own_server.url(1)}}
    options = ("maxmemory", "maxmemory-policy", "appendonly")
    with redis.Redis.from_url(own_server.url(1), decode_responses=True) as client:
        client.flushall()
        before = [client.config_get(option) for option in options]
        yield client
        for each in before:
            client.config_set(*chain(*each.items()))
    leave_no_lease()


def examine(*words: str) -> tuple[int, Findings]:
    """Run the doctor; return its exit code, and its findings by what was checked."""
    done = command("doctor", "--format", "json", *words)
    found: Findings = {}
    frame = json.loads(done.out)
    assert (frame["schema"], type(frame["not_known"])) == (1, list)
    for finding in frame["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return done.code, found


def only(found: Findings, check: str) -> tuple[str, str, str]:
    """Return status, finding and remedy of a check that has one finding."""
    (finding,) = found[check]
    return finding["status"], finding["found"], finding["remedy"]


def test_healthy_server(target: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    target.config_set("appendonly", "yes")
    code, found = examine()
    assert code == 0
    assert list(found) == [
        *["settings", "server", "version", "round trip", "eviction", "persistence", "replicas"],
        "self-test",
    ]
    for finding in chain(*found.values()):
        if finding["check"] != "round trip":
            assert (finding["status"], finding["remedy"]) == ("ok", ""), finding
        assert finding["using"] == "default"
    assert re.fullmatch(r"127\.0\.0\.1:\d+ database 1 answers", only(found, "server")[1])
    assert re.fullmatch(r"(Valkey|Redis) \d+\.\d+\.\d+", only(found, "version")[1])
    monkeypatch.setattr(doctor, "SLOW", 0.0)
    code, found = examine()
    assert (code, only(found, "round trip")[0]) == (0, "warn")
    done = command("doctor", "--fail-level", "warn")
    assert (done.code, "1 of 8 checks failed or warned" in done.err) == (1, True)


def test_doctor_leaves_nothing_behind(target: redis.Redis) -> None:
    def connected() -> set[str]:
        return {each["id"] for each in target.client_list()}

    earlier = connected()
    with lock("a", 60) as held:
        before = {key: target.dump(key) for key in target.keys("*:a")}
        locks["default"].close()
        command("doctor")
        assert {key: target.dump(key) for key in target.keys("*:*")} == before
        held.ensure_held()
        assert [each.name for each in locks["default"].holders()] == ["a"]
    assert locks["default"].history() == []
    locks["default"].close()
    eventually(lambda: connected() <= earlier)


EVICTS = {"maxmemory_policy": "allkeys-lru"}
VOLATILE = {"maxmemory_policy": "volatile-ttl", "evicted_keys": 3}
OLD = {"valkey_version": None, "redis_version": "6.0.20"}
BROKEN = {"aof_enabled": 1, "aof_last_write_status": "err"}
REPLICA = {"role": "slave", "master_host": "h", "master_port": 1}


@pytest.mark.parametrize(
    ("check", "fields", "status", "told", "remedy"),
    [
        ("version", OLD, "fail", "Redis 6.0.20", "Upgrade to Redis 6.2"),
        ("version", {"valkey_version": "7.0.9"}, "fail", "Valkey 7.0.9", "Upgrade to Valkey 7.2"),
        ("version", {"valkey_version": "8.0.1"}, "ok", "Valkey 8.0.1", ""),
        ("eviction", EVICTS, "warn", "held locks and parked tasks can be", "noeviction"),
        ("eviction", {**EVICTS, "maxmemory": 1}, "fail", "allkeys-lru", "noeviction"),
        ("eviction", VOLATILE, "fail", "volatile-ttl: held locks can be evicted", "CONFIG"),
        ("eviction", {"evicted_keys": 3}, "warn", "3 keys were evicted since", "RESETSTAT"),
        ("persistence", {}, "warn", "a restart loses held locks", "appendonly yes"),
        ("persistence", BROKEN, "fail", "aof_last_write_status is err", "the server's log"),
        ("replicas", {"connected_slaves": 2}, "ok", "2; a failover can lose", ""),
        ("replicas", REPLICA, "fail", "this is a replica of h:1", "to the primary"),
        ("cluster", {"cluster_enabled": 1}, "fail", "this is a cluster node", "as a list"),
    ],
)
def test_what_the_server_says_is_judged(
    target: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    check: str,
    fields: dict[str, Any],
    status: str,
    told: str,
    remedy: str,
) -> None:
    """A failure for which a lock would fail as well spares the self-test."""
    asked = redis.Redis.info

    def info(self: redis.Redis, part: str) -> dict[str, Any]:
        answer = {**asked(self, part), **fields}
        return {key: value for key, value in answer.items() if value is not None}

    monkeypatch.setattr(redis.Redis, "info", info)
    code, found = examine()
    got = only(found, check)
    assert (code, got[0], told in got[1]) == (status == "fail", status, True)
    assert (remedy in got[2], bool(got[2])) == (True, status != "ok")
    spared = status == "fail" and check in ("replicas", "cluster")
    assert ("self-test" in found) is not spared


def test_backends_without_a_server(settings: Any) -> None:
    kinds = {"locmem": "LocMemLockBackend", "dummy": "DummyLockBackend"}
    settings.LOCKS = {
        alias: {"BACKEND": f"django_redis_lock.backends.{alias}.{kind}"}
        for alias, kind in kinds.items()
    }
    code, found = examine()
    assert code == 0
    assert [finding["status"] for finding in found["server"]] == ["warn", "warn"]
    assert all("RedisLockBackend" in finding["remedy"] for finding in found["server"])
    assert [finding["using"] for finding in found["self-test"]] == ["locmem"]


def test_one_wrong_entry_hides_no_other(target: redis.Redis, settings: Any) -> None:
    unknown = {"LOCATION": "redis://:secret@127.0.0.1:1/0?never=heard"}
    wrong = {"wrong": {"TIMEOUT": 0}, "missing": {"LOCATION": "nowhere"}, "unknown": unknown}
    settings.LOCKS = {**wrong, **settings.LOCKS}
    code, found = examine()
    assert code == 1
    failed = [each["using"] for each in found["settings"] if each["status"] == "fail"]
    assert failed == [*wrong]
    assert all(each["remedy"] for each in found["settings"] if each["status"] == "fail")
    assert "secret" not in str(found)
    assert only(found, "self-test")[0] == "ok"
    settings.LOCKS["down"] = {"LOCATION": "redis://:secret@127.0.0.1:1/0"}
    not_known = json.loads(command("doctor", "--format", "json").out)["not_known"]
    assert [one["using"] for one in not_known] == [*wrong, "down"]
    assert "127.0.0.1:1 database 0 could not be reached" in not_known[-1]["error"]


# The self-test.


@pytest.fixture
def user(target: redis.Redis, own_server: EmbeddedServer, settings: Any) -> Callable[..., None]:
    url = f"redis://locker:secret@127.0.0.1:{own_server.port}/1"
    settings.LOCKS = {"default": {"LOCATION": url}}

    def become(rule: list[str], without: str = "") -> None:
        words = [word for word in rule if word != without]
        target.execute_command("ACL", "SETUSER", "locker", "reset", *words)
        locks.reset()  # a connection that is open stays logged in

    return become


def test_documented_user_has_all_permissions(user: Callable[..., None]) -> None:
    """The documented rule passes; checks that it prevents are only a warning."""
    user(acl_rule())
    code, found = examine()
    assert (code, only(found, "self-test")[0]) == (0, "ok")
    status, told, remedy = only(found, "not known")
    assert (status, "administrator" in remedy) == ("warn", True)
    assert told.startswith("version, eviction, persistence, replicas, cluster: ")
    user(acl_rule(), "+set")
    assert command("list").err == "No locks are held.\n"  # it is not the server that refuses


@pytest.mark.parametrize("word", ["+evalsha", "+xadd", "+setnx", "~lock-queue:*", "~lock-limits"])
def test_missing_permission_is_found_and_named(
    word: str, target: redis.Redis, user: Callable[..., None], settings: Any
) -> None:
    rule = acl_rule()
    if word == "+setnx":
        text = (DOCS / "how-to/server-layouts.md").read_text()
        (line,) = re.findall(r"^ACL SETUSER locker (.*)$", text, re.MULTILINE)
        rule = line.split()
        settings.LOCKS = {"default": {**settings.LOCKS["default"], "BACKEND": GETSET}}
        user(rule)
        assert only(examine()[1], "self-test")[0] == "ok"
    user(rule, word)
    code, found = examine()
    status, told, remedy = only(found, "self-test")
    assert (code, status, "secret" in told) == (1, "fail", False)
    named = word[0] == "+" and "can't run this command" not in told  # as Redis 7.0 says of a script
    assert remedy == f"ACL SETUSER locker {word}" if named else "documentation" in remedy
    assert target.keys("lock:*") == []


def test_a_server_has_five_seconds_to_answer_whatever_the_settings_say(
    own_server: EmbeddedServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience, from_pool = list[float](), redis.Redis.from_pool

    def note(pool: redis.ConnectionPool) -> redis.Redis:
        patience.append(pool.connection_kwargs["socket_timeout"])
        return from_pool(pool)

    monkeypatch.setattr(redis.Redis, "from_pool", note)
    settings.LOCKS = {"default": {"LOCATION": own_server.url() + "?socket_timeout=60"}}
    examine()
    assert patience == [doctor.ANSWER_WITHIN]
