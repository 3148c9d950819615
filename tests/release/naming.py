"""The version is the same in the package, the changelog and the tag."""

from __future__ import annotations

import re

from tests.release.building import Built
from tests.release.commands import ReleaseError, say

_HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\](?P<date> - \d{4}-\d\d-\d\d)?$", re.MULTILINE)


def check_version(built: Built, tag: str | None) -> None:
    """Compare with the top release of the changelog, and with the tag if there is one."""
    check_names(built.version, (built.checkout / "CHANGELOG.md").read_text(), tag)
    say(f"version {built.version}: that of the changelog" + (" and of the tag" if tag else ""))


def check_names(version: str, changelog: str, tag: str | None) -> None:
    """Raise ReleaseError if they differ; a tag also needs a date, and nothing unreleased."""
    headings = list(_HEADING.finditer(changelog))
    releases = [heading for heading in headings if heading["version"] != "Unreleased"]
    if not releases or releases[0]["version"] != version:
        top = releases[0]["version"] if releases else "no release"
        raise ReleaseError(f"the package is version {version}, but CHANGELOG.md begins with {top}")
    if tag is None:
        return
    if tag != f"v{version}":
        raise ReleaseError(f"the tag {tag} is not that of version {version}: tag v{version}")
    if headings[0]["version"] == "Unreleased":
        raise ReleaseError(f"CHANGELOG.md has unreleased changes: move them to {version}")
    if releases[0]["date"] is None:
        raise ReleaseError(f"CHANGELOG.md has no date: write ## [{version}] - YYYY-MM-DD")
