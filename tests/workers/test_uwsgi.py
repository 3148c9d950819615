"""Real uWSGI, which forks in C: Python, and so this package, is told of it only where asked to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from itertools import pairwise
from typing import Any

import pytest

from example_project.embedded import EmbeddedServer, free_port
from example_project.keeper import Keeper
from tests.settings import REDIS
from tests.tools import ROOT, eventually
from tests.tools.quorums import started

GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
WORKERS = 3
LEASE = 1.5
"""Seconds; requests hold their locks for longer, so that they have to be renewed."""


class Site:
    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str) -> dict[str, Any]:
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.request("GET", f"/{path}")
            told: dict[str, Any] = json.load(connection.getresponse())
        return told

    def get_many(self, path: str, count: int) -> list[dict[str, Any]]:
        """Return what requests are answered that come at once."""
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(self.get, [path] * count))


@pytest.fixture(scope="module")
def entries(session_server: EmbeddedServer) -> Iterator[dict[str, Any]]:
    """LOCKS of the application: what listens, what polls, and a quorum."""
    one = {"BACKEND": REDIS, "LOCATION": session_server.url()}
    with started(3) as quorum:
        yield {
            **{
                wait: {**one, "KEY_PREFIX": wait, "OPTIONS": {"WAIT": wait}}
                for wait in ("queue", "blpop", "poll")
            },
            "getset": {**one, "BACKEND": GETSET, "KEY_PREFIX": "getset"},
            "redlock": quorum.entry(SERVER_TIMEOUT=2, REJOIN_DELAY=0),
        }


@pytest.fixture(
    scope="module", params=[[], ["--py-call-uwsgi-fork-hooks"]], ids=["as it comes", "with hooks"]
)
def site(
    request: pytest.FixtureRequest,
    entries: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """uWSGI with the application in its master, and workers forked from that."""
    port, keeper, log = free_port(), Keeper(), tmp_path_factory.mktemp("uwsgi") / "log"
    environment = {"UWSGI_LOCKS": json.dumps(entries), "UWSGI_LEASE": str(LEASE)}
    try:
        with log.open("wb") as stream:
            process = keeper.spawn(
                *(sys.executable, "-c", "import pyuwsgi; pyuwsgi.run()"),
                *("--master", "--need-app", "--enable-threads", "--disable-logging"),
                *("--processes", str(WORKERS), "--http-socket", f"127.0.0.1:{port}"),
                *("--module", "tests.apps.uwsgi_app", *request.param),
                cwd=ROOT,
                env={**os.environ, **environment, "PYTHONDEVMODE": ""},
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        workers = "spawned uWSGI worker"
        eventually(lambda: process.poll() is not None or log.read_text().count(workers) == WORKERS)
        assert process.poll() is None, log.read_text()
        yield Site(port)
    finally:
        keeper.close()
        print(log.read_text())  # shown where the test fails


def test_workers_are_processes_of_their_own(site: Site, entries: dict[str, Any]) -> None:
    """They exclude each other, renew and are woken, whatever the master did before the fork."""
    told = site.get_many(f"hold/{1.5 * LEASE}/{','.join(entries)}", WORKERS)
    assert len({each["process"] for each in told}) == len({each["pid"] for each in told}) > 1
    told.sort(key=lambda each: each["span"])
    for one, other in pairwise(told):
        assert one["span"][1] <= other["span"][0]
        assert all(a < b for a, b in zip(one["fences"], other["fences"], strict=True))
    errors = site.get("inherited")["errors"]
    assert len(errors) == len(entries)
    assert all("held by the parent process" in error for error in errors)
