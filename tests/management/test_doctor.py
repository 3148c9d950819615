"""``manage.py locks doctor`` on healthy servers and on faulty ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pytest
import redis
from celery import Celery
from django.core.cache import InvalidCacheBackendError
from django.test import override_settings
from redis.sentinel import MasterNotFoundError

from django_redis_lock import lock, locks
from django_redis_lock.celery import single_instance_task
from django_redis_lock.management.commands.locks import Command
from django_redis_lock.management.console.doctor import access, server, targets
from django_redis_lock.management.console.doctor.permissions import Trial
from django_redis_lock.management.console.doctor.settings import sound_leases
from django_redis_lock.management.console.doctor.targets import Finding, Target
from example_project.embedded import EmbeddedServer
from tests.apps.celery.app import app as tests_app
from tests.tools import counted, eventually, leave_no_lease, taken_connections
from tests.tools.console import Screen, command
from tests.tools.docs import DOCS, acl_rule
from tests.tools.proxy import Proxy

GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
Findings = dict[str, list[dict[str, Any]]]


CHANGED = (
    *("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "maxclients", "bind"),
    *("protected-mode", "client-output-buffer-limit", "repl-diskless-sync-delay"),
)
"""The options of the server that tests change."""


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedServer]:
    """A server for the tests of this module, which reconfigure it while it runs."""
    with EmbeddedServer("--repl-diskless-sync-delay", "0") as server:
        yield server


@pytest.fixture
def target(
    own_server: EmbeddedServer, server: EmbeddedServer, settings: Any
) -> Iterator[redis.Redis]:
    """The server, as it was started, keeps the locks; a client of its administrator.

    That of the session, which has the caches and Celery's results, answers too.
    """
    settings.LOCKS = {"default": {"LOCATION": f"{own_server.url(1)}?socket_timeout=7"}}
    with redis.Redis.from_url(own_server.url(1), decode_responses=True) as client:
        client.flushall()
        client.config_resetstat()
        before = [client.config_get(option) for option in CHANGED]
        yield client
        for options in before:
            client.config_set(*chain(*options.items()))
    leave_no_lease()


def examine() -> tuple[int, Findings]:
    """Run the doctor; return its exit code, and its findings by what was examined."""
    done = command("doctor", "--format", "json")
    found: Findings = {}
    frame = json.loads(done.out)
    assert frame["schema"] == 1
    for finding in frame["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return done.code, found


def only(found: Findings, check: str) -> tuple[str, str, str]:
    """Return status, finding and remedy of an examination that has one finding."""
    (finding,) = found[check]
    return finding["status"], finding["found"], finding["remedy"]


def test_healthy_server(target: redis.Redis) -> None:
    """Every examination is reported as ok; the exit code is 0."""
    target.config_set("appendonly", "yes")
    target.config_set("appendfsync", "everysec")
    code, found = examine()
    assert code == 0
    assert list(found) == [
        *["settings", "timeout", "pool", "server", "version", "round trip", "clock", "eviction"],
        *["persistence", "replicas", "clients", "buffers", "access", "scripts", "channels"],
        *["permissions", "leases"],
    ]
    for finding in chain(*found.values()):
        if finding["check"] not in ("leases", "round trip"):
            assert (finding["status"], finding["remedy"]) == ("ok", ""), finding
            assert finding["using"] == "default"
    assert re.fullmatch(r"127\.0\.0\.1:\d+ database 1 answers", only(found, "server")[1])
    assert re.fullmatch(r"Valkey \d+\.\d+\.\d+", only(found, "version")[1])
    assert "after 7 s" in only(found, "timeout")[1]
    assert only(found, "settings")[1] == "valid; no cache shares the database of the locks"


def test_doctor_changes_nothing(target: redis.Redis) -> None:
    """Keys, audit, fence and held locks stay as they were; an empty server stays empty.

    The connections that it opened are closed.
    """
    connected = len(target.client_list())
    command("doctor")
    eventually(lambda: len(target.client_list()) == connected)
    eventually(lambda: target.keys("*") == [])
    with lock("a", 60) as held:
        assert not lock("a", blocking_timeout=0.02).acquire()
        locks["default"].force_release("b")
        before = {key: target.dump(key) for key in target.keys("*")}
        command("doctor")
        eventually(lambda: len(target.keys("*")) == len(before))
        assert {key: target.dump(key) for key in target.keys("*")} == before
        held.ensure_held()


def test_eviction_is_found(target: redis.Redis) -> None:
    """A policy that may evict locks is a warning, and a failure if maxmemory is set."""
    target.config_set("maxmemory-policy", "allkeys-lru")
    code, found = examine()
    assert (code, only(found, "eviction")[0]) == (0, "warn")
    target.config_set("maxmemory", "1gb")
    code, found = examine()
    assert code == 1
    status, told, remedy = only(found, "eviction")
    assert (status, "allkeys-lru" in told) == ("fail", True)
    assert "maxmemory-policy noeviction" in remedy
    target.config_set("maxmemory-policy", "volatile-ttl")
    assert only(examine()[1], "eviction")[0] == "fail"


def test_full_memory_is_found(target: redis.Redis) -> None:
    """Nearly full memory is a warning, and full memory a failure."""
    used = int(target.info("memory")["used_memory"])
    target.config_set("maxmemory", str(int(used * 1.08)))
    status, told, remedy = only(examine()[1], "memory")
    assert (status, "of maxmemory" in told, "raise maxmemory" in remedy) == ("warn", True, True)
    target.config_set("maxmemory", "1mb")
    code, found = examine()
    assert code == 1
    assert any("maxmemory" in finding["found"] for finding in found["permissions"])


def test_missing_persistence_is_found(target: redis.Redis) -> None:
    """No append-only file is a warning."""
    status, _, remedy = only(examine()[1], "persistence")
    assert (status, "appendonly yes" in remedy) == ("warn", True)


def test_persistence_promises_no_more_than_the_disk_has(target: redis.Redis) -> None:
    """What a power loss can lose depends on ``appendfsync``."""
    target.config_set("appendonly", "yes")
    for fsync, status, survives in (
        ("always", "ok", "locks survive a restart and a power loss"),
        ("everysec", "ok", "a power loss can lose the last second (appendfsync everysec)"),
        ("no", "warn", "a power loss can lose about the last 30 seconds"),
    ):
        target.config_set("appendfsync", fsync)
        found = only(examine()[1], "persistence")
        assert (found[0], survives in found[1]) == (status, True)
        assert ("appendfsync everysec" in found[2]) is (status == "warn")


def test_persistence_without_config_names_both_possibilities(
    target: redis.Redis, user: Callable[[list[str]], redis.Redis]
) -> None:
    """Without CONFIG the finding names the least and the most that can be lost."""
    target.config_set("appendonly", "yes")
    user([*acl_rule(), "+info"])
    status, told, _ = only(examine()[1], "persistence")
    assert (status, "the last second or more with appendfsync no" in told) == ("ok", True)


def test_replica_is_found(target: redis.Redis, own_server: EmbeddedServer) -> None:
    """A LOCATION that leads to a replica fails; a primary counts its replicas."""
    with EmbeddedServer("--replicaof", f"127.0.0.1 {own_server.port}") as replica:
        eventually(lambda: target.info("replication")["connected_slaves"] == 1)
        assert "1; a failover can lose" in only(examine()[1], "replicas")[1]
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


def test_clock_that_was_set_back_is_found(target: redis.Redis) -> None:
    """Fences ahead of the clock show that it was set back; an invalid fence is ignored."""
    seconds, _ = target.time()
    target.set("lock-fence", (seconds + 3600) * 1_000_000)
    status, told, _ = only(examine()[1], "fence")
    assert (status, told.split()[4]) in [("warn", "1h00m"), ("warn", "59m59s")]
    target.set("lock-fence", "garbage")
    assert "fence" not in examine()[1]


def test_clock_and_distance_are_judged(
    target: redis.Redis, monkeypatch: pytest.MonkeyPatch
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
    target: redis.Redis, monkeypatch: pytest.MonkeyPatch, info: dict[str, str], status: str
) -> None:
    """A server that is too old fails; the remedy names the version to upgrade to."""
    asked = redis.Redis.info
    monkeypatch.setattr(
        redis.Redis, "info", lambda self, part: info if part == "server" else asked(self, part)
    )
    got, _, remedy = only(examine()[1], "version")
    assert got == status
    assert ("Upgrade to" in remedy) is (status == "fail")


def test_missing_timeout_is_found(
    target: redis.Redis, own_server: EmbeddedServer, settings: Any
) -> None:
    """A missing socket timeout is a warning."""
    settings.CACHES = {
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": own_server.url(9),  # django-redis keeps one pool for each URL
            "OPTIONS": {"CONNECTION_POOL_KWARGS": {"socket_timeout": None}},
        }
    }
    settings.LOCKS = {"default": {"LOCATION": "locks"}}
    status, _, remedy = only(examine()[1], "timeout")
    assert (status, "SOCKET_TIMEOUT" in remedy) == ("warn", True)


def test_shared_database_is_found(
    target: redis.Redis, own_server: EmbeddedServer, settings: Any
) -> None:
    """The system check for a cache in the locks' database becomes a finding."""
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": own_server.url(1)}
    }
    locks.reset()
    status, told, remedy = only(examine()[1], "settings")
    assert (status, "W001" in told, "database of their own" in remedy) == ("warn", True, True)


def test_backends_without_a_server(settings: Any) -> None:
    """They are a warning, with the backend for production."""
    kinds = {"locmem": "LocMemLockBackend", "dummy": "DummyLockBackend"}
    settings.LOCKS = {
        alias: {"BACKEND": f"django_redis_lock.backends.{alias}.{kind}"}
        for alias, kind in kinds.items()
    }
    code, found = examine()
    assert code == 0
    assert [finding["status"] for finding in found["server"]] == ["warn", "warn"]
    assert all("RedisLockBackend" in finding["remedy"] for finding in found["server"])


def test_keys_that_were_evicted_are_found(target: redis.Redis) -> None:
    """Evicted keys are a failure, and after a change of policy a warning until RESETSTAT."""
    target.config_set("maxmemory-policy", "volatile-ttl")
    target.set("cached", "x", px=60_000)
    target.config_set("maxmemory", "1mb")
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        target.set("more", "y")
    target.config_set("maxmemory", "0")
    status, told, remedy = only(examine()[1], "eviction")
    assert (status, told.startswith("volatile-ttl: 1 keys were evicted")) == ("fail", True)
    assert "noeviction" in remedy
    target.config_set("maxmemory-policy", "noeviction")
    status, told, remedy = only(examine()[1], "eviction")
    assert (status, "1 keys were evicted" in told, "RESETSTAT" in remedy) == ("warn", True, True)


def test_fail_level_sets_the_exit_code(target: redis.Redis) -> None:
    """Warnings count only with ``--fail-level warn``; an unknown level is exit code 2."""
    assert command("doctor", "--fail-level", "fail").code == 0
    done = command("doctor", "--fail-level", "warn")
    assert (done.code, "examinations failed or warned" in done.err) == (1, True)
    with pytest.raises(SystemExit, match="2"):
        Command().run_from_argv(["manage.py", "locks", "doctor", "--fail-level", "ok"])
    assert command("doctor", "--using", "nobody").code == 2


@pytest.mark.parametrize("backend", ["redis.RedisLockBackend", "getset.GetSetLockBackend"])
def test_server_that_hangs_costs_one_timeout(
    backend: str, own_server: EmbeddedServer, settings: Any
) -> None:
    """It is one failure; neither another examination nor one of its caches asks it again."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": own_server.url(3)}
    settings.CACHES = {"default": cache}
    settings.LOCKS = {
        "default": {
            "BACKEND": f"django_redis_lock.backends.{backend}",
            "LOCATION": f"{own_server.url(1)}?socket_timeout=0.5",
        }
    }
    before = taken_connections(own_server.url())
    own_server.pause()
    try:
        code, found = examine()
    finally:
        own_server.resume()
    assert (code, only(found, "server")[0]) == (1, "fail")
    assert "does not answer: Timeout" in only(found, "server")[1]
    assert list(found) == ["settings", "timeout", "pool", "server", "leases"]
    leave_no_lease()
    assert taken_connections(own_server.url()) - before == 1 + 1


def test_finding_about_sentinels_has_no_password(
    own_server: EmbeddedServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py 6 and 7 repeat all arguments of the connections to the sentinels."""

    def locate() -> tuple[str, int]:
        raise MasterNotFoundError(
            "No master found for 'locks' : Redis<ConnectionPool<Connection<password=hunter2>>>"
        )

    monkeypatch.setattr(targets, "master_of", lambda pool: locate)
    settings.LOCKS = {"default": {"LOCATION": own_server.url(1)}}
    monkeypatch.setattr(locks["default"].pool, "service_name", "locks", raising=False)
    found = examine()[1]
    told, remedy = only(found, "server")[1:]
    assert told == "no sentinel knows the master of 'locks': No master found for 'locks'"
    assert remedy.startswith("Start the sentinels, or fix SENTINELS")
    assert "hunter2" not in str(found)
    leave_no_lease()


def test_entry_without_end_is_found(settings: Any) -> None:
    """``TIMEOUT: None`` is a warning for every backend."""
    settings.LOCKS = {
        "default": {
            "BACKEND": "django_redis_lock.backends.locmem.LocMemLockBackend",
            "TIMEOUT": None,
        }
    }
    status, told, remedy = only(examine()[1], "lease")
    assert (status, "TIMEOUT is None" in told, "seconds" in remedy) == ("warn", True, True)


def test_one_wrong_entry_hides_no_other(target: redis.Redis, settings: Any) -> None:
    """An invalid entry is one finding, and the others are examined."""
    unknown = {"LOCATION": "redis://:secret@127.0.0.1:1/0?never=heard"}
    wrong = {"wrong": {"TIMEOUT": 0}, "missing": {"LOCATION": "nowhere"}, "unknown": unknown}
    settings.LOCKS = {**wrong, **settings.LOCKS}
    code, found = examine()
    assert code == 1
    failed = [(f["using"], f["check"]) for f in chain(*found.values()) if f["status"] == "fail"]
    assert failed == [(alias, "settings") for alias in wrong]
    assert "'never'" in found["settings"][-2]["found"]
    assert "secret" not in str(found)
    assert only(found, "server")[0] == "ok"


def test_full_server_is_found(target: redis.Redis, own_server: EmbeddedServer) -> None:
    """A low maxclients, one that is nearly reached, and refused connections are warnings."""
    target.config_set("maxclients", "40")
    status, told, remedy = only(examine()[1], "clients")
    assert (status, "of 40 connections" in told, "few" in told) == ("warn", True, True)
    assert "CONFIG SET maxclients 10000" in remedy
    pool = redis.ConnectionPool.from_url(own_server.url())
    idle = [redis.Redis(connection_pool=pool, single_connection_client=True) for _ in range(9)]
    target.config_set("maxclients", "13")
    assert "new connections will soon be refused" in only(examine()[1], "clients")[1]
    target.config_set("maxclients", "10")
    code, found = examine()
    assert (code, "max number of clients" in only(found, "server")[1]) == (1, True)
    for one in idle:
        one.close()
    pool.disconnect()
    target.config_set("maxclients", "1000")
    assert "were refused since" in only(examine()[1], "clients")[1]


@pytest.mark.parametrize(
    ("limit", "status", "told"),
    [
        ("pubsub 0 0 0", "warn", "no limit"),
        ("pubsub 100000 0 0", "warn", "only 100,000 bytes"),
        ("pubsub 33554432 1000 60", "warn", "only 1,000 bytes"),
        ("pubsub 33554432 8388608 60", "ok", "33,554,432 bytes"),
        ("pubsub 0 8388608 60", "ok", "8,388,608 bytes for 60 s"),
    ],
)
def test_buffers_are_judged(target: redis.Redis, limit: str, status: str, told: str) -> None:
    """The output buffer needs a limit, but one that many grants fit in."""
    target.config_set("client-output-buffer-limit", limit)
    got = only(examine()[1], "buffers")
    assert (got[0], told in got[1]) == (status, True), got
    assert ("client-output-buffer-limit 'pubsub" in got[2]) is (status == "warn")


def test_open_server_is_found(
    target: redis.Redis, own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without a password must not be reachable from elsewhere."""
    assert "is not a public address" in only(examine()[1], "access")[1]
    target.config_set("bind", "* -::*")
    assert only(examine()[1], "access")[0] == "ok"  # protected mode refuses other hosts
    target.config_set("protected-mode", "no")
    status, told, remedy = only(examine()[1], "access")
    assert (status, "listens on * -::*" in told, "requirepass" in remedy) == ("warn", True, True)
    monkeypatch.setattr(access, "is_public", lambda host: host == "127.0.0.1")
    status, told, remedy = only(examine()[1], "access")
    assert (status, "127.0.0.1 is a public address" in told) == ("fail", True)
    target.execute_command("ACL", "SETUSER", "default", "resetpass", ">hunter2")
    try:
        url = own_server.url(1).replace("//", "//:hunter2@")
        with override_settings(LOCKS={"default": {"LOCATION": url}}):
            assert only(examine()[1], "access")[:2] == (
                "ok",
                "a password is required",
            )
    finally:
        target.execute_command("AUTH", "hunter2")
        target.execute_command("ACL", "SETUSER", "default", "nopass")


@pytest.mark.parametrize(
    ("marker", "reply", "status", "told"),
    [
        (b"PING", b"-NOPERM this user may not run it\r\n", "fail", "is a public address"),
        (b"DEL", b"-NOPERM this user may not run it\r\n", "warn", "not known: what clients may do"),
        (
            b"DEL",
            b"-ERR max number of clients reached\r\n",
            "warn",
            "not known: whether a",
        ),
        (b"DEL", b"-NOAUTH Authentication required.\r\n", "ok", "a password is required"),
    ],
)
def test_access_is_judged_by_the_reply(
    own_server: EmbeddedServer,
    monkeypatch: pytest.MonkeyPatch,
    marker: bytes,
    reply: bytes,
    status: str,
    told: str,
) -> None:
    """Only NOAUTH means that a password is required; NOPERM for DEL leaves it open."""
    monkeypatch.setattr(access, "is_public", lambda host: True)
    with Proxy(own_server.port) as proxy:
        proxy.refuse(marker, reply)
        with override_settings(LOCKS={"default": {"LOCATION": f"redis://127.0.0.1:{proxy.port}"}}):
            target = Target(locks["default"], locks["default"].pool)
            with target.client() as client:
                (found,) = access.examine_access(client, target)
    assert (found.status, told in found.found) == (status, True), found


@pytest.mark.parametrize(
    ("address", "public"),
    [("8.8.8.8", True), ("2001:4860:4860::8888", True), ("10.0.0.1", False), ("::1", False)],
)
def test_public_addresses_are_known(address: str, public: bool) -> None:
    """Internet addresses are public; those of private networks are not."""
    assert access.is_public(address) is public


@pytest.mark.parametrize(
    ("most", "pool", "concurrency", "status"),
    [
        (1, "prefork", 8, "warn"),  # leases are renewed beside the calls
        (2, "prefork", 8, "ok"),  # each process runs one task
        (8, "threads", 8, "warn"),
        (9, "threads", 8, "ok"),
        (9, "gevent", None, "ok"),  # nothing is known
    ],
)
def test_pool_is_compared_with_the_threads_that_are_known(
    shop: Celery,
    own_server: EmbeddedServer,
    settings: Any,
    most: int,
    pool: str,
    concurrency: int | None,
    status: str,
) -> None:
    """The settings of Celery's workers decide, if they say how many threads there are."""
    shop.conf.update(worker_pool=pool, worker_concurrency=concurrency)
    url = f"{own_server.url(1)}?max_connections={most}"
    settings.LOCKS = {"default": {"LOCATION": url}}
    (found,) = examine()[1]["pool"]
    assert (found["status"], f"up to {most} connections" in found["found"]) == (status, True)
    assert ("max_connections at least" in found["remedy"]) is (status == "warn")


# Services that lack something.


@contextmanager
def lacking(*config: str) -> Iterator[EmbeddedServer]:
    """Start a server without some commands."""
    renamed = [part for word in config for part in ("--rename-command", word, "")]
    with EmbeddedServer(*renamed) as server:
        yield server
        leave_no_lease()


def test_server_without_scripts_is_one_finding() -> None:
    """The remedy is another backend, which works there."""
    with lacking("EVAL", "EVALSHA", "CONFIG") as server:
        with override_settings(LOCKS={"default": {"LOCATION": server.url()}}):
            code, found = examine()
        (failed,) = [f for f in chain(*found.values()) if f["status"] == "fail"]
        assert (code, failed["check"]) == (1, "scripts")
        assert "GetSetLockBackend" in failed["remedy"]
        with override_settings(LOCKS={"default": {"BACKEND": GETSET, "LOCATION": server.url()}}):
            code, found = examine()
        assert (code, only(found, "permissions")[0]) == (0, "ok")
        assert "scripts" not in found


@pytest.mark.parametrize("word", ["SUBSCRIBE", "PUBLISH"])
def test_server_without_channels_is_one_finding(word: str) -> None:
    """The remedy is to poll, which works there."""
    with lacking(word) as server:
        with override_settings(LOCKS={"default": {"LOCATION": server.url()}}):
            code, found = examine()
        (failed,) = [f for f in chain(*found.values()) if f["status"] == "fail"]
        assert (code, failed["check"]) == (1, "channels")
        assert '"WAIT": "poll"' in failed["remedy"]
        entry = {"LOCATION": server.url(), "OPTIONS": {"WAIT": "poll"}}
        with override_settings(LOCKS={"default": entry}):
            code, found = examine()
        assert (code, only(found, "permissions")[0]) == (0, "ok")


@pytest.mark.parametrize(
    ("wait", "status", "way_out"),
    [("blpop", "fail", '"WAIT": "poll"'), ("queue", "warn", 'wait="blpop"')],
)
def test_service_that_refuses_undeclared_keys_is_found(
    own_server: EmbeddedServer, target: redis.Redis, wait: str, status: str, way_out: str
) -> None:
    """Only ``blpop`` needs keys that are not in KEYS."""
    refusal = b"-ERR script tried accessing undeclared key\r\n"
    with Proxy(own_server.port) as proxy:
        proxy.refuse(b"redis.call('EXISTS'", refusal)
        url = f"redis://127.0.0.1:{proxy.port}/1"
        with override_settings(LOCKS={"default": {"LOCATION": url, "OPTIONS": {"WAIT": wait}}}):
            got = only(examine()[1], "scripts")
        leave_no_lease()
    assert (got[0], "undeclared key" in got[1], way_out in got[2]) == (status, True, True)


@pytest.mark.parametrize(
    ("marker", "reply", "check", "told"),
    [
        (b"PUBLISH", b":0\r\n", "channels", "finds no receiver"),
        (b"PUBLISH", b":1\r\n", "channels", "did not arrive"),
        (b"XADD", b"-ERR unknown command 'XADD'\r\n", "permissions", "not know: XADD"),
    ],
)
def test_service_that_pretends_is_found(
    own_server: EmbeddedServer,
    target: redis.Redis,
    marker: bytes,
    reply: bytes,
    check: str,
    told: str,
) -> None:
    """A command that is accepted may have no effect; a missing one is no ACL problem."""
    with Proxy(own_server.port) as proxy:
        proxy.refuse(marker, reply)
        patience = 0.5 if told == "did not arrive" else 5
        url = f"redis://127.0.0.1:{proxy.port}/1?socket_timeout={patience}"
        with override_settings(LOCKS={"default": {"LOCATION": url}}):
            code, found = examine()
        leave_no_lease()
    (failed,) = [f for f in chain(*found.values()) if f["status"] == "fail"]
    assert (code, failed["check"], told in failed["found"]) == (1, check, True)
    assert "ACL" not in failed["remedy"]


# Whom the database is shared with.


def test_shared_locks_are_found(target: redis.Redis, own_server: EmbeddedServer) -> None:
    """Aliases with one prefix in one database are the same locks, under any host name."""
    here, there = own_server.url(1), own_server.url(1).replace("127.0.0.1", "127.1")
    with override_settings(
        LOCKS={
            "default": {"LOCATION": here},
            "same": {"LOCATION": here},
            "renamed": {"LOCATION": there},
            "plain": {"BACKEND": GETSET, "LOCATION": here},
            "apart": {"LOCATION": here, "KEY_PREFIX": "apart"},
            "elsewhere": {"LOCATION": own_server.url(2)},
        }
    ):
        found = examine()[1]["sharing"]
    told = {(f["using"], re.findall(r"LOCKS\['(\w+)'\]", f["found"])[0]): f for f in found}
    assert told["same", "default"]["status"] == "ok"
    assert told["renamed", "default"]["status"] == "warn"
    assert "names it differently" in told["renamed", "default"]["found"]
    assert "by another backend" in told["plain", "default"]["found"]
    assert {using for using, _ in told} == {"same", "renamed", "plain"}


def test_cache_by_another_name_is_found(
    target: redis.Redis, own_server: EmbeddedServer, settings: Any
) -> None:
    """A cache in the database of the locks is found by run id, for each cache backend."""
    renamed = own_server.url(1).replace("127.0.0.1", "127.1")
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "pages": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": renamed},
        "django": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": renamed},
        "other": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": own_server.url(2)},
        "locks": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": own_server.url(1)},
        "broken": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1"},
    }
    settings.LOCKS = {"default": {"LOCATION": "locks"}}
    *found, unknown = examine()[1]["sharing"]
    assert unknown["found"].startswith("not known: whether CACHES['broken'] shares")
    assert [f["found"].split()[0] for f in found] == ["CACHES['pages']", "CACHES['django']"]
    assert {f["status"] for f in found} == {"warn"}
    assert "clearing that cache frees locks" in found[0]["found"]
    assert "a database of their own" in found[0]["remedy"]


def test_broker_in_the_database_of_the_locks_is_found(
    target: redis.Redis, own_server: EmbeddedServer, shop: Celery
) -> None:
    """Celery's queues and results in the same database are warnings; elsewhere they are not."""
    renamed = own_server.url(1).replace("127.0.0.1", "127.1")
    shop.conf.update(
        broker_url=renamed, result_backend=f"redis+socket://{own_server.unix_socket}?virtual_host=1"
    )
    found = examine()[1]["sharing"]
    assert [f["found"].split(" is ")[0] for f in found] == [
        "Celery's broker",
        "Celery's result backend",
    ]
    shop.conf.update(broker_url=own_server.url(2), result_backend=own_server.url(3))
    assert "sharing" not in examine()[1]


# Permissions.


DJANGO_REDIS = "django.core.cache.backends.redis.RedisCache"


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"BACKEND": DJANGO_REDIS, "LOCATION": []}, "can't be read: its LOCATION names no server"),
        ({"BACKEND": DJANGO_REDIS, "LOCATION": None}, "can't be read: "),
        ({"BACKEND": DJANGO_REDIS, "LOCATION": "redis://:hunter2@h:1x/1"}, "can't be read: "),
        ({"BACKEND": "nope.Cache"}, "can't be read: No module named 'nope'"),
        ({"BACKEND": DJANGO_REDIS, "LOCATION": "redis://:hunter2@127.0.0.1:1"}, "refused"),
    ],
)
def test_cache_that_can_not_be_asked(
    target: redis.Redis, settings: Any, shop: Celery, entry: dict[str, Any], told: str
) -> None:
    """Whether it shares the database is not known; the other findings are complete."""
    settings.CACHES = {"default": entry}
    code, found = examine()
    (one,) = found["sharing"]
    assert (code, one["status"]) == (0, "warn")
    assert one["found"].startswith("not known: whether CACHES['default'] shares the database")
    assert told in one["found"]
    assert "hunter2" not in str(found)
    assert only(found, "server")[0] == "ok"


def test_broker_that_can_not_be_asked(target: redis.Redis, shop: Celery) -> None:
    """An invalid URL does not count as another database."""
    shop.conf.update(broker_url="redis://:hunter2@h:14001x/2", result_backend="redis://127.0.0.1:1")
    found = examine()[1]
    broker, results = (one["found"] for one in found["sharing"])
    assert broker.startswith("not known: whether Celery's broker shares the database of the locks")
    assert results.startswith("not known: whether Celery's result backend shares the database")
    assert "hunter2" not in str(found)


def test_broker_behind_sentinels(target: redis.Redis, shop: Celery) -> None:
    """Celery's sentinels are not asked, which is one warning for all of them."""
    urls = "sentinel://:hunter2@127.0.0.1:1/0;sentinel://:hunter2@127.0.0.1:2/0"
    shop.conf.update(broker_url=urls, result_backend=urls)
    found = examine()[1]
    broker, results = found["sharing"]
    assert broker["found"].startswith("not known: whether Celery's broker shares the database")
    assert results["found"].startswith("not known: whether Celery's result backend shares")
    assert "hunter2" not in str(found)


def test_server_without_run_id(
    target: redis.Redis, own_server: EmbeddedServer, shop: Celery, settings: Any
) -> None:
    """Without INFO it is not known what shares the database."""
    shop.conf.update(broker_url=own_server.url(2))
    target.execute_command(*["ACL", "SETUSER", "blind", "on", ">pw", "~*", "&*", "+@all", "-info"])
    url = own_server.url(1).replace("//", "//blind:pw@")
    settings.LOCKS = {"default": {"LOCATION": url}}
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    status, told, remedy = only(examine()[1], "sharing")
    target.acl_deluser("blind")
    assert (status, "INFO" in remedy) == ("warn", True)
    assert "not known: whether Celery's broker shares the database of the locks" in told


def test_tasks_that_can_not_be_imported(
    target: redis.Redis, shop: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery runs the project's checks as it imports the tasks; either can raise anything."""

    def fail() -> None:
        raise InvalidCacheBackendError("No module named 'nope' at redis://:hunter2@h")

    monkeypatch.setattr(shop.loader, "import_default_modules", fail)
    code, found = examine()
    status, told, remedy = only(found, "leases")
    assert (code, status, "manage.py check" in remedy) == (0, "warn", True)
    assert told == "not known: the tasks can't be loaded: No module named 'nope' at redis://***@h"


@pytest.fixture
def user(own_server: EmbeddedServer, settings: Any) -> Iterator[Callable[[list[str]], redis.Redis]]:
    """Give the locks a user with a rule; return a client of the administrator."""
    settings.LOCKS = {
        "default": {"LOCATION": f"redis://locker:secret@127.0.0.1:{own_server.port}/1"}
    }
    with redis.Redis.from_url(own_server.url(1), decode_responses=True) as admin:
        admin.flushall()

        def become(rule: list[str]) -> redis.Redis:
            admin.execute_command("ACL", "SETUSER", "locker", "reset", *rule)
            return admin

        yield become
    leave_no_lease()


def test_documented_user_has_all_permissions(user: Callable[[list[str]], redis.Redis]) -> None:
    """The documented rule passes; examinations that it prevents are only a warning."""
    admin = user(acl_rule())
    with counted(admin) as counts:
        code, found = examine()
    assert code == 0
    assert only(found, "permissions")[0] == "ok"
    status, told, remedy = only(found, "not known")
    assert (status, "administrator" in remedy) == ("warn", True)
    assert told.startswith("version, eviction, persistence, replicas, clients, buffers: ")
    tried = {command for command, calls in counts.items() if calls}
    allowed = {word[1:] for word in acl_rule() if word.startswith("+")}
    assert allowed <= tried


def test_every_needed_command_is_tried(target: redis.Redis) -> None:
    """The commands tried are exactly those that the documented rule allows."""
    trial = Trial(target, Target(locks["default"], locks["default"].pool))
    assert trial.run() == []
    assert trial.commands == {word[1:] for word in acl_rule() if word.startswith("+")}


@pytest.mark.parametrize("wait", ["blpop", "poll"])
def test_each_waiting_scheme_needs_commands_of_its_own(
    wait: str, user: Callable[[list[str]], redis.Redis], settings: Any
) -> None:
    """The commands tried are those of the scheme's documented rule; a missing word is named."""
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "OPTIONS": {"WAIT": wait}}}
    rule = acl_rule(wait)
    user(rule)
    pool = locks["default"].pool
    trial = Trial(redis.Redis(connection_pool=pool), Target(locks["default"], pool))
    assert (trial.run(), trial.failed) == ([], {})
    assert trial.commands == {word[1:] for word in rule if word.startswith("+")}
    for word in {*rule} - {*acl_rule(), "resetchannels"}:
        user([item for item in rule if item != word])
        assert trial.run() == [word]


GETSET_RULE = re.findall(
    r"^ACL SETUSER locker (.*)$",
    (DOCS / "how-to" / "server-layouts.md").read_text(),
    re.MULTILINE,
)[0].split()
SPARE = ("+xadd", "+xrevrange", "~lock-audit")


def test_getset_needs_what_its_page_says(
    user: Callable[[list[str]], redis.Redis], settings: Any
) -> None:
    """Each word of its rule is tried; locks work without the audit."""
    entry = {**settings.LOCKS["default"], "BACKEND": GETSET}
    settings.LOCKS = {"default": entry}
    admin = user(GETSET_RULE)
    pool = locks["default"].pool
    trial = Trial(redis.Redis(connection_pool=pool), Target(locks["default"], pool))
    assert (trial.run(), trial.failed) == ([], {})
    needed = [word for word in GETSET_RULE if word[0] in "+~"]
    assert trial.commands == {word[1:] for word in needed if word[0] == "+"}
    for word in needed:
        user([item for item in GETSET_RULE if item != word])
        assert trial.run() == [word]
    user([word for word in GETSET_RULE if word not in SPARE])
    code, found = examine()
    status, told, _ = only(found, "permissions")
    assert (code, status, "+xadd +xrevrange" in told) == (0, "warn", True)
    eventually(lambda: admin.keys("*") == [])


@pytest.mark.parametrize(
    "word", [word for word in acl_rule() if word[0] in "+~&" and word not in ("+select", "+time")]
)
def test_missing_permission_is_found_and_named(
    word: str, user: Callable[[list[str]], redis.Redis]
) -> None:
    """The finding names the missing word, and the remedy the command that adds it."""
    admin = user([item for item in acl_rule() if item != word])
    code, found = examine()
    assert code == 1
    status, told, remedy = only(found, "permissions")
    assert (status, remedy) == ("fail", f"ACL SETUSER locker {word}")
    assert word in told
    assert "secret" not in told
    eventually(lambda: admin.keys("*doctor*") == [])


def test_user_who_may_do_nothing(user: Callable[[list[str]], redis.Redis]) -> None:
    """A server that refuses everything is a finding, not a traceback."""
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
    """Commands that add keys are not tried if the keys could not be removed."""
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
    tests_app.set_current()


def test_leases_that_are_too_short_are_found(shop: Celery, target: redis.Redis) -> None:
    """A fixed lease that the task can outlive, and an endless one, are warnings."""

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
    assert re.match(r"\d+ guarded tasks have leases that last as long", sound["found"])
    assert "may run for 1h, but its lease ends after 1m" in told["outlived"]["found"]
    assert "has no time limit" in told["unlimited"]["found"]
    assert "time_limit below 10m" in told["unlimited"]["remedy"]
    shop.conf.task_time_limit = 500
    words = " ".join(finding["found"] for finding in examine()[1]["leases"])
    assert "unlimited" not in words
    assert "outlived" in words


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (0, "there are no guarded tasks"),
        (1, "1 guarded task has a lease that lasts as long as it runs"),
        (2, "2 guarded tasks have leases that last as long as they run"),
    ],
)
def test_tasks_are_counted(number: int, told: str) -> None:
    """The finding uses the singular and the plural."""
    assert sound_leases(number) == Finding("ok", "leases", told)


# How it looks.


def test_lines_are_wrapped_on_a_terminal(server: EmbeddedServer) -> None:
    """At 80 columns long texts are wrapped and indented."""
    with Screen("doctor", "--using", "default", columns=80) as screen:
        assert screen.end() == 0
        lines = screen.plain.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "LOCKS['default']"
    assert any(line.startswith("  ok    server       127.0.0.1:") for line in lines)
    remedies = [line for line in lines if line.lstrip().startswith("-> ")]
    assert remedies
    assert len({line.index("->") for line in remedies}) == 1
