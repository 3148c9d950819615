"""Check what is about to be released: ``python -m tests.release [--tag v1.0.0] [--audit]``.

Builds the last commit into ``dist/``, and writes the SBOM into ``build/release/``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from example_project.embedded import EmbeddedServer
from tests.release.building import build, compare_with_git
from tests.release.commands import ReleaseError, say
from tests.release.installing import install
from tests.release.inventory import audit, check_licences, write_sbom
from tests.release.naming import check_version
from tests.release.smoke import smoke
from tests.tools import ROOT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--tag", help="the tag of the release, which names its version")
    parser.add_argument(
        "--audit", action="store_true", help="fail if no service knows of vulnerabilities"
    )
    options = parser.parse_args()
    try:
        check(options.tag, audit_required=options.audit)
    except ReleaseError as error:
        print(f"Not ready for a release: {error}", file=sys.stderr)
        return 1
    say("Ready for a release.")
    return 0


def check(tag: str | None, *, audit_required: bool) -> None:
    """Run all checks; raise ReleaseError at the first that fails."""
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        work = Path(folder)
        built = build(ROOT / "dist", work)
        check_version(built, tag)
        compare_with_git(built)
        for corner in ("oldest", "newest"):
            installed = install(corner, built, work)
            with EmbeddedServer() as server:
                smoke(installed, server.url(), work / f"shop-{corner}")
        sbom = ROOT / "build" / "release" / f"django-redis-lock-{built.version}.cdx.json"
        sbom.parent.mkdir(parents=True, exist_ok=True)
        check_licences(write_sbom(installed, sbom))
        audit(installed, required=audit_required)


if __name__ == "__main__":
    sys.exit(main())
