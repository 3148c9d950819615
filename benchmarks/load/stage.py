"""What the load is put on: a Redis server, a database, and the shop in several processes."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from benchmarks.frame import server
from benchmarks.frame.server import ADMIN
from benchmarks.load.shelf import Shelf
from benchmarks.load.shop.names import POSTGRESQL
from benchmarks.site import BACKEND, Site, environ, serve
from example_project.embedded import EmbeddedServer
from example_project.postgres import Postgres
from example_project.service import ROOT

PATIENCE = 60
POSTGRESQL_CONFIG = {"max_connections": 400, "fsync": "on"}
"""Commits reach the disk, as in a real shop; and there is a connection for each thread."""
PAYMENT_SECONDS = 0.005


@dataclass(frozen=True)
class Stage:
    """The running services, and how to look at them from outside."""

    database: str
    admin: Redis
    shelf: Shelf
    site: Site
    directory: Path

    @property
    def hold(self) -> Path:
        """A held payment lasts as long as this file exists."""
        return self.directory / "hold"

    @property
    def arrivals(self) -> int:
        """How many requests with a held payment have arrived."""
        file = self.directory / "arrivals"
        return file.stat().st_size if file.exists() else 0

    def commands(self) -> int:
        return sum(server.commands(self.admin).values())

    def requests(self) -> int:
        return int(self.admin.info("stats")["total_reads_processed"])

    def connections(self) -> tuple[int, int, int]:
        """Return the shop's connections to Redis, how many of these only listen, and to its
        database; for SQLite, open files."""
        redis, listening = server.connections(self.admin)
        if self.database == POSTGRESQL:
            return redis, listening, self.shelf.connections()
        path = str(self.directory / "shop.sqlite3")
        processes = self.site.processes()
        files = (file for pid in processes for file in Path(f"/proc/{pid}/fd").iterdir())
        return redis, listening, sum(_target(file) == path for file in files)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""  # closed in the meantime


@contextmanager
def staged(
    database: str, *, processes: int, threads: int, database_pool: int = 0, redis_pool: int = 0
) -> Iterator[Stage]:
    """Start everything; remove everything at the end.

    The pools limit the connections of a process; 0 allows one for each thread.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="load-")))
        redis = stack.enter_context(EmbeddedServer("--maxclients", "10000"))
        admin = stack.enter_context(Redis.from_url(redis.url(), client_name=ADMIN))
        file = directory / "shop.sqlite3"
        if database == POSTGRESQL:
            postgres = stack.enter_context(Postgres(**POSTGRESQL_CONFIG))
            entry = _postgresql(postgres, database_pool or threads)
        else:
            entry = _sqlite(file)
        url = redis.url().rpartition("/")[0]
        env = environ(
            directory,
            INSTALLED_APPS=["django_redis_lock", "benchmarks.load.shop"],
            MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
            ROOT_URLCONF="benchmarks.load.shop.urls",
            DATABASES={"default": entry},
            CACHES={
                "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
                "locks": _cache(f"{url}/1", redis_pool),
                "peers": _cache(f"{url}/2", redis_pool),
            },
            LOCKS={"default": {"BACKEND": BACKEND, "LOCATION": "locks"}},
            PEERS_URL=f"{url}/2",
            PAYMENT_SECONDS=PAYMENT_SECONDS,
            HOLD=str(directory / "hold"),
            ARRIVALS=str(directory / "arrivals"),
        )
        migrate = [sys.executable, "-m", "django", "migrate", "--run-syncdb", "--verbosity", "0"]
        subprocess.run(migrate, cwd=ROOT, env=env, check=True)
        shelf = (
            Shelf.on_postgresql(postgres.url) if database == POSTGRESQL else Shelf.in_sqlite(file)
        )
        stack.callback(shelf.close)
        site = stack.enter_context(serve(env, processes, threads))
        yield Stage(database, admin, shelf, site, directory)


def _cache(url: str, pool: int) -> dict[str, Any]:
    kind = "redis.BlockingConnectionPool" if pool else "redis.ConnectionPool"
    # redis-py's own limits are 100 connections and 5 s, too little for 1,000 threads with a
    # connection each, and for a BLPOP that lasts as long as a lease.
    limits = {"max_connections": pool or 4096, "socket_timeout": 90}
    return {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": url,
        "OPTIONS": {"CONNECTION_POOL_CLASS": kind, "CONNECTION_POOL_KWARGS": limits},
    }


def _postgresql(postgres: Postgres, pool: int) -> dict[str, Any]:
    # With a pool, a request takes a connection at its first query. With CONN_MAX_AGE each thread
    # would keep that of its last request while it waits for the next lock.
    options = {"pool": {"min_size": 0, "max_size": pool, "timeout": PATIENCE}}
    return postgres.settings(OPTIONS=options)


def _sqlite(path: Path) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "CONN_MAX_AGE": None,
        "OPTIONS": {
            # As in the example project, except that commits reach the disk.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
            "timeout": PATIENCE,
            "transaction_mode": "IMMEDIATE",
        },
    }
