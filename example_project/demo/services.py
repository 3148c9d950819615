"""What the demo runs on: Valkey, a web server with several processes, and a Celery worker."""

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from example_project.embedded import EmbeddedServer
from example_project.keeper import Keeper

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_SECONDS = 30
POLL_SECONDS = 0.02
WORKER_PROCESSES = 4
HOST = "127.0.0.1"
_LOG_TAIL_LINES = 20


class ServiceError(RuntimeError):
    """A service did not start, or ended while it was needed; the message has its log's tail."""


@dataclass(frozen=True)
class Service:
    """A process that serves, and where it logs."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise `ServiceError` when the process has ended."""
        if self.process.poll() is not None:
            raise ServiceError(f"the {self.name} ended with {self.process.returncode}{self.tail()}")

    def tail(self) -> str:
        """Return the last lines of the log, for a message."""
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join([". Its log:", *lines])


@dataclass(frozen=True)
class Services:
    """Everything that runs for the demo."""

    server: EmbeddedServer
    web: Service
    worker: Service
    port: int

    @property
    def address(self) -> str:
        """Where the shop is."""
        return f"http://{HOST}:{self.port}/"


def wait_for(service: Service, condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds, which it does when `service` does its work."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        service.check()
        if time.monotonic() > deadline:
            raise ServiceError(
                f"the {service.name} took more than {PATIENCE_SECONDS} s{service.tail()}"
            )
        time.sleep(POLL_SECONDS)


@contextmanager
def running() -> Iterator[Services]:
    """Start all services on free ports and a fresh database; leave nothing behind.

    Django is set up in this process on the way, so what needs it is to be imported afterwards.
    """
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="shop-"))
        keeper = Keeper(directory)
        stack.callback(keeper.close)
        server = stack.enter_context(EmbeddedServer())
        _set_up_django(server, directory / "shop.sqlite3")
        stack.callback(_close_connections)

        web, port = _start_web(keeper, directory)
        stack.callback(keeper.stop, web.process)
        worker = _start_worker(keeper, directory)
        stack.callback(keeper.stop, web.process, worker.process)  # both at once, so it is quicker
        wait_for(web, lambda: _web_answers(port))
        wait_for(worker, _worker_answers)
        yield Services(server, web, worker, port)


def _set_up_django(server: EmbeddedServer, database: Path) -> None:
    # Set, not only defaulted: the demo is about this project, whatever else the shell is used for.
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


def _start_web(keeper: Keeper, directory: Path) -> tuple[Service, int]:
    # The socket is made here and handed down, so nobody else can get the port in between.
    with socket.create_server((HOST, 0), backlog=1024) as listener:
        command = ["-m", "gunicorn", "--config", "python:example_project.gunicorn_conf"]
        command += ["--bind", f"fd://{listener.fileno()}"]
        service = _start(keeper, "web server", command, directory, pass_fds=(listener.fileno(),))
        return service, listener.getsockname()[1]


def _start_worker(keeper: Keeper, directory: Path) -> Service:
    command = ["-m", "celery", "--app", "example_project.celery", "worker"]
    command += ["--pool", "prefork", "--concurrency", str(WORKER_PROCESSES), "--loglevel", "INFO"]
    command += ["--without-gossip", "--without-mingle"]  # there is no second worker to talk to
    return _start(keeper, "Celery worker", command, directory)


def _start(
    keeper: Keeper, name: str, command: list[str], directory: Path, pass_fds: tuple[int, ...] = ()
) -> Service:
    path = directory / f"{name.lower().replace(' ', '-')}.log"
    with path.open("wb") as log:
        process = keeper.spawn(
            sys.executable,
            *command,
            cwd=ROOT,
            # What they leave in the directory for temporary files goes with ours.
            env={**os.environ, "TMPDIR": str(directory)},
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
        )
    return Service(name, process, path)


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
