"""Commands that the checks run, and how a check fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.tools import ROOT


class ReleaseError(Exception):
    """Something about the release is wrong; the message says what, and the way out."""


def run(
    *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None, wrong: str = ""
) -> str:
    """Return what a command prints; raise ReleaseError if it fails."""
    ended = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=900
    )
    if ended.returncode:
        said = (ended.stdout + ended.stderr).strip()
        raise ReleaseError(f"{wrong or ' '.join(map(str, command))}\n{said}")
    return ended.stdout


def tool(*command: str | Path, **options: Any) -> str:
    """Run a module of this environment."""
    return run(sys.executable, "-m", *command, **options)


def say(what: str) -> None:
    """Print what has been checked."""
    print(what, flush=True)
