"""A request and the task that it sends, in one trace: gunicorn and Celery fork their children."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_redis_lock import lock
from django_redis_lock.contrib.opentelemetry import instrumentor as names
from example_project.embedded import EmbeddedServer, free_port
from tests.apps.traced.tracing import SPANS
from tests.contrib.opentelemetry.conftest import Telemetry
from tests.tools import ROOT, Background, eventually
from tests.tools.celery_worker import events, go, running_worker, started

SETTINGS = "tests.apps.traced.settings"
Span = dict[str, Any]


@contextlib.contextmanager
def running_site(directory: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run gunicorn until the block is left; yield its address."""
    address = f"127.0.0.1:{free_port()}"
    log = directory / "gunicorn.log"
    command = ["-m", "gunicorn", "--bind", address, "--no-control-socket"]
    where = ["--config", "python:tests.apps.traced.gunicorn", "tests.apps.traced.wsgi"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command, *where],
            cwd=ROOT,
            env={**os.environ, "PYTHONDEVMODE": "", **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            eventually(lambda: log.read_text().count("Booting worker") == 2, "gunicorn")
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def spans_of(file: Path, trace_id: int) -> list[Span]:
    if not file.exists():
        return []
    spans = [json.loads(line) for line in file.read_text().splitlines()]
    return [span for span in spans if int(span["context"]["trace_id"], 16) == trace_id]


def only(spans: list[Span], name: str, parent: Span | None = None) -> Span:
    """Return the only span of a name, or the only one below a parent."""
    above = parent and parent["context"]["span_id"]
    (span,) = [
        each for each in spans if each["name"] == name and above in (None, each["parent_id"])
    ]
    return span


def order(site: str, what: str, telemetry: Telemetry) -> int:
    with telemetry.tracer.start_as_current_span("client") as span:
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers)
    with contextlib.closing(http.client.HTTPConnection(site, timeout=20)) as connection:
        connection.request("GET", f"/order/{what}", headers=headers)
        assert connection.getresponse().status == 200
    return span.context.trace_id


@pytest.fixture
def site(server: EmbeddedServer, tmp_path: Path) -> Iterator[str]:
    environment = {"DJANGO_SETTINGS_MODULE": SETTINGS, SPANS: str(tmp_path / "spans")}
    worker = running_worker(
        tmp_path,
        app="tests.apps.traced.app",
        queue="traced",
        concurrency=2,
        environment=environment,
    )
    with running_site(tmp_path, environment) as address, worker:
        yield address


def test_a_trace_shows_waits_and_holds_from_the_request_to_the_task(
    site: str, name: str, tmp_path: Path
) -> None:
    telemetry = Telemetry()
    with events() as client:
        with lock(f"stock:{name}", timeout=20):
            ordering = Background(lambda: order(site, name, telemetry))
            started(client, f"waiting stock:{name}")
        trace = ordering.outcome()
        started(client, name)
        go(client, name)
    file = tmp_path / "spans"
    both = {"GET order/<str:what>", "run/traced.report"}  # the last of each process
    eventually(lambda: both <= {span["name"] for span in spans_of(file, trace)})
    found = spans_of(file, trace)
    view = only(found, "GET order/<str:what>")
    wait, hold = only(found, names.WAIT, view), only(found, names.HOLD, view)
    assert wait["attributes"][names.OUTCOME] == "acquired"
    assert hold["attributes"][names.NAME] == f"stock:{name}"
    run = only(found, "run/traced.report", only(found, "apply_async/traced.report", view))
    of_task = only(found, names.HOLD, run)
    assert of_task["attributes"][names.NAME] == f"report:{name}"
    assert of_task["attributes"][names.OUTCOME] == "released"
