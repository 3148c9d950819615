"""What ``manage.py locks doctor`` finds on several servers: a quorum, a cluster, sentinels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.test import override_settings

from django_redis_lock import locks
from example_project.embedded import EmbeddedServer
from tests.layouts.servers import BACKEND, Cluster, Sentinel, client
from tests.tools import eventually, leave_no_lease
from tests.tools.console import command
from tests.tools.docs import DOCS, acl_rule
from tests.tools.quorums import Quorum

pytestmark = pytest.mark.usefixtures("no_workers")

CALM = ("--appendonly", "yes", "--appendfsync", "everysec")


@pytest.fixture(scope="module")
def servers() -> Iterator[list[EmbeddedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(EmbeddedServer(*CALM, persist=True)) for _ in range(3)]


@pytest.fixture
def quorum(
    session_server: EmbeddedServer, servers: list[EmbeddedServer], settings: Any
) -> Iterator[Quorum]:
    """The three as the only entry of LOCKS, all of which vote; caches are on a living server."""
    quorum = Quorum(servers)
    for one in quorum.clients:
        one.flushall()
        one.config_set("appendonly", "yes")
    settings.LOCKS = {"default": quorum.entry(SERVER_TIMEOUT=2)}
    locks["default"].admit()  # type: ignore[attr-defined]
    eventually(lambda: all(one.exists("lock-server") for one in quorum.clients))
    yield quorum
    for server in servers:
        if server._process is None:
            server.restart()
    quorum.resume()
    for one in quorum.clients:
        one.close()
    leave_no_lease()


def examine() -> tuple[int, list[dict[str, Any]]]:
    """Run the doctor; return its exit code and what is not well, beside quorum and self-test."""
    done = command("doctor", "--format", "json")
    findings = json.loads(done.out)["findings"]
    assert all(one["server"] for one in findings if one["check"] in ("version", "eviction"))
    last = ("quorum", "self-test")
    return done.code, [
        one
        for one in findings
        if one["check"] != "round trip" and (one["status"] != "ok" or one["check"] in last)
    ]


def brief(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["check"], one["status"]) for one in findings]


WELL = [("quorum", "ok"), ("self-test", "ok")]


def test_dead_members_count(quorum: Quorum) -> None:
    """Without one the others go on, which is a warning; a minority is a failure."""
    code, findings = examine()
    assert (code, brief(findings)) == (0, WELL)
    assert findings[0]["found"] == "3 of 3 servers answer; 1 more may fail"
    eventually(lambda: not any(one.keys("lock:*") for one in quorum.clients))
    quorum.servers[0].kill()
    code, findings = examine()
    expected = [("server", "warn"), ("quorum", "warn"), ("self-test", "ok")]
    assert (code, brief(findings)) == (0, expected)
    assert "when one more fails" in findings[1]["found"]
    quorum.servers[1].kill()
    code, findings = examine()
    assert (code, brief(findings)[-1]) == (1, ("quorum", "fail"))
    assert "1 of 3 servers answer" in findings[-1]["found"]


def test_each_member_has_its_findings(quorum: Quorum) -> None:
    """One that loses its data is named, and is a failure if it votes at once after a restart."""
    quorum.clients[1].config_set("appendonly", "no")
    code, findings = examine()
    assert (code, brief(findings)) == (0, [("persistence", "warn"), *WELL])
    assert f":{quorum.servers[1].port} " in findings[0]["server"]
    assert "only REJOIN_DELAY (30s) prevents two holders" in findings[0]["found"]
    entry = quorum.entry(SERVER_TIMEOUT=2, REJOIN_DELAY=0)
    with override_settings(LOCKS={"default": entry}):
        code, findings = examine()
    assert (code, brief(findings)[0]) == (1, ("persistence", "fail"))
    no_node = {"BACKEND": BACKEND, "LOCATION": [quorum.servers[0].url()]}
    with override_settings(LOCKS={"default": no_node}):
        code, (finding,) = examine()
    assert (code, "the cluster could not be reached" in finding["found"]) == (1, True)


def test_each_master_is_checked(cluster: Cluster, settings: Any) -> None:
    done = command("doctor")
    assert (done.code, "handed off" in done.out) == (0, True)
    for server in cluster.masters():
        assert f"127.0.0.1:{server.port} database 0 answers" in done.out
    assert done.out.count("state ok, 16384 of 16384 slots served") == 3
    # More replicas than there are is reported before a caller waits for them.
    settings.LOCKS = cluster.locks(OPTIONS={"REPLICAS": 2})["LOCKS"]
    code, findings = examine()
    assert (code, {one["check"] for one in findings}) == (1, {"persistence", "replicas"})
    assert "waits for 2: no lock can be acquired" in command("doctor").out
    settings.LOCKS = cluster.locks(OPTIONS={"REPLICAS": 1})["LOCKS"]
    assert command("doctor").out.count("a parked task counts once 1 of them have it") == 3


@pytest.mark.parametrize(("options", "missing"), [({}, ""), ({"REPLICAS": 1}, "+wait")])
def test_documented_user_of_a_cluster_has_all_permissions(
    cluster: Cluster, settings: Any, options: dict[str, Any], missing: str
) -> None:
    """The rule on its page is enough; ``REPLICAS`` needs a word more, as the page says."""
    text, rule = (DOCS / "how-to/secure-the-server.md").read_text(), acl_rule("cluster")
    for server in cluster.servers:
        with client(server) as one:
            one.execute_command("ACL", "SETUSER", "cluster-locker", "reset", *rule)
    urls = [url.replace("://", "://cluster-locker:secret@") for url in cluster.urls]
    settings.LOCKS = {"default": {"BACKEND": BACKEND, "LOCATION": urls, "OPTIONS": options}}
    found = examine()[1][-1]
    assert (found["status"] == "fail", missing in found["remedy"]) == (bool(missing), True)
    assert f"`{missing}`" in text or not missing


def test_sentinels_that_are_down_are_one_line(sentinel: Sentinel, settings: Any) -> None:
    """No password is in it."""
    code, findings = examine()
    assert (code, brief(findings)[-1]) == (0, ("self-test", "ok"))
    caches = sentinel.caches(db=3)  # django-redis keeps one pool for each URL
    options = caches["locks"]["OPTIONS"]
    options["PASSWORD"] = "hunter2"
    options["SENTINELS"] = [("127.0.0.1", 1)]
    options["SENTINEL_KWARGS"] = {"password": "hunter3"}
    settings.CACHES = caches
    (failed,) = examine()[1]
    assert (failed["check"], "Start the sentinels" in failed["remedy"]) == ("server", True)
    assert "hunter" not in json.dumps(failed)
