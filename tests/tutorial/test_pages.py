"""The Python blocks of README and of each page run in order, in one namespace and one process for
each page, with Django set up. ``127.0.0.1:6379`` and ``/run/valkey/valkey.sock`` stand for the
session's server. A block that assigns LOCKS or CACHES sets them, and the system checks then find
nothing. HTML comments, which readers do not see, control this:

    <!-- test: skip REASON -->       the block below is not run
    <!-- test                        code that tests what the block above defined
    CODE -->
"""

from __future__ import annotations

import doctest
import faulthandler
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import override_settings

from example_project.embedded import EmbeddedServer
from tests.tools import ROOT
from tests.tools.docs import DOCS, TUTORIAL, Block, blocks

PAGES = sorted(
    path
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]
    if "_build" not in path.parts
    and path != TUTORIAL
    and re.search(r"^```py", path.read_text(), re.MULTILINE)
)

SETTINGS = ("CACHES", "LOCKS", "DJANGO_REDIS_CONNECTION_FACTORY")

# This file runs the blocks of a page as a program of its own, so that they leave nothing behind.


def run_page(path: Path, port: int, unix_socket: str) -> None:
    _set_up_django(port)
    namespace: dict[str, Any] = {"__name__": "example_project.shop.documentation"}
    for block in blocks(path):
        if block.how in ("skip", "append") or block.language not in ("python", "pycon"):
            continue
        text = block.text.replace("127.0.0.1:6379", f"127.0.0.1:{port}")
        text = text.replace("/run/valkey/valkey.sock", unix_socket)
        before = {key: namespace.get(key) for key in SETTINGS}
        if block.language == "pycon":
            _run_examples(path, block, text, namespace)
        else:
            code = compile("\n" * (block.line - 1) + text, str(path), "exec")
            exec(code, namespace)  # noqa: S102 - our own documentation
        changed = {key: namespace[key] for key in SETTINGS if namespace.get(key) is not before[key]}
        if changed:
            override_settings(**changed).enable()
            messages = run_checks()
            assert not messages, f"{path}:{block.line}: {messages}"


def _set_up_django(port: int) -> None:
    os.environ["SHOP_REDIS_URL"] = f"redis://127.0.0.1:{port}"
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    import django
    from celery import Celery
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    for name in ("", ".models"):  # the shop as a reader's own project would have it
        sys.modules[f"shop{name}"] = importlib.import_module(f"example_project.shop{name}")
    app = Celery("documentation", broker="memory://", set_as_current=True)
    app.conf.task_always_eager = True


def _run_examples(path: Path, block: Block, text: str, namespace: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(text, namespace, path.name, str(path), block.line)
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
    namespace.update(test.globs)
    assert not results.failed, f"{path}:{block.line}"


@pytest.mark.parametrize("path", PAGES, ids=[path.stem for path in PAGES])
def test_the_python_of_a_page_runs(path: Path, server: EmbeddedServer, tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", __name__, path, str(server.port), server.unix_socket],
        cwd=ROOT,
        env={**os.environ, "SHOP_DATABASE": str(tmp_path / "shop.sqlite3")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout


if __name__ == "__main__":
    faulthandler.dump_traceback_later(90, exit=True)  # a page that hangs shows where
    run_page(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
