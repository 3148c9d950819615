"""Runs tests against a changed copy of the project, each time in a fresh process."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Self

import pytest

# Imported once and inherited by each process, which saves it two seconds. Nothing here that the
# mutants belong to.
_INHERITED = (
    "celery.app.base",
    "django_redis.cache",
    "redis.cluster",
    "asyncio",
)
_COPIED = ("django_redis_lock", "tests", "example_project", "pyproject.toml")
_OPTIONS = (
    *("-x", "-q", "--keep-duplicates", "--timeout=20"),
    *("-p", "no:randomly", "-p", "no:cacheprovider"),
)


class Outcome(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMEOUT = "timed out"
    SURVIVED = "survived"


class Laboratory:
    """A copy of the project in which one file at a time is changed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="mutants-"))
        for name in _COPIED:
            source, target = self._root / name, self._directory / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, target, ignore=ignored)
            else:
                shutil.copy(source, target)
        for name in _INHERITED:
            importlib.import_module(name)
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def check(self, tests: Sequence[str]) -> float:
        """Run tests against the unchanged copy; return how many seconds that takes.

        Raises ``RuntimeError`` if they fail.
        """
        code, seconds = self._run(tests, limit=300)
        if code != pytest.ExitCode.OK:
            raise RuntimeError(f"the tests fail without any change: {' '.join(tests)}\n{self._log}")
        return seconds

    def try_out(
        self, path: Path, source: str, tests: Sequence[str], limit: float
    ) -> tuple[Outcome, float, str]:
        """Run tests with another source of a file, for at most so many seconds.

        Return the outcome, the seconds, and the test that has failed.
        """
        target = self._directory / path
        original = target.read_text()
        target.write_text(source)
        try:
            code, seconds = self._run(tests, limit)
        finally:
            target.write_text(original)
        if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise RuntimeError(f"the tests did not run: {' '.join(tests)}\n{self._log}")
        if code == pytest.ExitCode.OK:
            return Outcome.SURVIVED, seconds, ""
        if code is None:
            return Outcome.TIMEOUT, seconds, ""
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", self._log, re.MULTILINE)
        return Outcome.KILLED, seconds, failed[1] if failed else ""

    @property
    def _log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")[-5000:]

    def _run(self, tests: Sequence[str], limit: float) -> tuple[int | None, float]:
        """Run tests; return pytest's exit code, or ``None`` after the limit, and the seconds."""
        began = time.monotonic()
        pid = os.fork()
        if not pid:
            self._become_pytest(tests)
        code: int | None = None
        while time.monotonic() - began < limit:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                break
            time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # and what it has left running
        if code is None:
            os.waitpid(pid, 0)
        return code, time.monotonic() - began

    def _become_pytest(self, tests: Sequence[str]) -> None:
        code = 3
        try:
            os.setsid()
            os.chdir(self._directory)
            log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number in (1, 2):
                os.dup2(log, number)
            for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
                del sys.modules[name]
            sys.path.insert(0, str(self._directory))
            os.environ["PYTHONPATH"] = str(self._directory)
            code = pytest.main([*_OPTIONS, *tests])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
