"""What the demo runs on: Valkey, a web server with several processes, and a Celery worker."""

import http.client
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from example_project.embedded import EmbeddedServer
from example_project.keeper import Keeper
from example_project.service import HOST, Service, start_web, start_worker

WORKER_PROCESSES = 4


@dataclass(frozen=True)
class Services:
    server: EmbeddedServer
    web: Service
    worker: Service
    port: int

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def metric(self, name: str) -> float:
        """Return the sum of a metric over all its labels, as the web server answers a scrape."""
        # Only now: what is imported before the directory is set counts for this process alone.
        from prometheus_client.parser import text_string_to_metric_families

        with urlopen(f"{self.address}metrics") as answer:  # noqa: S310 - our own address
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [sample for family in families for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name == name)


@contextmanager
def running() -> Iterator[Services]:
    """Start all services on free ports and a new database; stop and remove them at the end.

    This also sets up Django in this process, so import what needs Django afterwards.
    """
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="shop-"))
        keeper = Keeper(directory)
        stack.callback(keeper.close)
        server = stack.enter_context(EmbeddedServer())
        _share_metrics(directory)
        _set_up_django(server, directory / "shop.sqlite3")
        stack.callback(_close_connections)

        env = {**os.environ, "TMPDIR": str(directory)}  # their temporary files go with ours
        config = ("--config", "python:example_project.gunicorn_conf")
        web, port = start_web(keeper, directory, *config, env=env)
        stack.callback(web.stop)
        children = ("--concurrency", str(WORKER_PROCESSES), "--loglevel", "INFO")
        worker = start_worker(keeper, directory, "example_project.celery", *children, env=env)
        stack.callback(keeper.stop, web.process, worker.process)  # both at once is quicker
        web.wait_for(lambda: _web_answers(port))
        worker.wait_for(_worker_answers)
        yield Services(server, web, worker, port)


def _share_metrics(directory: Path) -> None:
    """Let the web server answer with the metrics of all processes, those of the worker included."""
    metrics = directory / "metrics"
    metrics.mkdir()
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)


def _set_up_django(server: EmbeddedServer, database: Path) -> None:
    # Not setdefault: the demo shows this project, whatever the shell is set up for.
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    os.environ["SHOP_REDIS_URL"] = server.url().rpartition("/")[0]
    os.environ["SHOP_DATABASE"] = str(database)

    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def _close_connections() -> None:
    from django.core.cache import caches
    from django.db import connections

    from example_project.celery import app

    app.close()
    caches.close_all()
    connections.close_all()


def _web_answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _worker_answers() -> bool:
    from example_project.celery import app

    return bool(app.control.ping(timeout=0.5))
