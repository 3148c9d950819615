"""What ``manage.py locks doctor`` finds on several servers: a quorum, a cluster, sentinels."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from django.test import override_settings
from django_redis_lock.management.console.doctor.quorum import members_of
from django_redis_lock.management.console.doctor.sharing import Neighbours
from django_redis_lock.management.console.doctor.targets import Target

from django_redis_lock import locks
from example_project.embedded import EmbeddedServer
from tests.layouts.servers import BACKEND, Cluster, Sentinel
from tests.tools import eventually, leave_no_lease, taken_connections
from tests.tools.console import command
from tests.tools.proxy import Proxy
from tests.tools.quorums import REDLOCK, Quorum
from tests.tools.stepped import SteppedServer

CALM = ("--appendonly", "yes", "--appendfsync", "everysec")


@pytest.fixture(scope="module")
def servers() -> Iterator[list[EmbeddedServer]]:
    """Three servers that are well; the clock of the last one can be stepped."""
    with ExitStack() as stack:
        kinds = (EmbeddedServer, EmbeddedServer, SteppedServer)
        yield [stack.enter_context(kind(*CALM, persist=True)) for kind in kinds]


@pytest.fixture
def quorum(
    session_server: EmbeddedServer, servers: list[EmbeddedServer], settings: Any
) -> Iterator[Quorum]:
    """The three as the only entry of LOCKS, all of which vote; caches are on a living server."""
    quorum = Quorum(servers)
    for client in quorum.clients:
        client.flushall()
    settings.LOCKS = {"default": quorum.entry(SERVER_TIMEOUT=2)}
    locks["default"].admit()  # type: ignore[attr-defined]
    eventually(lambda: all(client.exists("lock-server") for client in quorum.clients))
    yield quorum
    for server in servers:
        if server._process is None:
            server.restart()
    quorum.resume()
    for client in quorum.clients:
        client.close()
    leave_no_lease()


def examine(*words: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the doctor; return its exit code and what is not well."""
    done = command("doctor", "--format", "json", *words)
    findings = json.loads(done.out)["findings"]
    assert all(
        finding["server"] for finding in findings if finding["check"] in ("version", "eviction")
    )
    return done.code, [
        finding
        for finding in findings
        if finding["check"] != "round trip"
        and (finding["status"] != "ok" or finding["check"] in ("quorum", "clocks"))
    ]


def brief(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return what was examined, and with what outcome."""
    return [(finding["check"], finding["status"]) for finding in findings]


WELL = [("quorum", "ok"), ("clocks", "ok")]


def test_quorum_that_is_well(quorum: Quorum) -> None:
    code, findings = examine()
    assert (code, brief(findings)) == (0, WELL)
    assert findings[0]["found"] == "3 of 3 servers answer; 1 more may fail"
    done = command("doctor")
    assert done.out.count("commands that locks need") == 3


def test_dead_members_count(quorum: Quorum) -> None:
    """Without one the others go on, which is a warning; a minority is a failure."""
    quorum.servers[0].kill()
    code, findings = examine()
    assert (code, brief(findings)) == (
        0,
        [("server", "warn"), ("quorum", "warn"), ("clocks", "ok")],
    )
    assert "when one more fails" in findings[1]["found"]
    assert examine("--fail-level", "warn")[0] == 1
    quorum.servers[1].kill()
    code, findings = examine()
    assert (code, brief(findings)[-1]) == (1, ("quorum", "fail"))
    assert "1 of 3 servers answer" in findings[-1]["found"]


def test_members_that_hang_cost_one_timeout(quorum: Quorum) -> None:
    """They are asked at the same time, and never again."""
    silent = quorum.urls[:2]
    before = [taken_connections(url) for url in silent]
    with override_settings(LOCKS={"default": quorum.entry(SERVER_TIMEOUT=1)}):
        for server in quorum.servers[:2]:
            server.pause()
        began = time.monotonic()
        code, findings = examine()
        took = time.monotonic() - began
    quorum.resume()
    assert (code, brief(findings)[-1]) == (1, ("quorum", "fail"))
    assert 1.0 <= took < 2.0
    assert [taken_connections(url) for url in silent] == [number + 1 + 1 for number in before]


def test_each_member_has_its_findings(quorum: Quorum) -> None:
    """One that evicts and one that forgets are named."""
    quorum.clients[0].config_set("maxmemory-policy", "allkeys-lru")
    quorum.clients[1].config_set("appendonly", "no")
    try:
        code, findings = examine()
        assert (code, brief(findings)) == (
            0,
            [("eviction", "warn"), ("persistence", "warn"), *WELL],
        )
        assert f":{quorum.servers[0].port} " in findings[0]["server"]
        assert f":{quorum.servers[1].port} " in findings[1]["server"]
        assert "does not vote for 30s (REJOIN_DELAY)" in findings[1]["found"]
        entry = quorum.entry(SERVER_TIMEOUT=2, REJOIN_DELAY=0)
        with override_settings(LOCKS={"default": entry}):
            code, findings = examine()
        assert (code, brief(findings)[1]) == (1, ("persistence", "fail"))
    finally:
        quorum.clients[0].config_set("maxmemory-policy", "noeviction")
        quorum.clients[1].config_set("appendonly", "yes")


@pytest.mark.parametrize(
    ("named", "answering", "found"),
    [
        ("abc", "abc abc", ("ok", "the same locks as LOCKS['default']")),
        ("abc", " ", ("ok", "the same locks as LOCKS['default']")),
        ("ABC", "abc ABC", ("warn", "LOCATION names it differently")),
        ("ABC", "abc AB", ("warn", "not known: whether all servers")),
        ("cde", "abc cde", ("fail", "do not exclude each other")),
        ("cde", "ab de", ("fail", "do not exclude each other")),
        ("cde", " ", ("warn", "not known: whether all servers")),
        ("c", "abc c", ("fail", "do not exclude each other")),
        ("def", "abc def", None),
        ("def", "ab de", None),
    ],
)
def test_quorums_that_share_some_servers_are_found(
    quorum: Quorum, named: str, answering: str, found: tuple[str, str] | None
) -> None:
    """Two quorums exclude each other where they are the same servers, and nowhere else.

    A letter is a server, a capital the same one by another name of its host; of those that have
    no letter there is nothing known.
    """
    ports = [server.port for server in quorum.servers]
    urls = {
        **dict(zip("abc", quorum.urls, strict=True)),
        **dict(zip("ABC", [f"redis://127.1:{port}/0" for port in ports], strict=True)),
        **dict(zip("def", [server.url(1) for server in quorum.servers], strict=True)),
    }
    other = {"BACKEND": REDLOCK, "LOCATION": [urls[letter] for letter in named]}
    if len(named) == 1:
        other = {"LOCATION": urls[named]}
    neighbours, told = Neighbours(), []
    with override_settings(LOCKS={"default": quorum.entry(), "other": other}):
        for alias, names, known in zip(
            ("default", "other"), ("abc", named), answering.split(" "), strict=True
        ):
            backend: Any = locks[alias]
            members = members_of(backend) if len(names) > 1 else [Target(backend, backend.pool)]
            targets = [member for member, name in zip(members, names, strict=True) if name in known]
            told = [*neighbours.examine(backend, targets)]
    findings = [(one.status, one.found) for one in told if "LOCKS['default']" in one.found]
    assert len(findings) == (found is not None)
    if found is not None:
        assert (findings[0][0], found[1] in findings[0][1]) == (found[0], True), findings


def test_members_that_do_not_vote_yet_are_counted(quorum: Quorum) -> None:
    """Servers that were started anew answer, and give no lock for now."""
    for client in quorum.clients[:2]:
        client.delete("lock-server")
    code, findings = examine()
    assert (code, brief(findings)) == (0, [("quorum", "warn"), ("clocks", "ok")])
    assert "2 restarted and do not vote yet" in findings[0]["found"]
    assert "locks['default'].admit()" in findings[0]["remedy"]


def test_clocks_of_members_are_compared(quorum: Quorum) -> None:
    last = quorum.servers[2]
    assert isinstance(last, SteppedServer)
    last.step(5.0)
    try:
        eventually(lambda: quorum.clients[2].time()[0] - quorum.clients[0].time()[0] > 3)
        code, findings = examine()
    finally:
        last.step(-5.0)
    assert (code, brief(findings)) == (0, [("clock", "warn"), ("quorum", "ok"), ("clocks", "warn")])
    assert findings[-1]["found"].startswith(f"that of 127.0.0.1:{last.port} ")
    assert "ahead of that of" in findings[-1]["found"]


def test_a_member_that_is_named_twice_is_found(quorum: Quorum) -> None:
    """Another name of a host does not make another server of it."""
    urls = [*quorum.urls[:2], quorum.urls[0].replace("127.0.0.1", "127.1")]
    with override_settings(LOCKS={"default": {"BACKEND": REDLOCK, "LOCATION": urls}}):
        code, findings = examine()
    assert (code, ("quorum", "fail") in brief(findings)) == (1, True)
    assert "are one server" in findings[-2]["found"]


def test_a_member_whose_scripts_may_not_look_at_info_is_found(quorum: Quorum) -> None:
    """By it they notice a restart; what such a service is no good for is told by one line."""
    with Proxy(quorum.servers[0].port) as proxy:
        proxy.refuse(b"redis.call('INFO'", b"-ERR command is not allowed from scripts\r\n")
        urls = [f"redis://127.0.0.1:{proxy.port}/0", *quorum.urls[1:]]
        with override_settings(LOCKS={"default": {"BACKEND": REDLOCK, "LOCATION": urls}}):
            (failed,) = failures()
    assert (failed["check"], "INFO" in failed["found"]) == ("scripts", True)


# A LOCATION that leads to the wrong kind of server.


def failures(*words: str) -> list[dict[str, Any]]:
    """Return what the doctor finds wrong."""
    code, findings = examine(*words)
    assert code == 1
    return [finding for finding in findings if finding["status"] == "fail"]


@pytest.mark.parametrize("backend", [BACKEND, BACKEND.replace("redis.Redis", "getset.GetSet")])
def test_a_node_as_the_only_server_is_one_line(
    cluster: Cluster, settings: Any, backend: str
) -> None:
    """That it is a node says it all; nothing else is tried that would fail for the same reason."""
    settings.LOCKS = {"default": {"BACKEND": backend, "LOCATION": cluster.urls[0]}}
    (failed,) = failures()
    assert failed["check"] == "cluster"
    assert "as a list" in failed["remedy"] or "list of nodes" in failed["remedy"]


def test_a_node_is_known_without_permission_to_look(cluster: Cluster, settings: Any) -> None:
    """Where INFO is denied, what the node does tells it."""
    rule = ("on", ">secret", "~*", "&*", "+@all", "-info")
    locations = [url.replace("//", "//blind:secret@") for url in cluster.urls[:3]]
    for server in cluster.servers[:3]:
        with redis.Redis(port=server.port) as client:
            client.execute_command("ACL", "SETUSER", "blind", "reset", *rule)
    checks = []
    for location in locations:
        with override_settings(LOCKS={"default": {"LOCATION": location}}):
            checks += [failed["check"] for failed in failures()]
    # The master of the fence's slot is a server like any other to whom can't look further.
    assert checks.count("cluster") >= 2


def test_servers_as_the_nodes_of_a_cluster_are_one_line(
    cluster: Cluster, servers: list[EmbeddedServer], settings: Any
) -> None:
    """A list of what are no nodes, alone or among nodes, is told by each of them, and no more."""
    alone = servers[0].url()
    for location in ([alone], [cluster.urls[0], alone]):
        with override_settings(LOCKS={"default": {"BACKEND": BACKEND, "LOCATION": location}}):
            (failed,) = failures()
        assert failed["check"] == "cluster"
        assert f":{servers[0].port}" in failed["found"]
        assert "is not a cluster node" in failed["found"]


def test_a_node_that_is_down_is_a_warning(cluster: Cluster, settings: Any) -> None:
    """The other nodes that LOCATION names are enough; none of them is not."""
    urls = [*cluster.urls[:2], "redis://127.0.0.1:1"]
    settings.LOCKS = {"default": {"BACKEND": BACKEND, "LOCATION": urls}}
    code, findings = examine()
    assert code == 0
    assert ("server", "warn") in brief(findings)
    settings.LOCKS = {"default": {"BACKEND": BACKEND, "LOCATION": urls[2:]}}
    code, findings = examine()
    assert (code, brief(findings)) == (1, [("server", "fail")])


def test_sentinels_that_are_down_are_one_line(sentinel: Sentinel, settings: Any) -> None:
    """Nobody tells where the master is: that is the finding, and no password is in it."""
    caches = sentinel.caches(db=3)  # django-redis keeps one pool for each URL
    options = caches["locks"]["OPTIONS"]
    options["PASSWORD"] = "hunter2"
    options["SENTINELS"] = [("127.0.0.1", 1)]
    options["SENTINEL_KWARGS"] = {"password": "hunter3"}
    settings.CACHES = caches
    (failed,) = failures()
    assert failed["check"] == "server"
    assert "hunter" not in json.dumps(failed)


def test_the_master_that_sentinels_tell_is_examined(sentinel: Sentinel) -> None:
    """Its address is told; a cache by its own address is found to be the same database."""
    shared = {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": sentinel.master.url(),
    }
    from django.conf import settings

    with override_settings(CACHES={**settings.CACHES, "pages": shared}):
        code, findings = examine()
    assert code == 0
    assert ("sharing", "warn") in brief(findings)
    done = command("doctor")
    assert (
        f"127.0.0.1:{sentinel.master.port} (the master, as reported by the sentinels)" in done.out
    )
