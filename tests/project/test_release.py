"""The checks of a release fail on what they are for. ``make release-check`` runs them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.release.building import compare
from tests.release.commands import ReleaseError
from tests.release.installing import extras, oldest
from tests.release.inventory import check_licences, judge
from tests.release.naming import check_names

CHANGELOG = "# Changelog\n\n## [1.0.0] - 2026-12-31\n\n## [0.9.0] - 2026-01-01\n"


@pytest.mark.parametrize(
    ("version", "changelog", "tag", "words"),
    [
        ("1.0.1", CHANGELOG, None, "version 1.0.1, but CHANGELOG.md begins with 1.0.0"),
        ("1.0.0", "# Changelog\n", None, "begins with no release"),
        ("1.0.0", CHANGELOG, "1.0.0", "the tag 1.0.0 is not that of version 1.0.0: tag v1.0.0"),
        ("1.0.0", f"## [Unreleased]\n{CHANGELOG}", "v1.0.0", "unreleased changes"),
        ("1.0.0", CHANGELOG.replace(" - 2026-12-31", ""), "v1.0.0", "has no date"),
    ],
)
def test_version_changelog_and_tag_have_to_agree(
    version: str, changelog: str, tag: str | None, words: str
) -> None:
    """What is wrong is named, with what to write."""
    with pytest.raises(ReleaseError, match=words):
        check_names(version, changelog, tag)


def test_a_version_that_agrees_is_right() -> None:
    """Before the tag, changes may be unreleased."""
    check_names("1.0.0", CHANGELOG, "v1.0.0")
    check_names("1.0.0", f"## [Unreleased]\n{CHANGELOG}", None)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"a": b"1"}, "wheel lacks b"),
        ({"a": b"1", "b": b"2", "c": b"3"}, "wheel should not have c"),
        ({"a": b"1", "b": b"3"}, "wheel has another text in b"),
    ],
)
def test_a_built_file_has_what_git_has(found: dict[str, bytes], words: str) -> None:
    """Nothing is missing, added or changed."""
    with pytest.raises(ReleaseError, match=words):
        compare("wheel", found, {"a": b"1", "b": b"2"})
    compare("wheel", {"a": b"1"}, {"a": b"1"})


@pytest.mark.parametrize(
    "licences",
    [
        [],
        [{"license": {"id": "AGPL-3.0-only"}}],
        [{"expression": "MIT AND GPL-3.0-only"}],
        [{"license": {"id": "MIT"}}, {"license": {"name": "Proprietary"}}],
    ],
)
def test_a_licence_that_is_not_in_the_list_is_named(licences: list[Any]) -> None:
    """So is a package that states none."""
    with pytest.raises(ReleaseError, match="greedy: "):
        check_licences({"components": [{"name": "greedy", "licenses": licences}]})


def test_all_licences_of_an_expression_have_to_be_in_the_list() -> None:
    """A package of parts under two licences is under both."""
    both = {"name": "client", "licenses": [{"expression": "Apache-2.0 AND BSD-2-Clause"}]}
    check_licences({"components": [both]})
    greedy = {"name": "greedy", "licenses": [{"expression": "MIT AND AGPL-3.0-only"}]}
    with pytest.raises(ReleaseError, match=r"greedy: AGPL-3\.0-only, MIT"):
        check_licences({"components": [greedy]})


def test_a_package_that_no_service_knows_is_not_taken_for_safe() -> None:
    """pip-audit itself finds no vulnerability where it could look up nothing."""
    audited = [
        {"name": "django-redis-lock", "skip_reason": "not found"},
        {"name": "django", "version": "5.2", "vulns": [{"id": "PYSEC-1"}, {"id": "PYSEC-2"}]},
        {"name": "celery", "skip_reason": "not found"},
        {"name": "redis", "version": "8.1.0", "vulns": []},
    ]
    assert judge(audited) == (["django 5.2 (PYSEC-1, PYSEC-2)"], ["celery"], ["django", "redis"])


def test_the_oldest_dependencies_are_read_from_the_wheel(tmp_path: Path) -> None:
    """Those of the extras too; without a lower bound nobody knows what the oldest one is."""
    wheel = tmp_path / "a-1.0-py3-none-any.whl"
    needs = ["django>=5.2", 'celery[redis]>=5.4; extra == "celery"']
    write(wheel, needs)
    assert oldest(wheel) == "django==5.2\ncelery==5.4\n"
    assert extras(wheel) == ["celery"]
    write(wheel, [*needs, "redis"])
    with pytest.raises(ReleaseError, match=r"name the oldest version, as in redis>=1\.0"):
        oldest(wheel)


def write(wheel: Path, needs: list[str]) -> None:
    """Write a wheel that has only metadata."""
    lines = [*(f"Requires-Dist: {need}" for need in needs), "Provides-Extra: celery"]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a-1.0.dist-info/METADATA", "\n".join(lines) + "\n")
