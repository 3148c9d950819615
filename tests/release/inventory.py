"""What a user installs with the package: an SBOM, the licences in it, and known vulnerabilities."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.release.commands import ReleaseError, run, say, tool
from tests.release.installing import Installed
from tests.tools import ROOT

ALLOWED = {
    *("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "PSF-2.0"),
    *("Apache-2.0 OR BSD-2-Clause", "License :: OSI Approved :: Apache Software License"),
    *("License :: OSI Approved :: BSD License", "License :: OSI Approved :: MIT License"),
}
"""Licences that ask for no more than that their text is kept, as the packages write them."""


def write_sbom(installed: Installed, file: Path) -> dict[str, Any]:
    """Write what an environment has as CycloneDX, validated against its schema, and return it."""
    tool(
        *("cyclonedx_py", "environment", "--output-reproducible", "--validate"),
        *("--pyproject", ROOT / "pyproject.toml", "--mc-type", "library"),
        *("--output-format", "JSON", "--output-file", file, installed.python),
    )
    bom: dict[str, Any] = json.loads(file.read_text())
    say(f"SBOM: {file.relative_to(ROOT)}, {len(bom['components'])} components")
    return bom


def check_licences(bom: dict[str, Any]) -> None:
    """Each component states licences, and all of them are allowed."""
    wrong = [
        f"{each['name']}: {', '.join(sorted(found)) or 'no licence'}"
        for each in bom["components"]
        if not (found := licences(each)) or not found <= ALLOWED
    ]
    if wrong:
        raise ReleaseError(f"licences that are not in the list of allowed ones: {'; '.join(wrong)}")
    say(f"licences: all {len(bom['components'])} are allowed")


def licences(component: dict[str, Any]) -> set[str]:
    """Return the names of a component's licences, as its package states them."""
    stated = component.get("licenses", [])
    licence = [each.get("license", {}) for each in stated]
    named = [each.get("id") or each.get("name") for each in licence]
    all_of = [part for one in stated for part in one.get("expression", "").split(" AND ")]
    return {each for each in (*named, *all_of) if each}


def audit(installed: Installed, *, required: bool) -> None:
    """Ask for known vulnerabilities; that nobody could be asked is an error if ``required``."""
    packages = run(installed.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    asked = subprocess.run(
        [
            *(sys.executable, "-m", "pip_audit", "--path", packages.strip()),
            *("--format", "json", "--progress-spinner", "off"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    try:
        audited = json.loads(asked.stdout)["dependencies"]
    except json.JSONDecodeError:
        audited = []
    vulnerable, unknown, known = judge(audited)
    if vulnerable:
        raise ReleaseError(f"vulnerabilities: {'; '.join(vulnerable)}")
    if known and not unknown:
        say(f"vulnerabilities: none known in {len(known)} packages")
        return
    reason = f"not checked for {', '.join(unknown)}" if unknown else asked.stderr.strip()
    if required:
        raise ReleaseError(f"vulnerabilities: {reason}: the service has to be reachable")
    say(f"vulnerabilities: NOT CHECKED, which the release will need. {reason}")


def judge(audited: list[dict[str, Any]]) -> tuple[list[str], list[str], list[str]]:
    """Return what is vulnerable and by what, what the service does not know, and what it knows.

    pip-audit succeeds, too, if the service knows no package at all. It can't know the package that
    is about to be released.
    """
    others = [each for each in audited if each["name"] != "django-redis-lock"]
    known = [each for each in others if "skip_reason" not in each]
    vulnerable = [
        f"{each['name']} {each['version']} ({', '.join(vuln['id'] for vuln in each['vulns'])})"
        for each in known
        if each["vulns"]
    ]
    unknown = [each["name"] for each in others if "skip_reason" in each]
    return vulnerable, unknown, [each["name"] for each in known]
