"""Installs the wheel as a user does, beside the oldest and the newest dependencies."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path

from packaging.requirements import Requirement

from tests.matrix.interpreters import find
from tests.matrix.rows import ROWS
from tests.release.building import Built
from tests.release.commands import ReleaseError, run, tool

SHOWN = ("django", "redis", "django-redis")
_VERSIONS = f"""
import platform
from importlib.metadata import version
print("Python", platform.python_version(), *(f", {{each}} {{version(each)}}" for each in {SHOWN!r}))
"""


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, its dependencies and nothing else: no pip either."""

    name: str
    folder: Path
    wheel: Path
    constraints: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def install(self, extras: str = "") -> None:
        """Install the wheel with extras, such as ``[celery]``."""
        tool(
            *("pip", "--python", self.python, "install", "--quiet", "--disable-pip-version-check"),
            *("--constraint", self.constraints, f"{self.wheel}{extras}"),
            wrong=f"the wheel can't be installed beside the {self.name} dependencies",
        )

    def versions(self) -> str:
        """Return the versions that it met, such as ``Python 3.11.7, django 5.2``."""
        return run(self.python, "-c", _VERSIONS).strip().replace(" ,", ",")


def install(corner: str, built: Built, work: Path) -> Installed:
    """Make the environment of a corner of the matrix, ``oldest`` or ``newest``; without extras."""
    (row,) = (row for row in ROWS if row.name == corner)
    interpreter = next((path for version in row.pythons if (path := find(version))), None)
    if interpreter is None:
        raise ReleaseError(f"there is no Python {' or '.join(row.pythons)}: install one")
    folder = work / corner
    run(interpreter, "-m", "venv", "--without-pip", folder)
    constraints = work / f"{corner}.txt"
    constraints.write_text(oldest(built.wheel) if corner == "oldest" else "")
    installed = Installed(corner, folder, built.wheel, constraints)
    installed.install()
    return installed


def oldest(wheel: Path) -> str:
    """Return constraints with the oldest version of each dependency that the wheel accepts."""
    lines = []
    for item in map(Requirement, _metadata(wheel).get_all("Requires-Dist", [])):
        bounds = [each.version for each in item.specifier if each.operator == ">="]
        if len(bounds) != 1:
            raise ReleaseError(f"{item}: name the oldest version, as in {item.name}>=1.0")
        lines.append(f"{item.name}=={bounds[0]}\n")
    return "".join(lines)


def extras(wheel: Path) -> list[str]:
    """Return the names of the extras that the wheel offers."""
    return _metadata(wheel).get_all("Provides-Extra", [])


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))
