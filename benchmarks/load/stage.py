"""What the load is put on: a Redis server, a database, and the shop in several processes."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from benchmarks.contenders import ADMIN
from benchmarks.load.shelf import Shelf
from benchmarks.load.shop.names import POSTGRESQL
from example_project.embedded import EmbeddedServer
from example_project.keeper import Keeper
from example_project.postgres import Postgres

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
PATIENCE = 60
POSTGRESQL_CONFIG = {"max_connections": 400, "fsync": "on"}
"""Commits reach the disk, as in a shop; and there is a connection for each thread."""


@dataclass(frozen=True)
class Stage:
    """Everything that is up, and how to look at it from outside."""

    database: str
    redis: EmbeddedServer
    admin: Redis
    shelf: Shelf
    web: subprocess.Popen[bytes]
    port: int
    directory: Path

    @property
    def hold(self) -> Path:
        """The file while which a held payment hangs."""
        return self.directory / "hold"

    @property
    def arrivals(self) -> int:
        """How many requests with a held payment have come."""
        file = self.directory / "arrivals"
        return file.stat().st_size if file.exists() else 0

    def commands(self) -> int:
        """Return how many commands the Redis server has run, inside scripts too."""
        figures = self.admin.info("commandstats").values()
        return sum(figure["calls"] for figure in figures)

    def requests(self) -> int:
        """Return how often the Redis server has read from a connection."""
        return int(self.admin.info("stats")["total_reads_processed"])

    def processor_seconds(self) -> float:
        """Return how much processor time the web server has taken."""
        ticks = 0
        for pid in self.processes():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def processes(self) -> list[int]:
        """Return the worker processes of the web server."""
        children = Path(f"/proc/{self.web.pid}/task/{self.web.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def redis_connections(self) -> tuple[int, int]:
        """Return how many connections the shop has to Redis, and how many of these only listen."""
        clients = [client for client in self.admin.client_list() if client["name"] != ADMIN]
        return len(clients), sum(int(client["sub"]) > 0 for client in clients)

    def database_connections(self) -> int:
        """Return how many connections the shop has to its database; for SQLite, open files."""
        if self.database == POSTGRESQL:
            return self.shelf.connections()
        path = str(self.directory / "shop.sqlite3")
        files = (file for pid in self.processes() for file in Path(f"/proc/{pid}/fd").iterdir())
        return sum(_target(file) == path for file in files)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""  # closed meanwhile


@contextmanager
def staged(
    database: str,
    *,
    processes: int,
    threads: int,
    database_pool: int = 0,
    redis_pool: int = 0,
) -> Iterator[Stage]:
    """Start all of it; leave nothing behind.

    The pools bound the connections of a process; 0 lets each thread have one.
    """
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="load-"))
        keeper = Keeper(directory)
        stack.callback(keeper.close)
        redis = stack.enter_context(EmbeddedServer("--maxclients", "10000"))
        admin = Redis.from_url(redis.url(), client_name=ADMIN)
        stack.callback(admin.close)
        if database == POSTGRESQL:
            server = stack.enter_context(Postgres(**POSTGRESQL_CONFIG))
            entry = _postgresql(server, database_pool or threads)
        else:
            entry = _sqlite(directory / "shop.sqlite3")
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "benchmarks.load.shop.settings",
            "TMPDIR": str(directory),
            "LOAD_STAGE": json.dumps(
                {
                    "database": entry,
                    "redis": redis.url().rpartition("/")[0],
                    "redis_pool": redis_pool,
                    "hold": str(directory / "hold"),
                    "arrivals": str(directory / "arrivals"),
                }
            ),
        }
        _make_tables(environment)
        shelf = (
            Shelf.on_postgresql(server.url)
            if database == POSTGRESQL
            else Shelf.in_sqlite(directory / "shop.sqlite3")
        )
        stack.callback(shelf.close)
        web, port = _start_web(keeper, directory, environment, processes, threads)
        stack.callback(keeper.stop, web, grace=1)
        yield Stage(database, redis, admin, shelf, web, port, directory)


def _postgresql(server: Postgres, pool: int) -> dict[str, Any]:
    # A pool, so that a request has a connection only from its first query on. With CONN_MAX_AGE
    # each thread would keep the one of its last request while it waits for the next lock.
    return server.settings(
        OPTIONS={"pool": {"min_size": 0, "max_size": pool, "timeout": PATIENCE}},
    )


def _sqlite(path: Path) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "CONN_MAX_AGE": None,
        "OPTIONS": {
            # As in the example project, but commits reach the disk here too.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
            "timeout": PATIENCE,
            "transaction_mode": "IMMEDIATE",
        },
    }


def _make_tables(environment: dict[str, str]) -> None:
    command = ["-m", "django", "migrate", "--run-syncdb", "--verbosity", "0"]
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=True)


def _start_web(
    keeper: Keeper, directory: Path, environment: dict[str, str], processes: int, threads: int
) -> tuple[subprocess.Popen[bytes], int]:
    # The socket is made here and handed down, so nobody else can get the port in between.
    with socket.create_server((HOST, 0), backlog=2048) as listener:
        port: int = listener.getsockname()[1]
        command = ["-m", "gunicorn", "benchmarks.load.shop.wsgi"]
        command += ["--config", "python:benchmarks.load.shop.gunicorn_conf"]
        command += ["--bind", f"fd://{listener.fileno()}"]
        command += ["--workers", str(processes), "--threads", str(threads)]
        # All the buyers may come to one process, and it keeps their connections open.
        command += ["--worker-connections", str(4 * threads)]
        log = directory / "web.log"
        with log.open("wb") as output:
            web = keeper.spawn(
                sys.executable,
                *command,
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(listener.fileno(),),
            )
    _wait_for_web(web, port, log)
    return web, port


def _wait_for_web(web: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while web.poll() is None and time.monotonic() < deadline:
        try:
            with socket.create_connection((HOST, port), timeout=1) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
                if connection.recv(16).startswith(b"HTTP/"):
                    return
        except OSError:
            pass  # not yet
        time.sleep(0.02)
    raise RuntimeError(f"the web server did not come up:\n{log.read_text(errors='replace')}")
