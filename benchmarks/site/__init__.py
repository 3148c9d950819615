"""Django for the benchmarks: set up in this process, or served by gunicorn."""

import http.client
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.frame.processes import children, cpu_seconds
from example_project.keeper import Keeper
from example_project.service import HOST, Service, start_web

BACKEND = "django_redis_lock.backends.redis.RedisLockBackend"
SETTINGS = "BENCHMARK_SETTINGS"
"""The environment variable with the settings of a site, as JSON."""


def configure(**wanted: Any) -> None:
    import django
    from django.conf import settings

    settings.configure(INSTALLED_APPS=["django_redis_lock"], USE_TZ=True, **wanted)
    django.setup()


def environ(directory: Path, **settings: Any) -> dict[str, str]:
    """Return the environment for the processes of a site with these settings."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "benchmarks.site.settings",
        "TMPDIR": str(directory),
        SETTINGS: json.dumps(settings),
    }


class Site:
    """A site in worker processes of gunicorn."""

    def __init__(self, web: Service, port: int) -> None:
        self._web = web
        self.port = port

    def answers(self) -> bool:
        """Whether the site answers a request, with whatever status."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=1)
        try:
            connection.request("GET", "/")
            return bool(connection.getresponse().status)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def processes(self) -> list[int]:
        return children(self._web.process.pid)

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.processes())


@contextmanager
def serve(env: dict[str, str], processes: int, threads: int) -> Iterator[Site]:
    """Serve a site with so many processes and threads in each."""
    directory = Path(tempfile.mkdtemp(prefix="site-"))
    keeper = Keeper(directory)
    try:
        options = ["--config", "python:benchmarks.site.gunicorn_conf"]
        options += ["--workers", str(processes), "--threads", str(threads)]
        # All clients may come to one process, which keeps their connections open.
        options += ["--worker-connections", str(4 * threads)]
        web, port = start_web(keeper, directory, *options, env=env)
        site = Site(web, port)
        web.wait_for(site.answers)
        yield site
        web.stop(grace=1)
    finally:
        keeper.close()
