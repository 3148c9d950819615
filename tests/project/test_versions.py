"""Which versions are tested: the rows of noxfile.py, their table, the claims, and the pins."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tools import ROOT, syntax_tree
from tests.tools.docs import DOCS, table

TITLES = ("Programming Language :: Python :: ", "Framework :: Django :: ")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def recorded() -> list[list[str]]:
    return table(DOCS / "reference/versions.md", "Which versions are tested together")


def test_the_recorded_table_has_each_row() -> None:
    (rows,) = (
        item.value
        for item in syntax_tree(ROOT / "noxfile.py").body
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "ROWS"
    )
    assert isinstance(rows, ast.Dict)
    assert [row[0] for row in recorded()] == [ast.literal_eval(key) for key in rows.keys if key]


def test_the_classifiers_name_what_was_tested_and_no_more() -> None:
    claimed = {
        f"{title}{'.'.join(row[column].split('.')[:2])}"
        for row in recorded()
        for column, title in enumerate(TITLES, start=1)
    }
    pattern = r"(?:Programming Language :: Python|Framework :: Django) :: \d+\.\d+"
    assert {each for each in PROJECT["classifiers"] if re.fullmatch(pattern, each)} == claimed


# What the Makefile installs was tested together: each package that is asked for is pinned.


def wanted() -> Iterator[Requirement]:
    """Yield everything that the project asks for, for itself, in extras and in groups."""
    yield from map(Requirement, PYPROJECT["build-system"]["requires"])
    yield from map(Requirement, PROJECT["dependencies"])
    for extra in PROJECT["optional-dependencies"].values():
        yield from map(Requirement, extra)
    for group in PYPROJECT["dependency-groups"].values():
        yield from (Requirement(item) for item in group if isinstance(item, str))


def pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_the_constraints_are_versions_and_nothing_else() -> None:
    assert pins()
    assert [line for line in pins() if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_everything_that_is_asked_for_is_constrained() -> None:
    """A dependency that came after the last ``make constraints`` is missed, or is too old there."""
    pinned = {canonicalize_name(name): version for name, version in (p.split("==") for p in pins())}
    for each in wanted():
        version = pinned.get(canonicalize_name(each.name), "no version")
        assert version != "no version", f"{each}: run make constraints"
        assert each.specifier.contains(version), f"{each}: run make constraints"
