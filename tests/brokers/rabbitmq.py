"""A real RabbitMQ for the tests, on the system's own program: apt-get install rabbitmq-server."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from kombu import Connection

from example_project.embedded import free_port
from example_project.keeper import Keeper

START_SECONDS = 60.0
CONFIG = """
loopback_users = none
disk_free_limit.absolute = 1MB
"""


class RabbitMQ:
    """A RabbitMQ on a free port of 127.0.0.1 with a directory of its own, gone with this process.

    Its port mapper (epmd) is its own as well, so that no other node on the machine is touched.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="rabbitmq-"))
        self._keeper = Keeper(self._directory)

    @property
    def log(self) -> Path:
        return self._directory / "output.log"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._keeper.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._keeper.close()

    def _start(self) -> None:
        mapper = str(free_port())
        (self._directory / "rabbitmq.conf").write_text(CONFIG)
        (self._directory / "plugins").write_text("[].\n")
        environment = {
            **os.environ,
            "HOME": str(self._directory),  # has the cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": mapper,
            "RABBITMQ_CONFIG_FILE": str(self._directory / "rabbitmq.conf"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._directory / "plugins"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_LOG_BASE": str(self._directory / "log"),
            "RABBITMQ_MNESIA_BASE": str(self._directory / "db"),
            "RABBITMQ_NODENAME": f"tests-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
        }
        # Started by the node it would be a daemon, which nobody stops.
        self._keeper.spawn(_program("epmd"), "-port", mapper, env=environment)
        with self.log.open("wb") as output:
            server = self._keeper.spawn(
                _program("rabbitmq-server"),
                cwd=self._directory,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            ended = server.poll() is not None or time.monotonic() > deadline
            assert not ended, f"RabbitMQ does not answer:\n{self.log.read_text()}"
            time.sleep(0.05)

    def _answers(self) -> bool:
        with suppress(OSError), Connection(f"amqp://127.0.0.1:{self.port}//") as connection:
            connection.connect()
            return True
        return False


def _program(name: str) -> str:
    """Return the path of a program; Debian's own wrapper would insist on a user of its own."""
    debian = Path("/usr/lib/rabbitmq/bin") / name
    found = str(debian) if debian.exists() else shutil.which(name)
    assert found, f"there is no {name} on this machine: apt-get install rabbitmq-server"
    return found
