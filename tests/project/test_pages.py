"""README, CONTRIBUTING, the architecture, and the changelog."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import django_redis_lock
from tests.tools import ROOT
from tests.tools.docs import DOCS

PACKAGE = Path(django_redis_lock.__file__).parent
REPOSITORY = "django-redis-lock/django-redis-lock"
SITES = (
    (f"https://github.com/{REPOSITORY}/blob/main/", ROOT, ""),
    (f"https://raw.githubusercontent.com/{REPOSITORY}/main/", ROOT, ""),
    ("https://django-redis-lock.readthedocs.io/en/latest/", DOCS, ".md"),
)
"""Where README's links lead, the folder that is there, and the ending of its files here."""


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "example_project/README.md"])
def test_the_links_of_a_page_outside_the_build_lead_somewhere(page: str) -> None:
    """Each relative link is a file of the project; Sphinx checks those of the other pages."""
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    assert links
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []


def test_the_links_of_the_readme_work_outside_the_repository() -> None:
    """A package index shows README, too: its links are absolute, and lead somewhere."""
    readme = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)|^\[[^\]]+\]: (.+)$", readme, re.MULTILINE)
    addresses = [inline or defined for inline, defined in links]
    assert [address for address in addresses if not address.startswith("https://")] == []
    for address in addresses:
        for site, folder, ending in SITES:
            if address.startswith(site):
                path = folder / address.removeprefix(site).partition("#")[0]
                assert path.with_suffix(ending or path.suffix).exists(), address


def test_each_picture_is_shown_by_a_page() -> None:
    shown = "".join(path.read_text() for path in [ROOT / "README.md", *DOCS.rglob("*.md")])
    assert [path.name for path in (DOCS / "images").iterdir() if path.name not in shown] == []


def test_the_targets_that_pages_name_are_those_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        assert {*re.findall(r"(?:`|\$ )make ([\w-]+)", (ROOT / page).read_text())} <= targets


def test_workflows_use_only_what_can_not_change() -> None:
    """Actions and images are named by digest, actions with their version in a comment."""
    workflows = (ROOT / ".github" / "workflows").glob("*.yml")
    lines = [line.strip() for path in workflows for line in path.read_text().splitlines()]
    used = [line for line in lines if re.match(r"(- )?(uses: (?!\./)|container:|image:)", line)]
    pinned = r".*(@[0-9a-f]{40}  # v\d+\.\d+\.\d+|@sha256:[0-9a-f]{64})"
    assert len(used) > 8
    assert [line for line in used if not re.fullmatch(pinned, line)] == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/contributing/architecture.md"])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    names = re.findall(r"`([\w/]+(?:/|\.(?:py|js|md|txt)))`", (ROOT / page).read_text())
    assert names
    assert [
        name for name in names if not ((PACKAGE / name).exists() or (ROOT / name).exists())
    ] == []


def test_the_picture_of_the_layers_is_that_of_the_contract() -> None:
    text = (DOCS / "contributing/architecture.md").read_text()
    picture = text.split("<!-- layers -->", 1)[1].split("```")[1]
    drawn = [line.split("│")[1].split() for line in picture.splitlines() if line.startswith("│")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each.get("containers") == ["django_redis_lock"])
    assert drawn == [re.split(r"\s*[:|]\s*", layer) for layer in contract["layers"]]


def test_the_changelog_tells_of_this_version() -> None:
    assert f"## [{django_redis_lock.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
