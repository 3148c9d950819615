"""A real RabbitMQ for the tests, on the system's own program: apt-get install rabbitmq-server."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from kombu import Connection

from example_project.embedded import free_port
from example_project.keeper import Keeper

CONFIG = """
loopback_users = none
disk_free_limit.absolute = 1MB
"""


class Node(NamedTuple):
    port: int
    environment: dict[str, str]

    def control(self, *command: str) -> None:
        program = [_program("rabbitmqctl"), *command]
        subprocess.run(program, env=self.environment, check=True, capture_output=True)


@contextmanager
def rabbitmq() -> Iterator[Node]:
    """Run a RabbitMQ with a directory of its own, gone with this process; yield it. Its port mapper
    (epmd) is its own as well, so that no other node on the machine is touched."""
    port, mapper = free_port(), str(free_port())
    directory = Path(tempfile.mkdtemp(prefix="rabbitmq-"))
    (directory / "rabbitmq.conf").write_text(CONFIG)
    (directory / "plugins").write_text("[].\n")
    environment = {
        **os.environ,
        "HOME": str(directory),  # has the cookie
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": mapper,
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_MNESIA_BASE": str(directory / "db"),
        "RABBITMQ_NODENAME": f"tests-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
    }
    keeper, log = Keeper(directory), directory / "output.log"
    with closing(keeper):
        # Started by the node it would be a daemon, which nobody stops.
        keeper.spawn(_program("epmd"), "-port", mapper, env=environment)
        with log.open("wb") as output:
            server = keeper.spawn(
                _program("rabbitmq-server"),
                cwd=directory,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + 60
        while not _answers(port):
            ended = server.poll() is not None or time.monotonic() > deadline
            assert not ended, f"RabbitMQ does not answer:\n{log.read_text()}"
            time.sleep(0.05)
        yield Node(port, environment)


def _answers(port: int) -> bool:
    with suppress(OSError), Connection(f"amqp://127.0.0.1:{port}//") as connection:
        connection.connect()
        return True
    return False


def _program(name: str) -> str:
    """Return the path of a program; Debian's own wrapper would insist on a user of its own."""
    debian = Path("/usr/lib/rabbitmq/bin") / name
    found = str(debian) if debian.exists() else shutil.which(name)
    assert found, f"there is no {name} on this machine: apt-get install rabbitmq-server"
    return found
