"""The shop with its worker, and a Prometheus that scrapes it each second."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from example_project.embedded import EmbeddedServer, free_port
from example_project.keeper import Keeper
from example_project.service import HOST, ROOT, Service, start_web, start_worker
from example_project.shop.buyers import rush
from tests.tools import eventually

RULES = ROOT / "docs" / "observability" / "alerts.yml"
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: shop
    static_configs: [{{targets: ["{address}"]}}]
"""


@dataclass
class Prometheus:
    """A running Prometheus."""

    port: int

    def ask(self, path: str, **parameters: Any) -> Any:
        """Return the data of an answer of its HTTP API."""
        query = urlencode(parameters)
        with urlopen(f"http://{HOST}:{self.port}/api/v1/{path}?{query}", timeout=10) as answer:
            answered = json.load(answer)
        assert answered["status"] == "success", answered
        return answered["data"]

    def series(self, expr: str, begin: float, end: float) -> list[dict[str, Any]]:
        """Return what an expression gives for each second."""
        found = self.ask("query_range", query=expr, start=begin, end=end, step=1)["result"]
        assert isinstance(found, list)
        return found

    def ready(self) -> bool:
        try:
            with urlopen(f"http://{HOST}:{self.port}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@dataclass
class Stage:
    """The running services."""

    server: EmbeddedServer
    web: Service
    worker: Service
    prometheus: Prometheus
    port: int
    environment: Mapping[str, str]
    begin: float = 0.0
    end: float = 0.0

    def scraped(self) -> dict[str, Metric]:
        """Return what the web server answers a scrape with, by name."""
        return scrape(self.port)

    def play(self) -> None:
        """Let happen what operators want to see, and note from when to when it took."""
        self.begin = time.time()
        played = subprocess.run(
            [sys.executable, "-m", "tests.observability.incidents", str(self.port)],
            cwd=ROOT,
            env=dict(self.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert played.returncode == 0, played.stdout
        self.server.kill()
        for _ in rush(HOST, self.port, "/buy/1/?guard=lock", 3):
            pass  # each is told that the server is down
        self.await_value('ALERTS{alertname="LockServerUnavailable"}')
        self.await_value("rate(django_redis_lock_unavailable_total[10s]) > 0")
        self.server.restart()
        self.await_value('min_over_time(django_redis_lock_server_up{job="shop"}[4s]) == 1')
        self.end = time.time()

    def await_value(self, expr: str) -> None:
        """Wait until an expression gives something."""
        eventually(lambda: self.prometheus.ask("query", query=expr)["result"], expr)


def scrape(port: int, path: str = "/metrics") -> dict[str, Metric]:
    with urlopen(f"http://{HOST}:{port}{path}", timeout=10) as answer:
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def total(family: Metric, suffix: str = "", **labels: str) -> float:
    """Return the sum of the samples of a metric that have these labels."""
    return sum(
        sample.value
        for sample in family.samples
        if sample.name.endswith(suffix) and labels.items() <= sample.labels.items()
    )


@contextmanager
def running() -> Iterator[Stage]:
    """Start everything in a new directory; end it at the end."""
    directory = Path(tempfile.mkdtemp(prefix="observed-"))
    keeper = Keeper(directory)
    try:
        with EmbeddedServer() as server:
            environment = environment_of(server, directory)
            migrate(environment)
            config = ("--config", "python:example_project.gunicorn_conf")
            web, port = start_web(keeper, directory, *config, env=environment)
            children = ("--concurrency", "2", "--loglevel", "INFO")
            worker = start_worker(
                keeper, directory, "example_project.celery", *children, env=environment
            )
            prometheus = _start_prometheus(keeper, directory, f"{HOST}:{port}")
            worker.wait_for(lambda: worker.count(" ready.") > 0)
            yield Stage(server, web, worker, prometheus, port, environment)
            keeper.stop(web.process, worker.process)
    finally:
        keeper.close()


def migrate(environment: Mapping[str, str]) -> None:
    """Make the shop's database."""
    command = [sys.executable, "example_project/manage.py", "migrate", "--verbosity", "0"]
    subprocess.run(command, cwd=ROOT, env=dict(environment), check=True)


def environment_of(server: EmbeddedServer, directory: Path) -> dict[str, str]:
    """Return the environment of all processes of the shop, which share a metrics directory."""
    metrics = directory / "metrics"
    metrics.mkdir(exist_ok=True)
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "SHOP_REDIS_URL": server.url().rpartition("/")[0],
        "SHOP_DATABASE": str(directory / "shop.sqlite3"),
        "PROMETHEUS_MULTIPROC_DIR": str(metrics),
        "PYTHONDEVMODE": "",
    }


def _start_prometheus(keeper: Keeper, directory: Path, address: str) -> Prometheus:
    binary = shutil.which("prometheus")
    assert binary, "these tests need Prometheus: apt-get install prometheus"
    config = directory / "prometheus.yml"
    config.write_text(CONFIG.format(rules=RULES, address=address))
    prometheus = Prometheus(free_port())
    with (directory / "prometheus.log").open("wb") as log:
        keeper.spawn(
            binary,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'prometheus'}",
            f"--web.listen-address={HOST}:{prometheus.port}",
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    eventually(prometheus.ready, "Prometheus")
    return prometheus
