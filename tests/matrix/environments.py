"""Makes a virtual environment for a row, and tells which versions it got."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

from tests.matrix.rows import Row
from tests.tools import ROOT

PACKAGES = ("django", "redis", "django-redis", "celery", "kombu", "hiredis")

_VERSIONS = f"""
import json, platform
from importlib.metadata import distributions
from example_project.embedded import server_binary
there = {{each.name.lower().replace("_", "-"): each.version for each in distributions()}}
found = {{name: there[name] for name in {PACKAGES!r} if name in there}}
print(json.dumps({{"python": platform.python_version(), **found, "valkey": str(server_binary())}}))
"""


def environment(row: Row, interpreter: Path) -> Path:
    """Return the Python of the row's environment, which is made unless it is there already."""
    folder = ROOT / f".venv-matrix-{row.name}"
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    wanted = " ".join([str(interpreter), *row.packages, project])
    if ready.exists() and ready.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([interpreter, "-m", "venv", folder], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--upgrade", "pip>=25.3"], check=True)
    asked = ["--editable", ".[celery]", "--group", "test", *row.packages]
    subprocess.run([*install, *asked], check=True, cwd=ROOT)
    ready.write_text(wanted)
    return python


def versions(row: Row, python: Path) -> dict[str, str]:
    """Return the versions in the environment, and the server as in ``Valkey 9.1.2``."""
    asked = subprocess.run(
        [python, "-c", _VERSIONS], capture_output=True, text=True, check=True, cwd=ROOT
    )
    found: dict[str, str] = json.loads(asked.stdout)
    valkey = found.pop("valkey")
    server = redis_server() if row.redis else valkey
    assert server is not None
    said = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
    number = re.search(r"v=([\d.]+)", said)
    assert number, f"{server} --version says {said!r}"
    return {**found, "server": f"{'Redis' if row.redis else 'Valkey'} {number[1]}"}


def redis_server() -> str | None:
    """Return the path of the system's Redis."""
    return shutil.which("redis-server")
