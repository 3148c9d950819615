"""A real PostgreSQL server for the tests and the load runs, on the system's own binaries.

    with Postgres() as server:
        DATABASES = {"default": server.settings()}

Debian and Ubuntu: ``apt-get install postgresql``.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from example_project.embedded import free_port
from example_project.keeper import Keeper

START_SECONDS = 60.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.01
_LOG_TAIL_LINES = 20


class PostgresError(RuntimeError):
    """The server could not be started; the message says what to do, or ends with its log."""


class Postgres:
    """A PostgreSQL on a free port of 127.0.0.1 with a directory of its own, gone with this process.

    `config` are settings of the server, such as ``max_connections=200``. It lets in whoever comes
    from this machine, and does not survive a power cut: it is for tests.

    PostgreSQL does not run as root; for root it runs as the user `postgres`.
    """

    port: int
    directory: Path

    def __init__(self, **config: object) -> None:
        self._config = config
        self._keeper: Keeper | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._user = {"user": "postgres", "group": "postgres", "extra_groups": []}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the server."""
        if self._process is None:
            raise RuntimeError("the PostgreSQL server is not running")
        return self._process.pid

    @property
    def user(self) -> str:
        """The superuser of the server."""
        return "postgres"

    @property
    def url(self) -> str:
        """The URL of the database that is there from the beginning."""
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/postgres"

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return an entry of Django's DATABASES; `more` is added to it or replaces what it has."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": self.user,
            "HOST": "127.0.0.1",
            "PORT": self.port,
            **more,
        }

    def start(self) -> None:
        """Make an empty database cluster, start the server and wait until it lets clients in."""
        if self._keeper is not None:
            raise RuntimeError("the PostgreSQL server was started already")
        binaries = postgres_binaries()
        self.directory = Path(tempfile.mkdtemp(prefix="postgres-"))
        try:
            self._keeper = Keeper(self.directory)
            if self._user:
                shutil.chown(self.directory, self._user["user"], self._user["group"])
            self._create(binaries)
            self._launch(binaries)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server, whoever is still connected, and remove its directory."""
        if self._keeper is None:
            return
        if self._process is not None and self._process.poll() is None:
            # What the keeper sends, SIGTERM, would have it wait for its clients to leave.
            self._process.send_signal(signal.SIGINT)
            self._keeper.stop(self._process, grace=STOP_SECONDS)
        self._process = None
        self._keeper.close()
        self._keeper = None

    def _create(self, binaries: Path) -> None:
        done = subprocess.run(
            [
                binaries / "initdb",
                *("--pgdata", self._data),
                *("--username", self.user),
                *("--auth", "trust"),
                *("--encoding", "UTF8"),
                "--no-locale",
                "--no-sync",
            ],
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **self._user,
        )
        if done.returncode:
            raise PostgresError(f"initdb failed:\n{done.stdout}")

    def _launch(self, binaries: Path) -> None:
        """Start the process; again, on another port, when somebody else has the port."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            self.port = free_port()
            self._spawn(binaries)
            if self._is_ready(deadline):
                return
            assert self._process is not None
            ended, log = self._process.poll() is not None, self._log.read_text(errors="replace")
            if not (ended and "already in use" in log.lower() and time.monotonic() < deadline):
                what = "ended" if ended else f"was not ready within {START_SECONDS:g} s"
                tail = "\n".join(log.splitlines()[-_LOG_TAIL_LINES:])
                raise PostgresError(f"the PostgreSQL server {what}. Its log:\n{tail}")

    def _spawn(self, binaries: Path) -> None:
        assert self._keeper is not None
        config = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.directory,
            "fsync": "off",
            "timezone": "UTC",
            **self._config,
        }
        options = [part for name, value in config.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("wb") as log:
            self._process = self._keeper.spawn(
                binaries / "postgres",
                "-D",
                self._data,
                *options,
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._user,
            )

    def _is_ready(self, deadline: float) -> bool:
        """Wait until the server says so in its lock file; False when it ended or the time is up."""
        assert self._process is not None
        told = self._data / "postmaster.pid"
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return False
            with contextlib.suppress(FileNotFoundError):
                if told.read_text().split()[-1:] == ["ready"]:
                    return True
            time.sleep(POLL_SECONDS)
        return False

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _log(self) -> Path:
        return self.directory / "postgres.log"


def postgres_binaries() -> Path:
    """The directory of the newest PostgreSQL server that is installed."""
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
