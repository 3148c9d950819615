"""A real PostgreSQL server for the tests and the load run, with the system's own binaries.

    with Postgres() as server:
        DATABASES = {"default": server.settings()}

Debian and Ubuntu: ``apt-get install postgresql``.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from example_project.embedded import Server


class PostgresError(RuntimeError):
    """The server could not be started; the message says what to do, or ends with its log."""


class Postgres(Server):
    """A PostgreSQL server for tests: it needs no password and does not survive a power cut.

    `config` holds server settings, such as ``max_connections=200``. PostgreSQL refuses to run as
    root; when root starts it, it runs as the user `postgres`.
    """

    title = "PostgreSQL server"
    error = PostgresError
    prefix = "postgres-"
    start_seconds = 60.0
    stop_seconds = 10.0
    user = "postgres"
    """The superuser of the server."""

    def __init__(self, **config: object) -> None:
        super().__init__()
        self._config = config
        if os.geteuid() == 0:
            self._spawn_options = {"user": "postgres", "group": "postgres", "extra_groups": []}

    @property
    def url(self) -> str:
        """The URL of the initial database."""
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/postgres"

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return an entry of Django's DATABASES; `more` adds to it or overrides it."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": self.user,
            "HOST": "127.0.0.1",
            "PORT": self.port,
            **more,
        }

    def _binary(self) -> Path:
        return postgres_binaries() / "postgres"

    def _prepare(self, binary: Path) -> None:
        if self._spawn_options:
            shutil.chown(self.directory, "postgres", "postgres")
        initdb = ["--username", self.user, "--auth", "trust", "--encoding", "UTF8"]
        done = subprocess.run(
            [binary.with_name("initdb"), "-D", self._data, *initdb, "--no-locale", "--no-sync"],
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **self._spawn_options,
        )
        if done.returncode:
            raise PostgresError(f"initdb failed:\n{done.stdout}")

    def _command(self, binary: Path) -> list[Any]:
        config = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.directory,
            "fsync": "off",
            "timezone": "UTC",
            **self._config,
        }
        options = [part for name, value in config.items() for part in ("-c", f"{name}={value}")]
        return [binary, "-D", self._data, *options]

    def _answers(self) -> bool:
        """Whether the server says in its lock file that it is ready."""
        with contextlib.suppress(FileNotFoundError):
            return (self._data / "postmaster.pid").read_text().split()[-1:] == ["ready"]
        return False

    def _end(self, grace: float) -> None:
        if grace and self._process is not None and self._process.poll() is None:
            # On SIGTERM, which the keeper sends, it would wait for its clients to disconnect.
            self._process.send_signal(signal.SIGINT)
        super()._end(grace)

    @property
    def _data(self) -> Path:
        return self.directory / "data"


def postgres_binaries() -> Path:
    """The directory of the newest installed PostgreSQL server."""
    debian = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    found = sorted(debian, key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    if on_path is None:
        raise PostgresError(
            "there is no PostgreSQL server on this machine to start: apt-get install postgresql"
        )
    return Path(on_path).resolve().parent
