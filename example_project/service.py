"""Services under test: a web server and a Celery worker, each with a log of its own."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from example_project.keeper import Keeper

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
POLL_SECONDS = 0.02
PATIENCE_SECONDS = 60.0
_LOG_TAIL_LINES = 20


class ServiceError(RuntimeError):
    """A service did not start or ended too early; the message ends with the tail of its log."""


class Service:
    """A Python program, started by a keeper, that logs into a directory."""

    def __init__(
        self, keeper: Keeper, name: str, directory: Path, command: list[str], **options: Any
    ) -> None:
        self.name = name
        self.log = directory / f"{name.lower().replace(' ', '-')}.log"
        self._keeper = keeper
        self._command = command
        self._options = options
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Start the program; call again after `stop()` or `kill()`."""
        with self.log.open("ab") as log:
            self.process = self._keeper.spawn(
                sys.executable,
                *self._command,
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._options,
            )

    def stop(self, grace: float = 5.0) -> None:
        """Ask the program to end; kill it and its children after `grace` seconds."""
        self._keeper.stop(self.process, grace=grace)

    def kill(self) -> None:
        """Kill the program and its children at once, as in a power cut."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.stop(grace=0)

    def check(self) -> None:
        """Raise `ServiceError` if the program has ended."""
        if self.process.poll() is not None:
            raise ServiceError(
                f"the {self.name} ended with {self.process.returncode}{self._tail()}"
            )

    def wait_for(self, condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until `condition` holds, as long as the program runs."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise ServiceError(f"the {self.name} took more than {seconds:g} s{self._tail()}")
            time.sleep(POLL_SECONDS)

    def count(self, *texts: str) -> int:
        """Return how many lines of the log contain all `texts`."""
        lines = self.log.read_text(errors="replace").splitlines()
        return sum(all(text in line for text in texts) for line in lines)

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join([". Its log:", *lines])


def start_web(
    keeper: Keeper, directory: Path, *options: str, env: Mapping[str, str]
) -> tuple[Service, int]:
    """Start gunicorn on a free port; return the service and the port."""
    # The socket is created here and passed on, so no other program can take the port.
    with socket.create_server((HOST, 0), backlog=2048) as listener:
        command = ["-m", "gunicorn", "--bind", f"fd://{listener.fileno()}", *options]
        fds = (listener.fileno(),)
        web = Service(keeper, "web server", directory, command, env=env, pass_fds=fds)
        return web, int(listener.getsockname()[1])


def start_worker(
    keeper: Keeper, directory: Path, app: str, *options: str, env: Mapping[str, str]
) -> Service:
    """Start a prefork Celery worker under a name of its own."""
    name = f"{secrets.token_hex(4)}@%h"
    command = ["-m", "celery", "--app", app, "worker", "--pool", "prefork", "--hostname", name]
    command += ["--without-gossip", "--without-mingle", *options]
    return Service(keeper, f"Celery worker {name[:8]}", directory, command, env=env)
