"""The runbook, followed to its end: a task hangs, and each command of the page is typed."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from django_redis_lock import lock, locks
from django_redis_lock.protocol.records import Holder
from example_project.embedded import EmbeddedServer
from tests.apps import operators_app
from tests.apps.celery.app import app as tests_app
from tests.tools import ROOT, eventually, queue
from tests.tools.celery_worker import WAIT, Worker, disconnect, running_worker
from tests.tools.docs import DOCS, Block, blocks, commands
from tests.tutorial.reader import Terminal, shape

PAGE = DOCS / "how-to" / "runbook.md"
SETTINGS = "tests.apps.runbook_settings"
MANAGE = """
import sys
from django.core.management import execute_from_command_line
from tests.apps.operators_app import app  # as a project's package does
app.set_current()
execute_from_command_line(sys.argv)
"""


def console() -> list[Block]:
    return [block for block in blocks(PAGE) if block.language == "console"]


@pytest.fixture
def worker(server: EmbeddedServer, tmp_path: Path) -> Iterator[Worker]:
    with running_worker(
        tmp_path,
        app="tests.apps.operators_app",
        concurrency=2,
        queue="operators",
        environment={"DJANGO_SETTINGS_MODULE": SETTINGS},
    ) as running:
        yield running
    disconnect(operators_app.app)
    tests_app.set_current()
    locks.reset()


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    (tmp_path / "manage.py").write_text(MANAGE)
    terminal = Terminal(tmp_path)
    terminal.environment |= {
        **os.environ,  # an operator knows where the site's server is
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "PYTHONPATH": str(ROOT),
        "PYTHONDEVMODE": "",
    }
    return terminal


@pytest.mark.timeout(300)
def test_the_runbook_does_what_it_says(worker: Worker, terminal: Terminal, settings: Any) -> None:
    settings.LOCKS = {"default": settings.LOCKS["default"]}
    result = operators_app.import_catalogue.apply_async(("7",))
    with operators_app.events() as client:
        assert client.blpop(["started:7"], timeout=WAIT)
    heir = lock("import:7", 60)
    (waiting,) = queue(heir)
    holder = eventually(held_long)
    (waiter,) = locks["default"].waiting("import:7")
    instead = {
        "16b2acbf-90d7-4d16-8f5c-6a1c7bb0a2f1": result.id,
        "16b2acbf": result.id,
        "8424": str(holder.pid),
        "b8c47b2e4040e965": holder.token_id,
        "93eb951f4103d91e": waiter.token_id,
        "42c01d8334187b24": holder.marks["worker"],
        "web2": socket.gethostname(),
        "15m": "0.1s",
        "-A shop": "-A tests.apps.operators_app",
    }
    for block in console():
        if block.how != "skip":
            follow(terminal, block, instead)
    assert waiting.outcome() is True
    heir.ensure_held()
    heir.release()
    with pytest.raises(TaskRevokedError, match="terminated"):
        result.get(timeout=WAIT)


def held_long() -> Holder | None:
    """Return the holder once the runbook's settings warn of it."""
    holder = locks["default"].holder("import:7")
    assert holder is not None
    assert holder.held_for is not None
    return holder if holder.held_for > 0.1 else None


def follow(terminal: Terminal, block: Block, instead: dict[str, str]) -> None:
    text = block.text
    for written, typed in instead.items():
        text = text.replace(written, typed)
    for command, expected in commands(text):
        got = terminal.run(command)
        if expected:
            assert shape(got) == shape(expected), f"line {block.line}: $ {command}\n{got}"
