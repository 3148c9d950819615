"""Which versions are tested: the rows of the matrix, its table, and what the package claims."""

from __future__ import annotations

import itertools
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.matrix.interpreters import find
from tests.matrix.rows import ROWS, Row
from tests.matrix.table import HEAD, Result, markdown
from tests.tools import ROOT
from tests.tools.docs import DOCS, table

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SIDES = {
    "django": ("5.2", "6.0", "6.1"),
    "redis": ("5.2", "newest"),
    "django-redis": ("5.4", "newest"),
    "hiredis": ("no", "newest"),
    "server": ("Redis", "Valkey"),
}


def side(row: Row, what: str) -> str:
    """Return the minor version of a package that a row asks for, or ``newest``, or ``no``."""
    if what == "server":
        return "Redis" if row.redis else "Valkey"
    asked = {item.name: item for item in map(Requirement, row.packages)}
    if what == "hiredis" and what not in asked:
        return "no"
    found = re.search(r"\d+\.\d+", str(asked[what].specifier)) if what in asked else None
    return found[0] if found else "newest"


@pytest.mark.parametrize("other", ["django-redis", "hiredis", "server"])
def test_each_side_of_redis_py_meets_both_sides_of_what_it_meets(other: str) -> None:
    met = {(side(row, "redis"), side(row, other)) for row in ROWS}
    assert set(itertools.product(SIDES["redis"], SIDES[other])) <= met


def test_each_python_meets_each_django_that_runs_on_it() -> None:
    met = {(python, side(row, "django")) for row in ROWS for python in row.pythons[:1]}
    wanted = set(itertools.product(("3.12", "3.13"), SIDES["django"])) | {("3.11", "5.2")}
    assert wanted <= met


def test_each_celery_has_a_row() -> None:
    assert {side(row, "celery") for row in ROWS} >= {"5.4", "5.5", "5.6", "5.7", "newest"}


def test_the_oldest_row_has_the_oldest_versions_that_the_package_accepts() -> None:
    """What ``pip`` may choose is tested, not only what it chooses by itself."""
    (row,) = (row for row in ROWS if row.name == "oldest")
    asked = {item.name: str(item.specifier) for item in map(Requirement, row.packages)}
    wanted = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["celery"]
    for item in map(Requirement, wanted):
        (oldest,) = item.specifier
        (version,) = SpecifierSet(asked[item.name])
        assert (version.operator, oldest.operator) == ("==", ">="), item
        assert version.version.removesuffix(".0") == oldest.version, item
    assert row.pythons == (PROJECT["requires-python"].removeprefix(">="),)
    assert row.required


def test_the_classifiers_name_what_the_matrix_has_passed_and_no_more() -> None:
    """Each Python and Django of a row that passed, and nothing that no row has met."""
    passed = [row for row in recorded() if row["Result"].startswith("passed")]
    claimed = {
        f"{title}{version}"
        for column, title in (
            ("Python", "Programming Language :: Python :: "),
            ("Django", "Framework :: Django :: "),
        )
        for version in {".".join(row[column].split(".")[:2]) for row in passed}
    }
    pattern = r"(?:Programming Language :: Python|Framework :: Django) :: \d+\.\d+"
    assert {each for each in PROJECT["classifiers"] if re.fullmatch(pattern, each)} == claimed


def test_the_recorded_table_has_each_row() -> None:
    assert [row["Row"] for row in recorded()] == [row.name for row in ROWS]
    assert [row for row in recorded() if row["Result"].startswith("failed")] == []


def recorded() -> list[dict[str, str]]:
    """Return the rows of the table in the documentation."""
    rows = table(DOCS / "reference/versions.md", "Which versions are tested together")
    return [dict(zip(HEAD, row, strict=True)) for row in rows]


def test_a_python_that_is_not_there_is_not_found() -> None:
    """Also where pyenv's command for it is on the path."""
    assert find("3.99") is None
    assert find("3.99t") is None


def test_the_table_tells_what_was_not_met_and_what_failed() -> None:
    """A row without its Python has no versions, and a failure is counted."""
    lines = markdown(
        [
            Result("free-threaded", "not met: no Python 3.14t"),
            Result("newest", "failed", {"python": "3.13.0"}, passed=1200, skipped=3, failed=1),
        ]
    ).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| free-threaded |  |")
    assert lines[2].endswith("| not met: no Python 3.14t |")
    assert "| 3.13.0 |" in lines[3]
    assert lines[3].endswith("| 1,200 passed, 3 skipped, 1 failed | failed |")
