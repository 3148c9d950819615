"""What the Makefile installs was tested together: each package that is asked for is pinned."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tools import ROOT


def wanted() -> Iterator[Requirement]:
    """Yield everything that the project asks for, for itself, in extras and in groups."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    yield from map(Requirement, project["build-system"]["requires"])
    yield from map(Requirement, project["project"]["dependencies"])
    for extra in project["project"]["optional-dependencies"].values():
        yield from map(Requirement, extra)
    for group in project["dependency-groups"].values():
        yield from (Requirement(item) for item in group if isinstance(item, str))


def pins() -> list[str]:
    """Return the lines of the file without its comments."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_the_constraints_are_versions_and_nothing_else() -> None:
    """No address of an index, no path of the machine that wrote them, no hash."""
    assert pins()
    assert [line for line in pins() if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_everything_that_is_asked_for_is_constrained() -> None:
    """A dependency that came after the last ``make constraints`` is missed, or is too old there."""
    pinned = {canonicalize_name(name): version for name, version in (p.split("==") for p in pins())}
    for each in wanted():
        version = pinned.get(canonicalize_name(each.name), "no version")
        assert version != "no version", f"{each}: run make constraints"
        assert each.specifier.contains(version), f"{each}: run make constraints"
