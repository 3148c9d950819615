"""The metrics of real processes: gunicorn's workers, and Celery's parent and children."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from example_project.embedded import EmbeddedServer, free_port
from example_project.keeper import Keeper
from example_project.service import HOST, ROOT, Service, start_worker
from tests.observability.stage import Stage, environment_of, migrate, scrape, total

SEND = """
import django
django.setup()
from example_project.shop.tasks import import_products
results = [import_products.delay(shop) for shop in (1, 1, 1, 2)]
for result in results: result.get(timeout=60)
"""


def test_every_web_process_answers_for_all(stage: Stage) -> None:
    """Gunicorn has three, and a scrape reaches any of them; the worker's metrics are there, too."""
    answers = [stage.scraped() for _ in range(6)]
    for name, counted in (
        ("django_redis_lock_acquired", {"group": "product"}),
        ("django_redis_lock_wait_seconds", {"group": "product", "le": "+Inf"}),
        ("django_redis_lock_tasks_skipped", {}),
    ):
        assert len({total(each[name], **counted) for each in answers}) == 1, name
    found = answers[0]
    assert total(found["django_redis_lock_acquired"], group="product") > 90
    assert total(found["django_redis_lock_tasks_skipped"], policy="skip") == 10
    assert total(found["django_redis_lock_freed"], group="import") == 1, "by the worker's parent"
    assert total(found["django_redis_lock_lost"], group="product") == 1
    assert total(found["django_redis_lock_force_released"], group="product") == 1


def test_counts_and_histograms_agree(stage: Stage) -> None:
    """Each attempt has one wait, whatever came of it."""
    found = stage.scraped()
    attempts = total(found["django_redis_lock_acquired"]) + total(
        found["django_redis_lock_not_acquired"]
    )
    assert total(found["django_redis_lock_wait_seconds"], "_count") == attempts
    ended = total(found["django_redis_lock_hold_seconds"], "_count")
    assert 0 < ended <= total(found["django_redis_lock_acquired"])


def test_labels_are_few(stage: Stage) -> None:
    """Hundreds of names make three groups."""
    samples = stage.scraped()["django_redis_lock_acquired"].samples
    assert {each.labels["group"] for each in samples} == {"product", "import", "other"}
    assert {tuple(sorted(each.labels)) for each in samples} == {("backend", "group", "using")}


def test_prometheus_gets_openmetrics(stage: Stage) -> None:
    """The strict parser takes the answer."""
    request = Request(
        f"http://{HOST}:{stage.port}/metrics",
        headers={"Accept": "application/openmetrics-text;version=1.0.0"},
    )
    with urlopen(request, timeout=10) as answer:  # noqa: S310 - our own address
        families = list(text_string_to_metric_families(answer.read().decode()))
    assert "django_redis_lock_held" in {family.name for family in families}


@dataclass
class Exporting:
    """A worker that serves its metrics itself."""

    worker: Service
    port: int
    environment: dict[str, str]


@pytest.fixture
def exporting() -> Iterator[Exporting]:
    with _exporting() as exporting:
        yield exporting


@contextmanager
def _exporting() -> Iterator[Exporting]:
    directory = Path(tempfile.mkdtemp(prefix="exporting-"))
    keeper = Keeper(directory)
    try:
        with EmbeddedServer() as server:
            port = free_port()
            environment = {**environment_of(server, directory), "EXPORTER_PORT": str(port)}
            migrate(environment)
            options = ("--concurrency", "2", "--loglevel", "INFO", "--max-tasks-per-child", "1")
            app = "tests.observability.exporter"
            worker = start_worker(keeper, directory, app, *options, env=environment)
            worker.wait_for(lambda: worker.count(" ready.") > 0)
            yield Exporting(worker, port, environment)
            worker.stop()
    finally:
        keeper.close()
        shutil.rmtree(directory, ignore_errors=True)


def test_parent_of_a_celery_worker_serves_the_metrics_of_its_children(
    exporting: Exporting,
) -> None:
    """Those of children that have ended, too: here each ends after one task.

    A duplicate runs if the first has ended before there is a child for it.
    """
    command = [sys.executable, "-c", SEND]
    subprocess.run(command, cwd=ROOT, env=exporting.environment, check=True, timeout=90)
    found = scrape(exporting.port, "/")
    acquired = total(found["django_redis_lock_acquired"], "_total", group="import")
    assert acquired in (2, 3)
    assert total(found["django_redis_lock_tasks_skipped"], "_total") == 4 - acquired
    hold = found["django_redis_lock_hold_seconds"]
    assert total(hold, "_count", group="import") == acquired
    assert total(hold, "_sum", group="import") > acquired * 8 * 0.25
    assert "django_redis_lock_held" not in found, "the web reads the index"
