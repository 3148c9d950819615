"""``manage.py locks doctor``: what it finds on servers that are well, and on those that are not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any
from unittest.mock import ANY

import pytest
import redis
from celery import Celery
from django.test import override_settings

from django_redis_lock import lock, locks
from django_redis_lock.celery import single_instance_task
from django_redis_lock.console import server
from django_redis_lock.console.permissions import _Trial
from example_project.embedded import EmbeddedServer
from tests import celery_app
from tests.console import Screen, command
from tests.test_docs import acl_rule
from tests.tools import counted, eventually

Findings = dict[str, list[dict[str, Any]]]


@pytest.fixture
def patient(own_server: EmbeddedServer, settings: Any) -> Iterator[redis.Redis]:
    """A server of the test's own that keeps the locks; a client of its administrator."""
    settings.LOCKS = {"default": {"LOCATION": f"{own_server.url(1)}?socket_timeout=7"}}
    with redis.Redis.from_url(own_server.url(1), decode_responses=True) as client:
        yield client
        client.config_set("appendonly", "no")  # a server that writes its first one does not exit
    locks.reset()


def examine() -> tuple[int, Findings]:
    """Run the doctor; return its exit code, and its findings by what was examined."""
    done = command("doctor", "--format", "json")
    found: Findings = {}
    for finding in json.loads(done.out):
        found.setdefault(finding["check"], []).append(finding)
    return done.code, found


def only(found: Findings, check: str) -> tuple[str, str, str]:
    """Return status, finding and remedy of an examination that has one finding."""
    (finding,) = found[check]
    return finding["status"], finding["found"], finding["remedy"]


def test_server_that_is_well(patient: redis.Redis) -> None:
    """Every examination is there, ok or a warning with its remedy; the exit code is 0."""
    patient.config_set("appendonly", "yes")
    code, found = examine()
    assert code == 0
    assert list(found) == [
        *["settings", "server", "version", "round trip", "clock", "eviction", "persistence"],
        *["replicas", "timeout", "permissions", "leases"],
    ]
    for finding in chain(*found.values()):
        if finding["check"] not in ("leases", "round trip"):
            assert (finding["status"], finding["remedy"]) == ("ok", ""), finding
            assert finding["using"] == "default"
    assert re.fullmatch(r"127\.0\.0\.1:\d+ database 1 answers", only(found, "server")[1])
    assert re.fullmatch(r"Valkey \d+\.\d+\.\d+", only(found, "version")[1])
    assert "after 7 s" in only(found, "timeout")[1]


def test_examination_leaves_nothing_and_disturbs_nobody(patient: redis.Redis) -> None:
    """Keys, audit, fence and held locks are as they were; so on an empty server."""
    command("doctor")
    eventually(lambda: patient.keys("*") == [])
    with lock("a", 60) as held:
        assert not lock("a", blocking_timeout=0.02).acquire()
        locks["default"].force_release("b")
        before = {key: patient.dump(key) for key in patient.keys("*")}
        command("doctor")
        eventually(lambda: len(patient.keys("*")) == len(before))
        assert {key: patient.dump(key) for key in patient.keys("*")} == before
        held.ensure_held()


def test_eviction_is_found(patient: redis.Redis) -> None:
    """A policy that may throw locks out is a warning, and a failure once there is a limit."""
    patient.config_set("maxmemory-policy", "allkeys-lru")
    code, found = examine()
    assert (code, only(found, "eviction")[0]) == (0, "warn")
    patient.config_set("maxmemory", "1gb")
    code, found = examine()
    assert code == 1
    status, told, remedy = only(found, "eviction")
    assert (status, "allkeys-lru" in told) == ("fail", True)
    assert "maxmemory-policy noeviction" in remedy
    patient.config_set("maxmemory-policy", "volatile-ttl")
    assert only(examine()[1], "eviction")[0] == "fail"


def test_full_memory_is_found(patient: redis.Redis) -> None:
    """A server whose memory is used up is told of before it refuses, and when it does."""
    used = int(patient.info("memory")["used_memory"])
    patient.config_set("maxmemory", str(int(used * 1.08)))
    status, told, remedy = only(examine()[1], "memory")
    assert (status, "of maxmemory" in told, "raise maxmemory" in remedy) == ("warn", True, True)
    patient.config_set("maxmemory", "1mb")
    code, found = examine()
    assert code == 1
    assert any("maxmemory" in finding["found"] for finding in found["permissions"])


def test_missing_persistence_is_found(patient: redis.Redis) -> None:
    """Without an append-only file a restart forgets the locks."""
    status, _, remedy = only(examine()[1], "persistence")
    assert (status, "appendonly yes" in remedy) == ("warn", True)


@pytest.mark.parametrize(
    ("fsync", "survives"),
    [
        ("always", "locks outlive a restart and a power loss"),
        ("everysec", "a power loss can lose the last second (appendfsync everysec)"),
        ("no", "a power loss can lose the last half minute or so"),
    ],
)
def test_persistence_promises_no_more_than_the_disk_has(
    patient: redis.Redis, fsync: str, survives: str
) -> None:
    """An append-only file keeps what has reached the disk: all of it only with ``always``."""
    patient.config_set("appendonly", "yes")
    patient.config_set("appendfsync", fsync)
    assert only(examine()[1], "persistence") == ("ok", ANY, "")
    assert survives in only(examine()[1], "persistence")[1]


def test_persistence_without_config_names_both_possibilities(
    patient: redis.Redis, user: Callable[[list[str]], redis.Redis]
) -> None:
    """A user who may run INFO and not CONFIG is told what can be lost at the least."""
    patient.config_set("appendonly", "yes")
    user([*acl_rule(), "+info"])
    status, told, _ = only(examine()[1], "persistence")
    assert (status, "the last second, or more if appendfsync is no" in told) == ("ok", True)


def test_replica_is_found(patient: redis.Redis, own_server: EmbeddedServer) -> None:
    """A LOCATION that leads to a replica fails; a primary counts its replicas."""
    with EmbeddedServer("--replicaof", f"127.0.0.1 {own_server.port}") as replica:
        eventually(lambda: patient.info("replication")["connected_slaves"] == 1)
        assert "1; a failover can forget" in only(examine()[1], "replicas")[1]
        with redis.Redis.from_url(replica.url()) as client:
            eventually(lambda: client.info("replication")["master_link_status"] == "up")
        with override_settings(LOCKS={"default": {"LOCATION": replica.url()}}):
            code, found = examine()
            locks.reset()
    assert code == 1
    status, told, remedy = only(found, "replicas")
    assert (status, str(own_server.port) in told) == ("fail", True)
    assert "primary" in remedy
    assert only(found, "permissions")[0] == "ok"


def test_clock_that_was_set_back_is_found(patient: redis.Redis) -> None:
    """Fences ahead of the clock tell that it was set back; garbage there is none."""
    seconds, _ = patient.time()
    patient.set("lock-fence", (seconds + 3600) * 1_000_000)
    status, told, _ = only(examine()[1], "fence")
    assert (status, told.split()[4]) in [("warn", "1h00m"), ("warn", "59m59s")]
    patient.set("lock-fence", "garbage")
    assert "fence" not in examine()[1]


def test_clock_and_distance_are_judged(
    patient: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow round trip and a skewed clock are warnings with a remedy."""
    monkeypatch.setattr(server, "SLOW", 0.0)
    monkeypatch.setattr(server, "SKEW", -1.0)
    code, found = examine()
    assert code == 0
    assert only(found, "round trip")[0] == only(found, "clock")[0] == "warn"
    assert "NTP" in only(found, "clock")[2]


@pytest.mark.parametrize(
    ("info", "status"),
    [
        ({"redis_version": "6.0.20"}, "fail"),
        ({"redis_version": "6.2.0"}, "ok"),
        ({"redis_version": "7.2.4", "valkey_version": "7.0.9"}, "fail"),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.1"}, "ok"),
        ({}, "fail"),
    ],
)
def test_versions_are_judged(
    patient: redis.Redis, monkeypatch: pytest.MonkeyPatch, info: dict[str, str], status: str
) -> None:
    """Servers that are too old fail, with the version to upgrade to."""
    asked = redis.Redis.info
    monkeypatch.setattr(
        redis.Redis, "info", lambda self, part: info if part == "server" else asked(self, part)
    )
    got, _, remedy = only(examine()[1], "version")
    assert got == status
    assert ("Upgrade to" in remedy) is (status == "fail")


def test_missing_timeout_is_found(
    patient: redis.Redis, own_server: EmbeddedServer, settings: Any
) -> None:
    """Without a timeout a hanging server hangs its callers."""
    settings.CACHES = {
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": own_server.url(2),
            "OPTIONS": {"CONNECTION_POOL_KWARGS": {"socket_timeout": None}},
        }
    }
    settings.LOCKS = {"default": {"LOCATION": "locks"}}
    status, _, remedy = only(examine()[1], "timeout")
    assert (status, "SOCKET_TIMEOUT" in remedy) == ("warn", True)


def test_shared_database_is_found(
    patient: redis.Redis, own_server: EmbeddedServer, settings: Any
) -> None:
    """A cache in the database of the locks is what the system check tells."""
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": own_server.url(1)}
    }
    locks.reset()
    status, told, remedy = only(examine()[1], "settings")
    assert (status, "W001" in told, "database of their own" in remedy) == ("warn", True, True)


def test_other_backends_are_told(settings: Any) -> None:
    """Backends without a server are for tests, and the doctor says so."""
    kinds = {"locmem": "LocMemLockBackend", "dummy": "DummyLockBackend"}
    settings.LOCKS = {
        alias: {"BACKEND": f"django_redis_lock.backends.{alias}.{kind}"}
        for alias, kind in kinds.items()
    }
    code, found = examine()
    assert code == 0
    assert [finding["status"] for finding in found["server"]] == ["warn", "warn"]
    assert all("RedisLockBackend" in finding["remedy"] for finding in found["server"])


# Permissions.


@pytest.fixture
def user(own_server: EmbeddedServer, settings: Any) -> Iterator[Callable[[list[str]], redis.Redis]]:
    """Give the locks a user with a rule; return a client of the administrator."""
    settings.LOCKS = {
        "default": {"LOCATION": f"redis://locker:secret@127.0.0.1:{own_server.port}/1"}
    }
    with redis.Redis.from_url(own_server.url(1), decode_responses=True) as admin:

        def become(rule: list[str]) -> redis.Redis:
            admin.execute_command("ACL", "SETUSER", "locker", "reset", *rule)
            return admin

        yield become
    locks.reset()


def test_documented_user_has_all_permissions(user: Callable[[list[str]], redis.Redis]) -> None:
    """A user with the documented rule passes; what it may not look at is a warning, not more."""
    admin = user(acl_rule())
    with counted(admin) as counts:
        code, found = examine()
    assert code == 0
    assert only(found, "permissions")[0] == "ok"
    assert {check for check in found if found[check][0]["status"] == "warn"} >= {
        *["version", "eviction", "persistence", "replicas"]
    }
    assert "administrator" in only(found, "version")[2]
    tried = {command for command, calls in counts.items() if calls}
    allowed = {word[1:] for word in acl_rule() if word.startswith("+")}
    assert allowed <= tried


def test_every_needed_command_is_tried(patient: redis.Redis) -> None:
    """What is tried is what the documented rule allows, no more and no less."""
    trial = _Trial(patient, locks["default"])
    assert trial.run() == []
    assert trial.commands == {word[1:] for word in acl_rule() if word.startswith("+")}


@pytest.mark.parametrize("wait", ["blpop", "poll"])
def test_each_waiting_scheme_needs_commands_of_its_own(
    wait: str, user: Callable[[list[str]], redis.Redis], settings: Any
) -> None:
    """What is tried is what the documented rule of the scheme allows; what is missing is named."""
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "OPTIONS": {"WAIT": wait}}}
    rule = acl_rule(wait)
    user(rule)
    trial = _Trial(redis.Redis(connection_pool=locks["default"].pool), locks["default"])
    assert (trial.run(), trial.failed) == ([], {})
    assert trial.commands == {word[1:] for word in rule if word.startswith("+")}
    for word in {*rule} - {*acl_rule(), "resetchannels"}:
        user([item for item in rule if item != word])
        assert trial.run() == [word]


@pytest.mark.parametrize(
    "word", [word for word in acl_rule() if word[0] in "+~&" and word not in ("+select", "+time")]
)
def test_missing_permission_is_found_and_named(
    word: str, user: Callable[[list[str]], redis.Redis]
) -> None:
    """Each word of the rule that a user lacks is named, in the command that gives it."""
    admin = user([item for item in acl_rule() if item != word])
    code, found = examine()
    assert code == 1
    status, told, remedy = only(found, "permissions")
    assert (status, remedy) == ("fail", f"ACL SETUSER locker {word}")
    assert word in told
    assert "secret" not in told
    eventually(lambda: admin.keys("*doctor*") == [])


def test_user_who_may_do_nothing(user: Callable[[list[str]], redis.Redis]) -> None:
    """A server that refuses everything is a line, and no traceback."""
    user(["on", ">secret", "+select"])
    code, found = examine()
    assert (code, only(found, "server")[0]) == (1, "fail")
    user(["on", ">other", "+@all", "~*", "&*"])
    locks.reset()  # a connection that is open stays logged in
    code, found = examine()
    assert (code, only(found, "server")[0]) == (1, "fail")


def test_user_who_may_add_but_not_remove_leaves_nothing(
    user: Callable[[list[str]], redis.Redis],
) -> None:
    """What could not be removed again is not tried."""
    words = {"+del", "+lpop", "+lrem"}
    admin = user([item for item in acl_rule() if item not in words])
    remedy = only(examine()[1], "permissions")[2]
    assert set(remedy.split()[3:]) == words
    eventually(lambda: admin.keys("*doctor*") == [])


# Leases of Celery tasks.


@pytest.fixture
def shop() -> Iterator[Celery]:
    """A Celery application of the test's own."""
    app = Celery("doctors", broker="memory://", set_as_current=True)
    yield app
    celery_app.app.set_current()


def test_leases_that_are_too_short_are_found(shop: Celery, patient: redis.Redis) -> None:
    """A fixed lease that the task can outlive, and one without end, are warnings."""

    def define(name: str, timeout: Any = "renewed", **options: Any) -> None:
        guard = single_instance_task if timeout == "renewed" else single_instance_task(timeout)

        def work() -> None: ...

        shop.task(name=name, **options)(guard(work))

    define("renewed")
    define("limited", 600, time_limit=300)
    define("unlimited", 600)
    define("outlived", 60, time_limit=3600)
    define("endless", None)

    @shop.task(name="unguarded")
    def unguarded() -> None: ...

    code, found = examine()
    assert code == 0
    told = {finding["found"].split()[0]: finding for finding in found["leases"]}
    ours = {"renewed", "limited", "unlimited", "outlived", "endless", "unguarded"}
    warned = {name for name, finding in told.items() if finding["status"] == "warn"}
    assert warned & ours == {"endless", "outlived", "unlimited"}
    (sound,) = [finding for finding in told.values() if finding["status"] == "ok"]
    assert "guarded tasks have leases that last" in sound["found"]
    assert "may run for 1h00m, and its lease ends after 1m00s" in told["outlived"]["found"]
    assert "has no time limit" in told["unlimited"]["found"]
    assert "time_limit below 10m00s" in told["unlimited"]["remedy"]
    shop.conf.task_time_limit = 500
    words = " ".join(finding["found"] for finding in examine()[1]["leases"])
    assert "unlimited" not in words
    assert "outlived" in words


# How it looks.


def test_lines_are_wrapped_on_a_terminal(server: EmbeddedServer) -> None:
    """At 80 columns the text goes on below itself; the statuses stand at the beginning."""
    with Screen("doctor", "--using", "default", columns=80) as screen:
        assert screen.end() == 0
        lines = screen.plain.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "LOCKS['default']"
    assert any(line.startswith("  ok    server       127.0.0.1:") for line in lines)
    remedies = [line for line in lines if line.lstrip().startswith("-> ")]
    assert remedies
    assert len({line.index("->") for line in remedies}) == 1
