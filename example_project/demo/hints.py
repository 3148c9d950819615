"""Commands to run beside the demo, from the root of the repository."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from example_project.embedded import EmbeddedServer
from example_project.service import ROOT


def closing_commands(server: EmbeddedServer) -> Iterator[tuple[str, str]]:
    """Yield commands that show the locks of the demo, each with a label."""
    python = Path(sys.executable)
    if python.is_relative_to(ROOT):
        python = python.relative_to(ROOT)
    variable = f"SHOP_REDIS_URL={shlex.quote(server.url().rpartition('/')[0])}"
    manage = f"{variable} {shlex.quote(str(python))} example_project/manage.py"
    yield "Locks", f"{manage} locks"
    yield "Server", f"{manage} locks doctor"
