"""Finds the interpreters of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_ASK = """
import sys, sysconfig
print(*sys.version_info[:2], bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
"""


def find(version: str) -> Path | None:
    """Return the interpreter of a version, such as ``3.12`` or ``3.14t``; None if there is none."""
    return next((path for path in _candidates(version) if _is(path, version)), None)


def _candidates(version: str) -> Iterator[Path]:
    """Yield what the path and pyenv have; pyenv's command on the path may lead to nothing."""
    found = shutil.which(f"python{version}")
    if found:
        yield Path(found)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(root.glob(f"versions/{version.removesuffix('t')}*/bin/python"), reverse=True)


def _is(path: Path, version: str) -> bool:
    asked = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, check=False)
    numbers = version.removesuffix("t").replace(".", " ")
    return asked.stdout.strip() == f"{numbers} {version.endswith('t')}"
