"""Which versions are tested: the rows of noxfile.py, their tables, and the claims."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest

from tests.tools import ROOT, syntax_tree
from tests.tools.docs import DOCS, table

TITLES = ("Programming Language :: Python :: ", "Framework :: Django :: ")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


TABLES = {"ROWS": "Which versions are tested together", "SERVERS": "Which servers are tested"}


def recorded(rows: str) -> list[list[str]]:
    return table(DOCS / "reference/versions.md", TABLES[rows])


@pytest.mark.parametrize("rows", TABLES)
def test_the_recorded_table_has_each_row(rows: str) -> None:
    (value,) = (
        item.value
        for item in syntax_tree(ROOT / "noxfile.py").body
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == rows
    )
    assert isinstance(value, ast.Dict)
    names = [ast.literal_eval(key) for key in value.keys if key]
    assert [row[0] for row in recorded(rows)] == names


def test_the_classifiers_name_what_was_tested_and_no_more() -> None:
    claimed = {
        f"{title}{'.'.join(row[column].split('.')[:2])}"
        for row in recorded("ROWS")
        for column, title in enumerate(TITLES, start=1)
    }
    pattern = r"(?:Programming Language :: Python|Framework :: Django) :: \d+\.\d+"
    assert {each for each in PROJECT["classifiers"] if re.fullmatch(pattern, each)} == claimed
